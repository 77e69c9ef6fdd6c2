package remember

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

type Response struct {
	Status      int
	Header      http.Header // the end-to-end headers that the handler set, without Set-Cookie; nil for none
	Removed     []string    // names of headers that were set before the handler ran, and that the handler removed
	Body        []byte      // nil for HEAD, or if the status allows no body
	TooLarge    bool        // the body was too large to be remembered, and is missing here
	Fingerprint Fingerprint
}

// Write sends the response again, with the header Idempotency-Replayed. Other headers that w already has stay: other handlers have set them for this
// request, and had set them for the first request, too.
//
// If the body was too large, Write sends a note of type application/problem+json in its place.
func (a *Response) Write(w http.ResponseWriter, method string) {
	h := w.Header()
	for _, name := range a.Removed {
		delete(h, name)
	}
	for name, values := range a.Header {
		h[name] = slices.Clone(values)
	}
	h.Set("Idempotency-Replayed", "true")
	hasBody := allowsBody(a.Status)
	body := a.Body
	if a.TooLarge && hasBody {
		body = a.note(h)
	}
	if hasBody && (method != http.MethodHead || len(body) > 0) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(a.Status)
	if hasBody && method != http.MethodHead && len(body) > 0 {
		_, _ = w.Write(body) // the client may have left
	}
}

// note returns the body that replaces a body that was too large, and sets the headers of the replacement.
func (a *Response) note(h http.Header) []byte {
	dropContent(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	body, _ := json.Marshal(Problem{Type: ProblemTypes + "too_large", Title: "The first response was too large to be remembered", Status: a.Status})
	return append(body, '\n')
}

// allowsBody reports whether a response with this final status can have a body.
func allowsBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Problem is a body that says what went wrong (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// ProblemTypes is the beginning of a Problem's type. The rest is the name of a section in docs/problems.md.
const ProblemTypes = "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#"

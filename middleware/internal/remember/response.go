package remember

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

// Response is the response to a request, as it is remembered.
type Response struct {
	Status      int
	Header      http.Header // end-to-end headers that the handler set, of Set-Cookie only the lines that it added; nil for none
	Removed     []string    // names of headers that were set before the handler and that it removed
	Body        []byte      // nil for HEAD, and for a status without a body
	TooLarge    bool        // the body was larger than may be remembered, and is not here
	Fingerprint Fingerprint // of the request
}

// Write writes the response again, with the header Idempotency-Replayed. What w has in its header is what the rest of the
// server has set for this request, as it had for the first one.
//
// A body that was too large is replaced by a note of type application/problem+json.
func (a *Response) Write(w http.ResponseWriter, method string) {
	h := w.Header()
	for _, name := range a.Removed {
		delete(h, name)
	}
	for name, values := range a.Header {
		if isCookie(name) {
			values = append(h[name], values...)
		}
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

// note returns the body that takes the place of one that was too large, and sets its headers.
func (a *Response) note(h http.Header) []byte {
	dropContent(h)
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	body, _ := json.Marshal(Problem{Type: ProblemTypes + "too_large", Title: "The first response was too large to be remembered", Status: a.Status})
	return append(body, '\n')
}

// allowsBody reports whether a response with this status has a body. A final status is meant.
func allowsBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// Problem is the body of a response that says why there is no other (RFC 9457).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// ProblemTypes precedes the name of a section of docs/problems.md in the type of a Problem.
const ProblemTypes = "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#"

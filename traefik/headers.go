package traefik

import (
	"io"
	"net/http"
)

// forwarded are the headers of the agent's refusals that clients get.
var forwarded = []string{"Content-Type", "Cache-Control", "Retry-After", "Redlock-Outcome", "Www-Authenticate"}

// slotHeader is the header with the number of the slot, if several requests may hold a key.
const slotHeader = "Redlock-Slot"

func writeRefusal(w http.ResponseWriter, refusal *http.Response, text []byte) {
	for _, name := range forwarded {
		if value := refusal.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(refusal.StatusCode)
	_, _ = w.Write(text)
}

// stripFence removes a header in every spelling that some server reads as that name.
func stripFence(r *http.Request, name string) {
	for _, header := range []http.Header{r.Header, r.Trailer} {
		for sent := range header {
			if sameHeader(sent, name) {
				delete(header, sent)
			}
		}
	}
	keepAnnounced(r)
}

// sameHeader reports whether some server takes two names for one: CGI and its successors read all separators alike.
func sameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if folded(a[i]) != folded(b[i]) {
			return false
		}
	}
	return true
}

func folded(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	if ('a' <= c && c <= 'z') || ('0' <= c && c <= '9') {
		return c
	}
	return '-'
}

// announcedTrailers is a body that removes all trailers that the client hasn't announced, because nobody could see before whether
// one of them has the name of the fence, or of a header that is in the key.
type announcedTrailers struct {
	body      io.ReadCloser
	trailers  http.Header // the trailers of the request, to which the server adds all that come
	announced http.Header
}

// keepAnnounced makes the body remove trailers that weren't announced. If a request has announced none, the handlers behind
// Traefik's get none.
func keepAnnounced(r *http.Request) {
	if r.Trailer != nil && r.Body != nil {
		r.Body = &announcedTrailers{body: r.Body, trailers: r.Trailer, announced: r.Trailer.Clone()}
	}
}

func (b *announcedTrailers) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil {
		for name := range b.trailers {
			if _, ok := b.announced[name]; !ok {
				delete(b.trailers, name)
			}
		}
	}
	return n, err
}

func (b *announcedTrailers) Close() error { return b.body.Close() }

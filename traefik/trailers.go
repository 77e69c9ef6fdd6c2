package traefik

import (
	"io"
	"net/http"
)

// announcedTrailers is a body behind which only those trailers come that were announced, as nobody could see before that another one
// is a fence, or has the name of a header that is in the key.
type announcedTrailers struct {
	body      io.ReadCloser
	trailers  http.Header // of the request, to which the server adds those that come
	announced http.Header
}

// keepAnnounced removes trailers when they come. Requests without announced ones have none for the handlers behind Traefik's.
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

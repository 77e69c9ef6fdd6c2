package traefik

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
)

// bodyCopy sends the body of a request to the agent as it comes, in frames, and keeps it for the upstream.
type bodyCopy struct {
	kept     bytes.Buffer
	trailers bool          // the client has announced trailers
	done     chan struct{} // closed when no more is read
}

// copyBody begins to send the body, but no more than one byte over most, because the agent refuses a longer body. If the agent refuses before
// the body has come, giveUpBody ends the copy.
func copyBody(r *http.Request, to io.Writer, most int64) *bodyCopy {
	keepAnnounced(r)
	c := &bodyCopy{trailers: r.Trailer != nil, done: make(chan struct{})}
	go c.send(r.Body, to, most)
	return c
}

func (c *bodyCopy) send(body io.Reader, to io.Writer, most int64) {
	defer close(c.done)
	defer func() { _ = recover() }() // a panic would end Traefik; the agent waits for the rest in vain
	body = io.LimitReader(body, most+1)
	part := make([]byte, 32<<10)
	for {
		n, err := body.Read(part)
		if n > 0 {
			c.kept.Write(part[:n])
			frame := append([]byte(strconv.Itoa(n)+"\n"), part[:n]...)
			if _, wrong := to.Write(chunk(frame)); wrong != nil {
				return
			}
		}
		if err == io.EOF {
			_, _ = to.Write(chunk([]byte("0\n")))
			return
		}
		if err != nil {
			_, _ = to.Write(chunk([]byte("-1\n")))
			return
		}
	}
}

// replay gives the body to the upstream. The agent has read all of it before it says that the request may go on.
func (c *bodyCopy) replay(r *http.Request) {
	r.Body = io.NopCloser(bytes.NewReader(c.kept.Bytes()))
	if !c.trailers {
		r.Trailer = nil
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// stream is an upstream that answers bit by bit, and goes on working even if the client has left.
type stream struct {
	*httptest.Server
	inside, goOn chan bool
	end          chan bool
	written      chan error
}

// newStream returns a stream. When it is told to go on, it sends more than connections buffer, so that somebody must read it.
func newStream(t *testing.T) *stream {
	s := &stream{inside: make(chan bool, 10), goOn: make(chan bool), end: make(chan bool), written: make(chan error, 10)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := []byte(strings.Repeat("x", 64<<10))
		_, err := w.Write(chunk)
		_ = http.NewResponseController(w).Flush()
		s.inside <- true
		<-s.goOn
		for range 256 {
			if err == nil {
				_, err = w.Write(chunk)
			}
		}
		s.written <- err
		<-s.end
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stream) proxy() string { return proxyTo(s.Listener.Addr()) }

// leaveInside sends a request, and leaves when its response has begun.
func (s *stream) leaveInside(t *testing.T, url string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	response, err := client.Do(request(url).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	<-s.inside
	leave()
	_ = response.Body.Close()
}

// An upstream that streams is read to its end although the client has left: the first write that fails must not release the
// lock.
func TestClientLeavesAStream(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	goOn, end := sync.OnceFunc(func() { close(s.goOn) }), sync.OnceFunc(func() { close(s.end) })
	t.Cleanup(end)
	t.Cleanup(goOn)
	c := runCaddy(t, caddyfile("", "redlock run:{path.1}\n"+s.proxy()))
	s.leaveInside(t, c.url+"/run/1")
	goOn()
	if err := <-s.written; err != nil {
		t.Errorf("the upstream was left: %v", err)
	}
	requireStatus(t, post(t, c.url+"/run/1"), http.StatusLocked)
	end()
	eventually(t, "the lock is free", func() bool { return post(t, c.url+"/run/1").status == http.StatusOK })
}

// With on_client_abort cancel, another request is let in although the upstream is still working.
func TestClientCancelsAStream(t *testing.T) {
	s := newStream(t)
	release := sync.OnceFunc(func() { close(s.goOn); close(s.end) })
	t.Cleanup(release)
	c := runCaddy(t, caddyfile("", "redlock cancel:{path.1} {\non_client_abort cancel\n}\n"+s.proxy()))
	s.leaveInside(t, c.url+"/cancel/1")
	eventually(t, "another request is at the upstream as well", func() bool {
		response, err := client.Do(request(c.url + "/cancel/1").WithContext(t.Context()))
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	<-s.inside
	if len(s.written) > 0 {
		t.Error("the first was done")
	}
	release()
	if err := errors.Join(<-s.written, <-s.written); err == nil {
		t.Error("the upstream was read to its end")
	}
}

// Handlers of errors can read the whole body of a refused request, whether or not the key needed it.
func TestRefusedBodyIsHandledElsewhere(t *testing.T) {
	b, release := newHeldBackend(t)
	queue := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "queued %d %s %v", r.ContentLength, body, err)
	}))
	t.Cleanup(queue.Close)
	c := runCaddy(t, caddyfile("redlock {\nbody_budget 1MiB\n}", `
		redlock /body* body:{body.id}
		redlock /header* header:{header.X-Order}
		`+b.proxy()+`
		handle_errors 423 {
			rewrite * /queue?
			reverse_proxy `+queue.Listener.Addr().String()+`
		}`))
	body := `{"id":42,"x":"` + strings.Repeat("x", 600_000) + `"}` // the budget has room for one of these
	for _, path := range []string{"/header", "/body"} {
		inside := b.inside()
		sendAll(t, withBody(c.url+path, `{"id":42}`, "X-Order", "42"))
		eventually(t, "the first is in the backend", func() bool { return b.inside() > inside })
		for range 3 {
			a := send(t, withBody(c.url+path, body, "X-Order", "42"))
			if want := fmt.Sprintf("queued %d %s <nil>", len(body), body); a.body != want {
				t.Errorf("%s: %d %.100q, want %.100q", path, a.status, a.body, want)
			}
		}
	}
	release()
}

// A proxy may still be reading the request when its upstream has answered and the handler has returned.
func TestResponseBeforeTheBodyIsRead(t *testing.T) {
	needTime(t)
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // answers at the first byte, and again at each request
				defer conn.Close()
				buffer := make([]byte, 64<<10)
				for {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
				}
			}()
		}
	}()
	c := runCaddy(t, caddyfile("", "redlock {path}\nreverse_proxy "+listener.Addr().String()))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				send(t, withBody(fmt.Sprint(c.url, "/", i), strings.Repeat("x", 40<<10)))
			}
		})
	}
	all.Wait()
}

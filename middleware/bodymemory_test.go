package middleware_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// pipes are the connections of clients to a server in this process.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	close func()
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	p.close()
	return nil
}

func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// servePipes serves in a bubble of package synctest.
func servePipes(t *testing.T, handler http.Handler) pipes {
	listener := pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	listener.close = sync.OnceFunc(func() { close(listener.ended) })
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener
}

// bodySender sends all of a body but its end, and then waits until it may go on.
type bodySender struct {
	path    string
	client  string
	id      int
	length  int
	chunked bool
	goOn    <-chan struct{}
}

var blanks = bytes.Repeat([]byte(" "), 64<<10)

// send returns the status of the response.
func (s bodySender) send(conn net.Conn) (int, error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Hour))
	end := fmt.Sprintf(`{"id":%d}`, s.id)
	if s.chunked {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nClient: %s\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", s.path, s.client, s.length)
		end += "\r\n0\r\n\r\n"
	} else {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nClient: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", s.path, s.client, s.length)
	}
	for left := s.length - len(fmt.Sprintf(`{"id":%d}`, s.id)); left > 0; {
		n, err := conn.Write(blanks[:min(left, len(blanks))])
		if err != nil {
			return 0, err
		}
		left -= n
	}
	<-s.goOn
	if _, err := io.WriteString(conn, end); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// The clients of two rules that share a budget all send their bodies without the end, as far as the server takes them. In this
// bubble it is known when the server takes no more.
func TestMemoryOfBodies(t *testing.T) {
	const (
		budget  = 32 << 20
		large   = 4 << 20
		small   = 1 << 20
		clients = 40 // at the large rule
	)
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, live)
		mux := http.NewServeMux()
		shared := middleware.NewBudget(budget)
		mux.Handle("/large", middleware.New(l, "{body.id}", middleware.Rule{BodyBudget: shared, MaxBody: large})(http.HandlerFunc(ok)))
		mux.Handle("/small", middleware.New(l, "{body.id}", middleware.Rule{BodyBudget: shared, MaxBody: small})(http.HandlerFunc(ok)))
		listener := servePipes(t, mux)

		runtime.GC()
		before := heap()
		var sent sync.WaitGroup
		open, goOn := make(chan struct{}), make(chan struct{})
		close(open)
		run := func(s bodySender) {
			sent.Go(func() {
				if status, err := s.send(listener.dial()); err != nil || status != http.StatusOK {
					t.Errorf("%+v: status %d, %v", s, status, err)
				}
			})
		}
		for i := range 8 {
			// the room that the large rule leaves is not for the small one
			run(bodySender{"/large", "", i, 20_000, true, open})
			synctest.Wait()
			run(bodySender{"/small", "", clients + i, small, true, goOn})
			synctest.Wait()
		}
		for i := range clients {
			run(bodySender{"/large", "", 100 + i, large, i%2 == 0, goOn})
		}
		synctest.Wait()
		runtime.GC()
		if used := heap() - before; used > budget*11/10 || used < budget/2 {
			t.Errorf("%d bytes of memory used, want about %d and at most a tenth more", used, budget)
		}
		close(goOn)
		sent.Wait()
		run(bodySender{"/large", "", 0, large, true, goOn}) // the room is given back
		sent.Wait()
	})
}

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

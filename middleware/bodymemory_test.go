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

// bodySender sends a body of a length but for its end, and then waits until it may go on.
type bodySender struct {
	path    string
	id      int
	length  int
	chunked bool
	goOn    <-chan struct{}
}

var blanks = bytes.Repeat([]byte(" "), 64<<10)

// send gives the status of the answer.
func (s bodySender) send(conn net.Conn) (int, error) {
	defer conn.Close()
	end := fmt.Sprintf(`{"id":%d}`, s.id)
	if s.chunked {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", s.path, s.length)
		end += "\r\n0\r\n\r\n"
	} else {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", s.path, s.length)
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

// Clients at two rules, which share a budget, send all but the end of their bodies at once: as much as the
// server takes of them. In this bubble it is known when it takes no more.
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
		shared := middleware.WithBodyBudget(middleware.NewBudget(budget))
		mux.Handle("/large", middleware.New(l, "{body.id}", shared, middleware.WithMaxBody(large))(http.HandlerFunc(ok)))
		mux.Handle("/small", middleware.New(l, "{body.id}", shared, middleware.WithMaxBody(small))(http.HandlerFunc(ok)))
		listener := pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
		listener.close = sync.OnceFunc(func() { close(listener.ended) })
		server := &http.Server{Handler: mux}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })

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
			// what the large rule leaves behind is not for the small one
			run(bodySender{"/large", i, 20_000, true, open})
			synctest.Wait()
			run(bodySender{"/small", clients + i, small, true, goOn})
			synctest.Wait()
		}
		for i := range clients {
			run(bodySender{"/large", 100 + i, large, i%2 == 0, goOn})
		}
		synctest.Wait()
		runtime.GC()
		if used := heap() - before; used > budget*11/10 || used < budget/2 {
			t.Errorf("%d bytes of memory used, want about %d and at most a tenth more", used, budget)
		}
		close(goOn)
		sent.Wait()
		run(bodySender{"/large", 0, large, true, goOn}) // the room is given back
		sent.Wait()
	})
}

func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

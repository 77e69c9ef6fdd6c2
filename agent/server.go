package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	headTimeout = 5 * time.Second // for the head of a request, once it has begun
	idleTimeout = 2 * time.Minute // between two requests
	maxHead     = 16 << 10
)

// Serve answers on these listeners until ctx ends. Then it refuses new requests, ends all waits, and gives those who hold locks so long
// to end. If it returns an error after that, some still do: then don't close the Locker, but end the process. It closes the listeners.
//
// A client that is cut off from a TCP address is noticed within seconds; it has closed its connection if the connection says so.
func (a *Agent) Serve(ctx context.Context, grace time.Duration, listeners ...net.Listener) error {
	s := &server{agent: a, free: 2 * a.maxClients, conns: make(map[*conn]struct{}), ended: make(chan struct{}), plain: &handover{conns: make(chan net.Conn), closed: make(chan struct{})}}
	plain := &http.Server{
		Handler:           http.HandlerFunc(a.serveHTTP),
		ReadHeaderTimeout: headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHead,
		ErrorLog:          slog.NewLogLogger(a.logger.Handler(), slog.LevelDebug),
	}
	go func() { _ = plain.Serve(s.plain) }() // until it is closed
	s.tellTime(time.Now())
	go s.sweep()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- s.accept(l) }()
	}
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("agent: %w", err)
		grace = 0
	case <-ctx.Done():
	}
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	left := a.shutdown(ended)
	for _, l := range listeners {
		_ = l.Close()
	}
	s.end(ended, left == nil) // what is left then holds no lock, or is in the error already
	_ = plain.Shutdown(ended)
	_ = plain.Close()
	return errors.Join(err, left)
}

// server is the connections of an agent.
type server struct {
	agent *Agent
	plain *handover
	all   sync.WaitGroup         // the goroutines of the connections
	ended chan struct{}          // closed when none is served any more
	date  atomic.Pointer[string] // as responses have it

	mu    sync.Mutex
	free  int // how many more connections there may be
	conns map[*conn]struct{}
}

// accept serves the connections of a listener until it is closed. It closes those for which there is no room: those that there are
// already must not have to wait.
func (s *server) accept(l net.Listener) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		var number syscall.Errno
		switch {
		case errors.As(err, &number) && number.Temporary(): // as when no file can be opened any more
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		case err != nil:
			return err
		case !s.start(c):
			_ = c.Close()
		default:
			pause = 0
		}
	}
}

// start serves a connection, unless there is no room for it.
func (s *server) start(of net.Conn) bool {
	c := newConn(of, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	s.conns[c] = struct{}{}
	noticeSilence(of)
	s.all.Go(c.serve)
	return true
}

// sweep looks after the deadlines of the connections.
func (s *server) sweep() {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		var now time.Time
		select {
		case now = <-ticker.C:
		case <-s.ended:
			return
		}
		s.tellTime(now)
		s.mu.Lock()
		for c := range s.conns {
			c.sweep(now)
		}
		s.mu.Unlock()
	}
}

func (s *server) tellTime(now time.Time) {
	text := now.UTC().Format(http.TimeFormat)
	s.date.Store(&text)
}

// closed is called when a connection is.
func (s *server) closed(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	delete(s.conns, c)
}

// each calls a function for all connections.
func (s *server) each(do func(*conn)) {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		do(c)
	}
}

// end closes the connections, those that are answered right now after that or when ctx ends, and waits for their goroutines if it may.
func (s *server) end(ctx context.Context, wait bool) {
	defer close(s.ended)
	_ = s.plain.Close()
	s.each((*conn).endIdle)
	if !wait {
		s.each(func(c *conn) { _ = c.Close() })
		return
	}
	defer context.AfterFunc(ctx, func() { s.each(func(c *conn) { _ = c.Close() }) })()
	s.all.Wait()
}

// handover is the listener for the connections that net/http's server serves.
type handover struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept, and take.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr says nothing: the connections are those of several listeners.
func (h *handover) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// take serves a connection.
func (h *handover) take(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// silence is how long nothing may be heard of the machine of a client before it counts as cut off.
const silence = 5 * time.Second

// noticeSilence has the kernel end a TCP connection whose other side doesn't answer any more.
func noticeSilence(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3})
	limitUnacknowledged(t)
}

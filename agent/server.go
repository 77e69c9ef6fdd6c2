package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Serve answers on these listeners until ctx ends. Then it refuses new requests, ends all waits, and gives those who hold locks so long
// to end; see Shutdown for its error after that. It closes the listeners.
//
// A client that is cut off from a TCP address is noticed within seconds; it has closed its connection if the connection says so.
func (a *Agent) Serve(ctx context.Context, grace time.Duration, listeners ...net.Listener) error {
	server := &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(a.logger.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	room := &room{free: 2 * a.maxClients}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(&listener{l, room}) }()
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
	err = errors.Join(err, a.Shutdown(ended))
	_ = server.Shutdown(ended) // what is left then holds no lock, or is in err already
	_ = server.Close()
	return err
}

// room is how many more connections there may be.
type room struct {
	mu   sync.Mutex
	free int
}

func (r *room) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free == 0 {
		return false
	}
	r.free--
	return true
}

func (r *room) give() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free++
}

// listener closes connections for which there is no room: those that there are already, must not have to wait.
type listener struct {
	net.Listener
	room *room
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.room.take() {
			_ = c.Close()
			continue
		}
		noticeSilence(c)
		return &conn{Conn: c, room: l.room}, nil
	}
}

// connKey is the key of a *conn in the contexts of its requests.
type connKey struct{}

// conn is a connection that notes whether its other side has closed it.
type conn struct {
	net.Conn
	left  atomic.Bool // the other side has closed it
	spent atomic.Bool // no request can follow, as the end of the one before can't be told
	room  *room
	close sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	if c.spent.Load() {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p)
	if err != nil && isClosed(err) {
		c.left.Store(true)
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && isClosed(err) {
		c.left.Store(true)
	}
	return n, err
}

func (c *conn) Close() error {
	c.close.Do(c.room.give)
	return c.Conn.Close()
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

package plugintest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// wire carries connections to an address, until it hangs: then what is sent is lost, and nobody is told.
type wire struct {
	listener net.Listener
	hanging  atomic.Bool
	mu       sync.Mutex
	open     []net.Conn
}

func newWire(t testing.TB, to string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: listener}
	t.Cleanup(func() { _ = listener.Close(); w.cut() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			w.mu.Lock()
			w.open = append(w.open, from, onward)
			w.mu.Unlock()
			go w.carry(from, onward)
			go w.carry(onward, from)
		}
	}()
	return w
}

func (w *wire) carry(from, to net.Conn) {
	_, _ = io.Copy(writer(func(p []byte) (int, error) {
		if w.hanging.Load() {
			return len(p), nil
		}
		return to.Write(p)
	}), from)
	if !w.hanging.Load() {
		_ = to.Close()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func (w *wire) address() string { return w.listener.Addr().String() }
func (w *wire) hang()           { w.hanging.Store(true) }

// cut closes all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		_ = c.Close()
	}
}

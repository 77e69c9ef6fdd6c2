package redistest

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestForwarder(t *testing.T) {
	servers := Start(t, 2)
	f := NewForwarder(t, servers[0])
	ask := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		reply := make([]byte, len("+PONG\r\n"))
		if _, err := io.ReadFull(conn, reply); err != nil {
			return err
		} else if string(reply) != "+PONG\r\n" {
			return errors.New(string(reply))
		}
		return nil
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", f.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn := dial()
	if err := ask(conn); err != nil {
		t.Fatal(err)
	}
	f.Set(Weather{Replies: true})
	done := make(chan error)
	go func() { done <- ask(conn) }()
	select {
	case err := <-done:
		t.Errorf("a reply that should be kept back: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	f.Set(Weather{Delay: time.Millisecond})
	if err := <-done; err != nil {
		t.Error(err)
	}
	f.MoveTo(servers[1])
	if err := ask(conn); err == nil {
		t.Error("a connection that should be cut")
	}
	servers[0].Kill()
	if err := ask(dial()); err != nil {
		t.Error(err)
	}
}

package redis

import (
	"bufio"
	"crypto/tls"
	"net"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// pairOf returns both ends of a connection.
func pairOf(t *testing.T) (c *conn, peer net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if peer, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = raw.Close()
		_ = peer.Close()
	})
	return &conn{raw: raw, in: bufio.NewReader(raw)}, peer
}

// TestAwait: wherever a reply is cut into two, Await waits for the rest; and if it is interrupted, nothing of the reply is lost.
func TestAwait(t *testing.T) {
	const number, held = ":7\r\n", "*6\r\n:1500\r\n$5\r\nab\r\nc\r\n:3\r\n:0\r\n:-1\r\n:0\r\n"
	for _, text := range []string{number, held, "-ERR no\r\n"} {
		for n := range text {
			c, peer := pairOf(t)
			send := func(part string) {
				if _, err := peer.Write([]byte(part)); err != nil {
					t.Fatal(err)
				}
			}
			send(text[:n])
			for c.in.Buffered() < n { // Await would take them too; then it waits for more
				_, _ = c.in.Peek(c.in.Buffered() + 1)
			}
			c.Interrupt()
			if c.Await() {
				t.Fatalf("%q is taken as a whole reply", text[:n])
			}
			c.Resume()
			done := make(chan bool)
			go func() { done <- c.Await() }()
			send(text[n:])
			if !<-done {
				t.Fatalf("%q and %q aren't taken as a whole reply", text[:n], text[n:])
			}
			c.Interrupt() // reading takes no more from the connection
			cmd := &protocol.Command{Op: protocol.OpAcquire}
			if err := c.Receive([]*protocol.Command{cmd}); err != nil {
				t.Fatal(err)
			}
			switch {
			case text == held && (cmd.Reply.Status != protocol.StatusHeld || cmd.Reply.Holder != "ab\r\nc"), text == number && cmd.Reply.Time != 7, text[0] == '-' && cmd.Reply.Err == nil:
				t.Errorf("%q is read as %+v", text, cmd.Reply)
			}
		}
	}
}

// TestAwaitEnds: Await ends with the connection, and for a reply that has no room in the buffer.
func TestAwaitEnds(t *testing.T) {
	c, peer := pairOf(t)
	if _, err := peer.Write(append([]byte("$9000\r\n"), make([]byte, 9002)...)); err != nil {
		t.Fatal(err)
	}
	if c.Await() {
		t.Error("a reply is longer than the buffer, and a whole one in it")
	}
	c, peer = pairOf(t)
	_ = peer.Close()
	if c.Await() {
		t.Error("nothing is taken as a reply")
	}
}

// TestPrompt: only a socket, also within TLS, has room for what is written. What a dialer of the user's has made may block who writes.
func TestPrompt(t *testing.T) {
	socket, _ := pairOf(t)
	pipe, _ := net.Pipe()
	for name, c := range map[string]struct {
		raw    net.Conn
		prompt bool
	}{
		"socket":  {socket.raw, true},
		"TLS":     {tls.Client(socket.raw, nil), true},
		"pipe":    {pipe, false},
		"wrapped": {struct{ net.Conn }{socket.raw}, false},
	} {
		if got := (&conn{raw: c.raw}).Capabilities().Prompt; got != c.prompt {
			t.Errorf("%s is prompt: %v, want %v", name, got, c.prompt)
		}
	}
}

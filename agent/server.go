package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	headTimeout   = 5 * time.Second  // for the head of a request, from its first byte on
	bodyTimeout   = 15 * time.Second // for the head and the body, unless a handler sets a different time
	idleTimeout   = 2 * time.Minute  // between two requests; bodyTimeout on a TCP connection that hasn't shown the token
	writePatience = 10 * time.Second // for a write that blocks because the client doesn't read
	maxHead       = 16 << 10
	maxStrangers  = 1024 // the most connections to one TCP address that haven't shown the token
)

// door is a listener that limits the number of its connections. Each listener has a limit of its own, so the clients of one listener can't use up the
// connections of another.
type door struct {
	net.Listener
	unix bool
	room atomic.Int64 // how many more connections are allowed

	strangers []*conn // on TCP, a ring of the latest connections; next is the index of the oldest
	next      int
}

func newDoor(l net.Listener, maxClients int) *door {
	d := &door{Listener: l, unix: l.Addr().Network() == "unix"}
	d.room.Store(2 * int64(maxClients))
	if !d.unix {
		d.strangers = make([]*conn, min(maxStrangers, maxClients))
	}
	return d
}

// Accept returns the next connection. While there are too many, it closes each new connection at once, instead of letting it wait.
func (d *door) Accept() (net.Conn, error) {
	for {
		accepted, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if d.room.Add(-1) < 0 {
			d.room.Add(1)
			_ = accepted.Close()
			continue
		}
		noticeSilence(accepted)
		c := &conn{Conn: accepted, door: d, left: make(chan struct{})}
		d.turnOut(c)
		return c, nil
	}
}

// turnOut puts the latest connection into the ring, and closes the connection that drops out of the ring, unless that has shown the token. So a client
// with the token can connect, however many connections without the token there are. A Unix socket has no ring, because its mode says who may open it.
func (d *door) turnOut(latest *conn) {
	if d.unix {
		return
	}
	if oldest := d.strangers[d.next]; oldest != nil && !oldest.known.Load() {
		_ = oldest.Close()
	}
	d.strangers[d.next] = latest
	d.next = (d.next + 1) % len(d.strangers)
}

// conn is a connection to a client. It distinguishes a client that has closed the connection from a silent network. net/http's server doesn't.
type conn struct {
	net.Conn
	door  *door
	known atomic.Bool   // a request on the connection has passed access.check
	whole atomic.Bool   // a request has arrived completely, and isn't answered yet
	left  chan struct{} // closed when the client has closed the connection
	leave sync.Once
	close sync.Once
}

type connKey struct{}

func connOf(r *http.Request) *conn { return r.Context().Value(connKey{}).(*conn) }

var errFollowed = errors.New("the request is followed by another one while it lasts")

// Read closes the connection if the client sends another request before the first is answered. Otherwise net/http's server would stop reading, and
// wouldn't notice when the client leaves.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(err)
	if n > 0 && c.whole.Load() {
		_ = c.Conn.Close()
		return 0, errFollowed
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(err)
	return n, err
}

// SetReadDeadline allows at most bodyTimeout on a TCP connection that hasn't shown the token, even between two requests. Otherwise clients without
// the token could keep many connections open by asking for /healthz.
func (c *conn) SetReadDeadline(t time.Time) error {
	if most := time.Now().Add(bodyTimeout); !c.door.unix && !c.known.Load() && (t.IsZero() || t.After(most)) {
		t = most
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) note(err error) {
	if err != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		c.leave.Do(func() { close(c.left) })
	}
}

// Close closes the connection, and makes room for another one.
func (c *conn) Close() error {
	c.close.Do(func() { c.door.room.Add(1) })
	return c.Conn.Close()
}

// silence is how long a client's machine may send nothing before it counts as cut off.
const silence = 5 * time.Second

// noticeSilence makes the kernel end a TCP connection whose other side no longer answers the kernel's packets.
func noticeSilence(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3})
	limitUnacknowledged(t)
}

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
	headTimeout   = 5 * time.Second  // for the head of a request, once it has begun
	bodyTimeout   = 15 * time.Second // for the head and the body, unless a handler says otherwise
	idleTimeout   = 2 * time.Minute  // between two requests, but bodyTimeout on a TCP address before the token was shown
	writePatience = 10 * time.Second // for a client that reads nothing, once all buffers on the way to it are full
	maxHead       = 16 << 10
	maxStrangers  = 1024 // connections to a TCP address that have not shown the token
)

// door is a listener that counts its own connections, so that the clients of one address can't take the room of another.
type door struct {
	net.Listener
	unix bool
	room atomic.Int64 // for how many more connections

	strangers []*conn // on TCP, the latest connections in a ring, with the oldest at next
	next      int
}

// newDoor returns the listener with room for so many clients.
func newDoor(l net.Listener, maxClients int) *door {
	d := &door{Listener: l, unix: l.Addr().Network() == "unix"}
	d.room.Store(2 * int64(maxClients))
	if !d.unix {
		d.strangers = make([]*conn, min(maxStrangers, maxClients))
	}
	return d
}

// Accept returns the next connection for which there is room. It closes all others at once: no connection waits for room.
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

// turnOut closes the oldest connection that hasn't shown the token, once too many came after it. So a client with the token gets in, however many
// have none. A Unix socket has no strangers, because its mode says who may open it.
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

// conn is a connection to a client. Unlike net/http's server, it distinguishes a connection that the other side has closed from a network that is
// silent.
type conn struct {
	net.Conn
	door  *door
	known atomic.Bool   // a request on it had the token, if one is needed
	whole atomic.Bool   // its request is complete, and not answered yet
	left  chan struct{} // closed when the other side has closed the connection
	leave sync.Once
	close sync.Once
}

// connKey is the key of the conn in a request's context.
type connKey struct{}

func connOf(r *http.Request) *conn { return r.Context().Value(connKey{}).(*conn) }

var errFollowed = errors.New("the request is followed by another one while it lasts")

// Read ends a connection on which another request follows an unanswered one: net/http's server would keep what it has read, and no longer notice that
// the client leaves.
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

// SetReadDeadline lets no stranger stay longer than a body may take, not even between two requests: /healthz asks for no token.
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

// silence is how long the machine of a client may be silent before it counts as cut off.
const silence = 5 * time.Second

// noticeSilence makes the kernel end a TCP connection whose other side doesn't answer any more.
func noticeSilence(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3})
	limitUnacknowledged(t)
}

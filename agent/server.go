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
	bodyTimeout   = 15 * time.Second // for the head and the body, unless a handler sets another time
	idleTimeout   = 2 * time.Minute  // between two requests; on a TCP connection that hasn't shown the token, bodyTimeout is used instead
	writePatience = 10 * time.Second // for a client that stops reading, once all buffers on the way to it are full
	maxHead       = 16 << 10
	maxStrangers  = 1024 // the most connections to one TCP address that haven't shown the token
)

// door is a listener that counts its connections and allows a limited number. So the clients of one address can't take the connections that are meant
// for the clients of another.
type door struct {
	net.Listener
	unix bool
	room atomic.Int64 // how many more connections are allowed

	strangers []*conn // a ring of the latest connections, on TCP only; next is the index of the oldest
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

// Accept returns the next connection that is allowed. It closes any other connection at once, instead of letting it wait.
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

// turnOut closes the oldest connection that hasn't shown the token, if there are too many of them. So a client with the token gets in, however many
// clients without it have connected. On a Unix socket no client counts as a stranger, because the socket's mode says who may open it.
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

// conn is a connection to a client. It distinguishes a connection that the client has closed from a silent network, which net/http's server doesn't.
type conn struct {
	net.Conn
	door  *door
	known atomic.Bool   // a request on the connection has passed access.check
	whole atomic.Bool   // a request is complete, and not answered yet
	left  chan struct{} // closed when the client has closed the connection
	leave sync.Once
	close sync.Once
}

type connKey struct{}

func connOf(r *http.Request) *conn { return r.Context().Value(connKey{}).(*conn) }

var errFollowed = errors.New("the request is followed by another one while it lasts")

// Read ends the connection if another request follows an unanswered one. Otherwise net/http's server would keep the bytes that it has read, and no
// longer notice that the client leaves.
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

// SetReadDeadline bounds each wait on a connection that hasn't shown the token by bodyTimeout, even the wait for the next request. Clients without
// the token may ask for /healthz, and could otherwise keep many connections open.
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

// Close closes the connection, and so allows another one.
func (c *conn) Close() error {
	c.close.Do(func() { c.door.room.Add(1) })
	return c.Conn.Close()
}

// silence is how long a client's machine may send nothing before it counts as cut off.
const silence = 5 * time.Second

// noticeSilence makes the kernel end a TCP connection when the other side doesn't answer any more.
func noticeSilence(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3})
	limitUnacknowledged(t)
}

package agent

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection to a client. Its one goroutine reads the requests for /v1/, serves them, and reads while they hold their locks.
// net/http's server would begin another one at each request, and it costs more than all else that the agent does. Requests are
// parsed by package http, and all others are served by its server.
type conn struct {
	net.Conn
	server *server
	unix   bool
	reader *bufio.Reader // of this conn
	lines  *bufio.Reader // of the body of the request
	out    []byte        // what is about to be written
	said   [256]byte     // what was read of a body that is kept open
	head   int           // how many more bytes of the head of a request may be read
	left   atomic.Bool   // the other side has closed it
	close  sync.Once

	mu      sync.Mutex
	readBy  time.Time   // the deadline of reading; zero for none
	writeBy time.Time   // that of writing
	tick    func() bool // is called when the deadline of reading has come, and says whether to go on; nil: the deadline is an error
	later   func()      // is called by the next sweep, in a goroutine of its own; nil for none
	idle    bool        // it is between two requests
	ending  bool        // there must be no further one
}

func newConn(of net.Conn, s *server) *conn {
	c := &conn{Conn: of, server: s, unix: of.LocalAddr().Network() == "unix", head: math.MaxInt}
	c.reader = bufio.NewReader(c)
	c.lines = bufio.NewReader(nil)
	return c
}

var errHeadTooLarge = errors.New("the head of the request is too large")

func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.head == 0 {
			return 0, errHeadTooLarge
		}
		n, err := c.Conn.Read(p[:min(len(p), c.head)])
		if c.head < math.MaxInt {
			c.head -= n
		}
		switch {
		case isClosed(err):
			c.left.Store(true)
		case n == 0 && tooLate(err) && (!c.isOver() || c.onTime()):
			continue
		}
		return n, err
	}
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if isClosed(err) {
		c.left.Store(true)
	}
	return n, err
}

// Close closes the connection, and makes room for another one.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.close.Do(func() {
		err = c.Conn.Close()
		c.server.closed(c)
	})
	return err
}

// onTime calls tick, if there is one, and reports whether to go on with reading.
func (c *conn) onTime() bool {
	c.mu.Lock()
	tick := c.tick
	c.mu.Unlock()
	return tick != nil && tick()
}

// setTick sets what is called when the deadline of reading has come.
func (c *conn) setTick(tick func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick = tick
}

// wake has tick called now.
func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tick != nil {
		c.setReadBy(time.Now())
	}
}

// sweepEvery is how often the deadlines of connections are looked at. To set one of the system's with each step of a request would wake
// another thread each time.
const sweepEvery = 100 * time.Millisecond

// within sets that what is read has to come in that time, or that tick is called then. A long time may be exceeded by sweepEvery.
func (c *conn) within(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setReadBy(time.Now().Add(d))
}

// withoutLimit sets that what is read may come whenever it wants.
func (c *conn) withoutLimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = time.Time{}
}

// setReadBy sets the deadline of reading. Callers hold mu.
func (c *conn) setReadBy(t time.Time) {
	c.readBy = t
	if time.Until(t) < 5*sweepEvery {
		_ = c.SetReadDeadline(t)
	}
}

// isOver reports whether the deadline of reading has come, and not just one that was set before.
func (c *conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readBy.IsZero() && !time.Now().Before(c.readBy) {
		return true
	}
	_ = c.SetReadDeadline(time.Time{})
	return false
}

// sweep does what is due.
func (c *conn) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readBy.IsZero() && now.After(c.readBy) {
		_ = c.SetReadDeadline(now)
	}
	if !c.writeBy.IsZero() && now.After(c.writeBy) {
		_ = c.SetWriteDeadline(now)
	}
	if c.later != nil {
		go c.later()
		c.later = nil
	}
}

// setLater has the next sweep call a function, or none. It reports whether none had to be called any more.
func (c *conn) setLater(f func()) (called bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	called = c.later == nil
	c.later = f
	return called
}

// setIdle notes whether the connection is between two requests, and reports whether it may go on.
func (c *conn) setIdle(idle bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = idle
	return !c.ending
}

// endIdle closes the connection as soon as it is idle.
func (c *conn) endIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	if c.idle {
		c.setReadBy(time.Now())
	}
}

// serve serves requests until the client has left, or asks for something that net/http's server has.
func (c *conn) serve() {
	handed := false
	defer func() {
		if what := recover(); what != nil { // as in net/http: it is one request's, and the other clients rely on their locks
			c.server.agent.logger.Error("a request has panicked", "panic", what, "stack", string(debug.Stack()))
		}
		if !handed {
			_ = c.Close()
		}
	}()
	for wait := headTimeout; ; wait = idleTimeout {
		c.within(wait)
		if !c.setIdle(true) {
			return
		}
		_, err := c.reader.Peek(1)
		if !c.setIdle(false) || err != nil {
			return
		}
		c.within(headTimeout)
		if start, err := c.reader.Peek(len(ours)); err != nil {
			return
		} else if string(start) != ours {
			handed = true
			c.withoutLimit()
			_ = c.isOver() // ends a deadline that was set before
			c.server.plain.take(&handedConn{c})
			return
		}
		if !c.serveOne() {
			return
		}
	}
}

// ours is how the requests begin that are served here.
const ours = "POST /v1/"

// serveOne serves a request, and reports whether another may follow.
func (c *conn) serveOne() bool {
	c.head = maxHead
	r, err := http.ReadRequest(c.reader)
	c.head = math.MaxInt
	t := newTail(c, r)
	defer t.close()
	switch {
	case err == nil:
		err = c.server.agent.serve(t, r)
	case errors.Is(err, errHeadTooLarge):
		err = refuse(http.StatusRequestHeaderFieldsTooLarge, "the head of the request is larger than %d bytes", maxHead)
	case c.left.Load(), tooLate(err):
		return false
	default:
		err = refuse(http.StatusBadRequest, "not a request of HTTP/1.1")
	}
	if err != nil {
		t.refuse(err)
	}
	return t.close()
}

// writePatience is how long a client may leave a response unread once all buffers on the way to it are full.
const writePatience = 10 * time.Second

// writeSoon writes what the client must make room for within writePatience.
func (c *conn) writeSoon(p []byte) (int, error) {
	c.setWriteBy(time.Now().Add(writePatience))
	defer c.setWriteBy(time.Time{})
	return c.Write(p)
}

func (c *conn) setWriteBy(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
}

// appendHead appends the first lines of the head of a response, after which no other may follow if it is the last.
func (c *conn) appendHead(to []byte, status int, last bool) []byte {
	to = append(to, "HTTP/1.1 "...)
	to = strconv.AppendInt(to, int64(status), 10)
	to = append(append(to, ' '), http.StatusText(status)...)
	to = append(to, "\r\nRedlock-Agent: "+version+"\r\nDate: "...)
	to = append(to, *c.server.date.Load()...)
	if last {
		to = append(to, "\r\nConnection: close"...)
	}
	return append(to, "\r\n"...)
}

// handedConn is a connection of which net/http's server reads what was read already. It sets the deadlines itself.
type handedConn struct{ *conn }

func (c *handedConn) Read(p []byte) (int, error) {
	if n := c.reader.Buffered(); n > 0 {
		return c.reader.Read(p[:min(len(p), n)])
	}
	return c.Conn.Read(p)
}

// tooLate reports whether an error is that of a deadline of the connection.
func tooLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isClosed reports whether an error of a connection says that the other side has closed it.
func isClosed(err error) bool {
	return err != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

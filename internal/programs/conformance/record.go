package conformance

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// record is what clients and an agent have sent to each other, as docs/protocol.md writes it.
type record struct {
	began time.Time

	mu    sync.Mutex
	lines []string
	count int           // of connections
	all   []*recorded   // the connections that may be open
	still chan struct{} // not nil: nothing arrives until it is closed
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "")
}

// note adds what one side has sent. A transcript writes a newline that isn't one of HTTP as \n.
func (r *record) note(number int, direction string, sent []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.ReplaceAll(strings.ReplaceAll(string(bytes.ToValidUTF8(sent, []byte("?"))), "\r\n", "\r"), "\n", `\n`)
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\r"), "\r") {
		r.lines = append(r.lines, fmt.Sprintf("%.3fs connection %d %s %s\n", time.Since(r.began).Seconds(), number, direction, line))
	}
}

// freeze has nothing arrive any more, and lets the clients believe that all is well, until thaw is called.
func (r *record) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.still = make(chan struct{})
}

func (r *record) thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.still != nil {
		close(r.still)
		r.still = nil
	}
}

func (r *record) wait() {
	r.mu.Lock()
	still := r.still
	r.mu.Unlock()
	if still != nil {
		<-still
	}
}

// cut closes all connections.
func (r *record) cut() {
	r.mu.Lock()
	all := r.all
	r.all = nil
	r.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// recording is a listener whose connections are recorded.
type recording struct {
	net.Listener
	*record
}

func (l recording) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	c := &recorded{accepted, l.record, l.count}
	l.all = append(l.all, c)
	return c, nil
}

type recorded struct {
	net.Conn
	*record
	number int
}

func (c *recorded) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	if n > 0 {
		c.note(c.number, ">", p[:n])
	}
	return n, err
}

func (c *recorded) Write(p []byte) (int, error) {
	c.wait()
	c.note(c.number, "<", p)
	return c.Conn.Write(p)
}

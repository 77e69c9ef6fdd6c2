package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tail is what a client still says after the lines of its request: marks, each a newline in the body that it keeps open, and the end.
//
// It is read by the goroutine that serves the request, as soon as that has its lock. Before, a second one reads if the wait lasts,
// and then goes on with that.
type tail struct {
	conn   *conn
	open   bool            // the body may stay open
	all    io.Reader       // the body
	body   io.Reader       // the rest of it
	word   []byte          // the beginning of the last line in it that isn't empty
	whole  bool            // whether that line has ended
	last   bool            // no request follows on the connection
	told   bool            // the response has ended
	ctx    context.Context // of the wait for the lock: it ends when the client ends its request, or its connection has
	cancel context.CancelCauseFunc
	asked  bool          // for a lock: another goroutine may read
	ended  chan struct{} // closed when nothing more is read
	// lingers says that the end of the connection isn't that of the client's work: what it has started may still run.
	lingers bool

	mu       sync.Mutex
	held     bool      // there is no wait any more
	mark     int64     // the newest, counted from 1; 0 is the request itself
	received time.Time // when that had been received, at the latest
	atEnd    bool      // of the body
}

// moment is how long a client that was told may take to end its request, so that its connection can be used again.
const moment = time.Second

// newTail returns the tail of a request that has just arrived. A request that can't be read is nil.
func newTail(c *conn, r *http.Request) *tail {
	t := &tail{conn: c, received: time.Now(), ended: make(chan struct{}), all: c.reader, last: true}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	if r != nil {
		t.all, t.open, t.last = r.Body, r.ContentLength < 0, r.Close
	}
	return t
}

// lines returns a reader of the body, before anything else reads it. If the client waits to be asked for the body, it is.
func (t *tail) lines(r *http.Request) (*bufio.Reader, error) {
	t.conn.within(lineTimeout)
	t.conn.lines.Reset(t.all)
	t.body = t.conn.lines
	if !strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return t.conn.lines, nil
	}
	_, err := t.conn.writeSoon([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	return t.conn.lines, err
}

// watch has ctx end with the client, from now on: nobody else reads until attend is called.
func (t *tail) watch() {
	t.conn.withoutLimit()
	t.asked = true
	t.conn.setLater(t.read)
}

// attend reads until the client has ended its request, or has left, or tick says so. It calls tick now, after each mark, and when the
// deadline has come, which tick sets. Without a tick, the present deadline counts.
func (t *tail) attend(tick func() bool) {
	t.mu.Lock()
	t.held = true
	t.mu.Unlock()
	t.conn.setTick(tick)
	defer t.conn.setTick(nil)
	switch {
	case t.asked && t.conn.setLater(nil):
		t.conn.wake()
		<-t.ended
	case tick == nil || tick():
		t.read()
	}
	t.asked = false
}

func (t *tail) read() {
	defer close(t.ended)
	for {
		err := t.next()
		t.mu.Lock()
		t.atEnd = t.atEnd || err == io.EOF && t.open
		held := t.held
		t.mu.Unlock()
		switch {
		case err == nil:
			continue
		case !held:
			t.cancel(context.Canceled)
		}
		return
	}
}

// next waits for more of the request.
func (t *tail) next() error {
	if !t.open {
		if _, err := t.conn.reader.Peek(1); err != nil {
			return err
		}
		return errors.New("the request is followed by another one while it lasts")
	}
	buffer := t.conn.said[:]
	n, err := t.body.Read(buffer)
	now := time.Now() // after the read: the client has sent the mark before
	marks := t.count(buffer[:n])
	t.mu.Lock()
	if marks > 0 {
		t.mark += marks
		t.received = now
	}
	held := t.held
	t.mu.Unlock()
	if err == nil && marks > 0 && held && !t.conn.onTime() {
		err = errLeft
	}
	return err
}

// count returns how many marks there are, and keeps the beginning of the last line between them.
func (t *tail) count(said []byte) (marks int64) {
	for _, c := range said {
		switch {
		case c == '\n':
			marks++
			t.whole = true
			continue
		case t.whole:
			t.word, t.whole = t.word[:0], false
		}
		if len(t.word) < 2*len(done) {
			t.word = append(t.word, c)
		}
	}
	return marks
}

// done is the word with which a client ends its body whose work is done, so that it need not be done again in this period.
const done = "done"

// saidDone reports whether the last line that isn't empty is the word done. It must not be called before attend has returned.
func (t *tail) saidDone() bool { return string(t.word) == done }

// refuse answers a request that hasn't got its lock. The client may still end its body in order, and use the connection again: it has
// a moment for that.
func (t *tail) refuse(err error) {
	if !t.tell(responseOf(t.ctx, err)) {
		return
	}
	if t.asked && !t.open {
		t.conn.within(0)
	} else {
		t.conn.within(moment)
	}
	if t.asked {
		t.attend(nil)
		return
	}
	_, err = io.CopyN(io.Discard, t.all, maxTurnLine) // a connection that is closed with unread bytes loses the response
	t.atEnd = err == io.EOF
}

// tell sends a whole response, and reports whether that went well.
func (t *tail) tell(response *buffered) bool {
	c := t.conn
	response.header.Set("Content-Length", strconv.Itoa(response.Len()))
	out := bytes.NewBuffer(c.appendHead(c.out[:0], response.status, t.last))
	_ = response.header.Write(out)
	out.WriteString("\r\n")
	out.Write(response.Bytes())
	_, err := c.writeSoon(out.Bytes())
	t.told = err == nil
	return t.told
}

// close ends what still reads. It reports whether another request may follow.
func (t *tail) close() bool {
	if t.asked {
		t.conn.within(0)
		t.attend(nil)
	}
	t.cancel(nil)
	return t.told && t.atEnd && !t.last
}

// newest returns the newest mark, and when it was received.
func (t *tail) newest() (mark int64, received time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mark, t.received
}

// endedInOrder reports whether the client has ended the body of its request in order.
func (t *tail) endedInOrder() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open && t.atEnd
}

// left reports whether it is certain that the client, or its kernel, has closed the connection. A connection that was given up because
// nothing was heard of the client for a while says nothing: the client may be alive, and rely on its lock.
func (t *tail) left() bool { return !t.lingers && t.conn.left.Load() }

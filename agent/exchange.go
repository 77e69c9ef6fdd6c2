package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// exchange is a request for a path below /v1/, and its response. The two overlap: the client keeps the request's body open and sends marks in it,
// while the response says how long the lock is valid. A mark is a newline.
type exchange struct {
	w       http.ResponseWriter
	control *http.ResponseController
	conn    *conn
	open    bool // the body's length isn't declared, so the client may keep the body open
	lines   *bufio.Reader
	lingers bool // when the connection ends, a program that the client has started may still run and need the lock
	reads   bool // a goroutine other than the handler's reads the body

	wait     context.Context // of the wait for the lock; ends if the client ends its request or its connection before the wait is over
	stopWait context.CancelCauseFunc
	ended    <-chan struct{} // closed when the client can send nothing more
	marked   chan struct{}   // has an element after a new mark

	mu       sync.Mutex
	held     bool      // the wait for the lock is over
	mark     int64     // the number of the newest mark; 0 stands for the request itself
	received time.Time // a time at which the newest mark had already been received
	word     []byte    // the beginning of the body's last line that isn't empty
	most     int       // the longest allowed line; word has at most one byte more
	wordEnds bool
	atEnd    bool
}

// moment is how long a client may take to end its request after the last line of the response.
const moment = time.Second

func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{w: w, control: http.NewResponseController(w), conn: connOf(r), open: r.ContentLength < 0, lines: bufio.NewReaderSize(r.Body, 512), received: time.Now(), most: len(done) + 1}
	_ = x.control.EnableFullDuplex()
	ctx := r.Context()
	if x.ended = ctx.Done(); x.open {
		ctx = context.WithoutCancel(ctx) // net/http's server cancels ctx when the connection ends, and the client may still rely on its lock then
		x.marked = make(chan struct{}, 1)
	}
	x.wait, x.stopWait = context.WithCancelCause(ctx)
	return x
}

// watch makes the wait for the lock end when the client leaves. After this call no other goroutine may read the body.
func (x *exchange) watch() {
	_ = x.control.SetReadDeadline(time.Time{})
	if !x.open {
		x.conn.whole.Store(true) // the whole request was read, so net/http's server watches the connection
		return
	}
	ended := make(chan struct{})
	x.reads, x.ended = true, ended
	go func() {
		defer close(ended)
		x.listen()
	}()
}

// minPulse is the shortest interval between two interim responses that a client may ask for.
const minPulse = 10 * time.Millisecond

// pulse sends an interim response at each interval until stop is called. These responses tell a client that waits long that the agent doesn't hang.
func (x *exchange) pulse(every time.Duration) (stop func()) {
	if every == 0 {
		return func() {}
	}
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(every, func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		_ = x.control.SetWriteDeadline(time.Now().Add(writePatience))
		x.w.WriteHeader(http.StatusProcessing)
		timer.Reset(every)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// endWait notes that the wait for the lock is over. From now on the end of the request doesn't end the context of the wait.
func (x *exchange) endWait() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.held = true
}

// listen reads the body until the client has ended its request or has left.
func (x *exchange) listen() {
	for {
		_, err := x.lines.Peek(1)
		now := time.Now() // only after Peek: with a time before the mark came, the response would promise the lock for too long
		said, _ := x.lines.Peek(x.lines.Buffered())
		x.mu.Lock()
		if marks := x.count(said); marks > 0 {
			x.mark += marks
			x.received = now
			select {
			case x.marked <- struct{}{}:
			default:
			}
		}
		x.atEnd = err == io.EOF
		if err != nil && !x.held {
			x.stopWait(context.Canceled)
		}
		x.mu.Unlock()
		if err != nil {
			return
		}
		_, _ = x.lines.Discard(len(said))
	}
}

// count counts the marks in these bytes, and keeps the beginning of the last line.
func (x *exchange) count(said []byte) (marks int64) {
	for _, c := range said {
		switch {
		case c == '\n':
			marks++
			x.wordEnds = true
			continue
		case x.wordEnds:
			x.word, x.wordEnds = x.word[:0], false
		}
		if len(x.word) <= x.most { // one byte more than allowed shows that the line is too long
			x.word = append(x.word, c)
		}
	}
	return marks
}

// done is the word with which a client ends its body when the work is done. With once_per or once, nobody then does the work again in that period.
const done = "done"

// saidDone reports whether the last non-empty line is the word done, or begins with done and a space. result is the rest of the line; tooLong means
// that the rest was too long to be kept.
func (x *exchange) saidDone() (result []byte, said, tooLong bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	rest, said := bytes.CutPrefix(x.word, []byte(done))
	if !said || len(rest) > 0 && rest[0] != ' ' {
		return nil, false, false
	}
	return bytes.TrimPrefix(rest, []byte(" ")), true, len(x.word) > x.most
}

func (x *exchange) newest() (mark int64, received time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mark, x.received
}

// endedInOrder reports whether the client kept its body open, and then ended it.
func (x *exchange) endedInOrder() bool { return x.open && x.isAtEnd() }

func (x *exchange) isAtEnd() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.atEnd
}

func (x *exchange) tell(response *buffered) {
	x.conn.whole.Store(false)
	_ = x.control.SetWriteDeadline(time.Now().Add(writePatience))
	response.header.Set("Content-Length", strconv.Itoa(response.Len()))
	maps.Copy(x.w.Header(), response.header)
	x.w.WriteHeader(response.status)
	_, _ = x.w.Write(response.Bytes()) // the client may have left
	_ = x.control.Flush()
}

// close ends the exchange after the response. If the client ends its body in order within a moment, it can use the connection again. Otherwise close
// closes the connection, because the server could take the rest of the body for the client's next request.
func (x *exchange) close() {
	x.stopWait(nil)
	if !x.isAtEnd() {
		_ = x.control.SetReadDeadline(time.Now().Add(moment))
		if x.reads {
			<-x.ended
		} else {
			x.listen()
		}
	}
	if !x.isAtEnd() {
		panic(http.ErrAbortHandler)
	}
}

func tooLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

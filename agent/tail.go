package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// tail is what a client still says after its request: marks, each a newline in the body that it keeps open, and the end.
type tail struct {
	ctx  context.Context // of the request; it ends when the client has ended that, or its connection has
	news chan struct{}   // gets a value after a new mark
	stop func()          // ends the reader, and waits for it; nil if there is none
	// lingers says that the end of the connection isn't that of the client's work: what it has started may still run.
	lingers bool

	mu       sync.Mutex
	mark     int64     // the newest, counted from 1; 0 is the request itself
	received time.Time // when that had been received, at the latest
	inOrder  bool      // the client has ended the body
}

// newTail returns the tail of a request that arrived at this time. If its body was sent as a whole, only the connection can end.
func newTail(r *http.Request, arrived time.Time) *tail {
	return &tail{ctx: r.Context(), news: make(chan struct{}, 1), received: arrived}
}

// follow reads the rest of a body that the client keeps open, in a goroutine that ends with it, or when close is called.
func (t *tail) follow(body io.Reader, control *http.ResponseController) {
	ctx, cancel := context.WithCancel(t.ctx)
	t.ctx = ctx
	ended := make(chan struct{})
	go func() {
		defer cancel() // last: whoever sees the end finds ended closed
		defer close(ended)
		t.read(body)
	}()
	t.stop = func() {
		select {
		case <-ended:
			return
		default:
		}
		// The client may end its body right now, and then net/http reads the next request already: if the deadline struck there, it
		// would cancel that. So the client has a moment, after which the connection is used no more.
		_ = control.SetReadDeadline(time.Now().Add(moment))
		<-ended
		if t.endedInOrder() {
			_ = control.SetReadDeadline(time.Time{})
		}
	}
}

// close ends the reader, if there is one: a handler must not return before it. If the client has not ended its body, the connection
// is not used again.
func (t *tail) close() {
	if t.stop == nil {
		return
	}
	t.stop()
	if c, ok := t.ctx.Value(connKey{}).(*conn); ok && !t.endedInOrder() {
		c.spent.Store(true)
	}
}

func (t *tail) read(body io.Reader) {
	var buffer [256]byte
	for {
		n, err := body.Read(buffer[:])
		now := time.Now() // after the read: the client has sent the mark before
		t.mu.Lock()
		marked := false
		for _, c := range buffer[:n] {
			if c == '\n' {
				t.mark++
				t.received = now
				marked = true
			}
		}
		t.inOrder = err == io.EOF
		t.mu.Unlock()
		if marked {
			select {
			case t.news <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
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
	return t.inOrder
}

// left reports whether it is certain that the client, or its kernel, has closed the connection of a tail that has ended. A connection
// that was given up because nothing was heard of the client for a while says nothing: the client may be alive, and rely on its lock.
func (t *tail) left() bool {
	if t.lingers {
		return false
	}
	if c, ok := t.ctx.Value(connKey{}).(*conn); ok {
		return c.left.Load()
	}
	return isUnix(t.ctx)
}

// closed reports whether an error of the connection says that the client has closed it, and relies on nothing any more.
func (t *tail) closed(err error) bool {
	return !t.lingers && isClosed(err)
}

// isClosed reports whether an error of a connection says that the other side has closed it.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

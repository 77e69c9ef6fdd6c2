package response

import (
	"io"
	"sync"
)

// Buffer is the memory in which a response waits for its client.
type Buffer struct {
	Most   int64                 // the most bytes that may wait
	Take   func(more int64) bool // takes room for more bytes, and reports whether it could; it doesn't wait
	Settle func(keep int64)      // gives back all room except for keep bytes
}

const (
	firstRoom = 4 << 10
	enough    = piece // this many bytes are sent even before the handler is done
)

// queue holds the bytes that a handler has written and the client hasn't taken yet. The handler waits only if there is no more room. So the handler
// is done, and its lock is free, when the response is complete, however slowly the client takes the response. A goroutine sends the bytes when the
// handler flushes, or when there are enough of them. All other bytes are sent when the lock is free.
type queue struct {
	Buffer
	*sender

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte
	spare   []byte // the memory of bytes that were sent, for further bytes
	taken   int    // the size of the memory that is being sent
	sends   bool
	flushes bool // a flush follows the waiting bytes
	closed  bool
	full    bool          // the handler had to wait for room
	err     error         // the connection's error; bytes written after it are dropped
	broken  any           // the value of the writer's panic in the goroutine; nil for none
	done    chan struct{} // closed when the goroutine has ended; nil if there is none
}

func newQueue(b Buffer, s *sender) *queue {
	q := &queue{Buffer: b, sender: s}
	q.changed.L = &q.mu
	return q
}

func (q *queue) write(p []byte) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && n < len(p) {
		room := q.grow(len(p) - n)
		q.waiting = append(q.waiting, p[n:n+room]...)
		n += room
		q.full = q.full || room == 0
		switch {
		case room > 0 && len(q.waiting) < enough:
		case room > 0:
			q.send()
		case q.sends || q.flushes || len(q.waiting) > 0:
			q.send()
			q.changed.Wait()
		default: // the budget has no room, so the handler itself sends these bytes
			q.pass(p[n:], false)
			n = len(p)
		}
	}
	return n, q.err
}

// grow makes room for this many more bytes, or for as many of them as it can, and returns how many.
func (q *queue) grow(more int) int {
	if need := len(q.waiting) + more; need > cap(q.waiting) {
		size := min(max(need, 2*cap(q.waiting), firstRoom), int(q.Most)-q.taken-cap(q.spare))
		if size > cap(q.waiting) && q.Take(int64(size-cap(q.waiting))) {
			q.waiting = append(make([]byte, 0, size), q.waiting...)
		}
	}
	return min(more, cap(q.waiting)-len(q.waiting))
}

// flush makes the goroutine send all bytes written so far. It doesn't wait until they are sent.
func (q *queue) flush() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushes = true
	q.send()
	return q.err
}

// send starts the goroutine that sends, or wakes it.
func (q *queue) send() {
	if q.done == nil {
		q.done = make(chan struct{})
		go q.run()
	}
	q.changed.Broadcast()
}

func (q *queue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for q.err == nil && !q.closed && len(q.waiting) == 0 && !q.flushes {
			q.changed.Wait()
		}
		if !q.sendSome() {
			return
		}
	}
}

// sendSome sends the waiting bytes, and reports whether there were any.
func (q *queue) sendSome() bool {
	if q.err != nil || len(q.waiting) == 0 && !q.flushes {
		return false
	}
	batch, flushes := q.waiting, q.flushes
	q.waiting, q.spare, q.flushes, q.taken = q.spare[:0], nil, false, cap(batch)
	q.pass(batch, flushes)
	q.taken = 0
	switch {
	case q.err != nil:
		q.waiting = nil
	case cap(batch) > 2*enough: // drop this memory, which has grown while the client was slow
	case cap(q.waiting) == 0:
		q.waiting = batch[:0]
	default:
		q.spare = batch[:0]
	}
	q.Settle(int64(cap(q.waiting) + cap(q.spare)))
	q.changed.Broadcast()
	return true
}

// pass sends bytes to the client without the mutex. If the writer panics, pass keeps the value, and end panics with it in the handler's
// goroutine, where the server recovers.
func (q *queue) pass(p []byte, flushes bool) {
	q.sends = true
	q.mu.Unlock()
	var err error
	defer func() {
		broken := recover()
		q.mu.Lock()
		if q.sends = false; broken != nil {
			q.broken, err = broken, io.ErrClosedPipe
		}
		q.err = err
	}()
	if len(p) > 0 {
		_, err = q.sender.write(p)
	}
	if err == nil && flushes {
		err = q.sender.flush()
	}
}

// end sends the rest, and frees the memory. Nothing uses the writer after that. If the handler has panicked, end flushes, because the server
// would drop the bytes.
func (q *queue) end(panicked bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.flushes = q.flushes || panicked
	q.changed.Broadcast()
	if q.done != nil {
		q.mu.Unlock()
		<-q.done
		q.mu.Lock()
	}
	for q.sendSome() {
	}
	q.waiting, q.spare = nil, nil
	q.Settle(0)
	if q.broken != nil && !panicked {
		panic(q.broken)
	}
	return q.err
}

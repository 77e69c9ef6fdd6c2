package response

import (
	"io"
	"sync"
)

// Buffer is where a response waits for its client.
type Buffer struct {
	Most   int64                 // bytes
	Take   func(more int64) bool // takes room for so many; it doesn't wait
	Settle func(keep int64)      // gives back all room but so many bytes
}

const (
	firstRoom = 4 << 10
	enough    = piece // bytes that are sent although the handler is not done
)

// queue has what a handler has written and its client has not taken yet. The handler waits only if there is no more room: it is
// done, and its lock is free, when the response is complete, however slowly the client takes it. A goroutine sends what was flushed,
// and what is enough; a response that is neither is sent when the lock is free.
type queue struct {
	Buffer
	*sender

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte
	spare   []byte // the memory of what was sent before
	taken   int    // bytes of memory of what is being sent
	sends   bool
	flushes bool // behind what waits
	closed  bool
	full    bool          // the handler had to wait
	err     error         // of the connection: what is written from then on is lost
	broken  any           // what the sender panicked with
	done    chan struct{} // of the goroutine; nil for none
}

func newQueue(b Buffer, s *sender) *queue {
	q := &queue{Buffer: b, sender: s}
	q.changed.L = &q.mu
	return q
}

// write is for the handler.
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
		default: // there is no room at all
			q.pass(p[n:], false)
			n = len(p)
		}
	}
	return n, q.err
}

// grow makes room for more bytes, or for as many as it can.
func (q *queue) grow(more int) int {
	if need := len(q.waiting) + more; need > cap(q.waiting) {
		size := min(max(need, 2*cap(q.waiting), firstRoom), int(q.Most)-q.taken-cap(q.spare))
		if size > cap(q.waiting) && q.Take(int64(size-cap(q.waiting))) {
			q.waiting = append(make([]byte, 0, size), q.waiting...)
		}
	}
	return min(more, cap(q.waiting)-len(q.waiting))
}

// flush has all that was written sent, and doesn't wait for that.
func (q *queue) flush() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushes = true
	q.send()
	return q.err
}

// send starts the goroutine, or wakes it.
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

// sendSome sends what waits, and reports whether anything did.
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
	case cap(batch) > 2*enough: // it was for a client that is slow
	case cap(q.waiting) == 0:
		q.waiting = batch[:0]
	default:
		q.spare = batch[:0]
	}
	q.Settle(int64(cap(q.waiting) + cap(q.spare)))
	q.changed.Broadcast()
	return true
}

// pass passes on what is next, without the mutex. A panic of the writer waits for the goroutine in which the server recovers from it.
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

// end sends the rest, and frees the memory. From then on nothing uses the writer. What a handler has written that has panicked is flushed,
// as the server would drop it.
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

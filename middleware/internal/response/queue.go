package response

import (
	"io"
	"runtime"
	"sync"
)

// Buffer is the memory in which a response waits for its client.
type Buffer struct {
	Most   int64                 // the most bytes that may wait
	Take   func(more int64) bool // takes room for more bytes, and reports whether it could; it doesn't wait
	Settle func(keep int64)      // gives back all room except for keep bytes
}

const (
	firstPiece = 4 << 10
	enough     = piece // this many bytes are sent even before the handler is done
)

// queue holds the bytes that a handler has written and the client hasn't taken yet. The handler waits only if there is no more room. So the handler
// is done, and its lock is free, when the response is complete, however slowly the client takes the response. A goroutine sends the bytes when the
// handler flushes, or when there are enough of them. All other bytes are sent when the lock is free.
//
// The bytes wait in pieces of memory, each of which is sent as it is. So no byte is copied twice, and what was sent takes no more memory. A piece is
// used for one response only: a writer that wrongly keeps one never sees the response to another client.
type queue struct {
	Buffer
	*sender

	mu      sync.Mutex
	changed sync.Cond
	waiting [][]byte // the pieces; the handler continues to fill the last one
	bytes   int      // the number of bytes in them
	spare   []byte   // a piece that was sent, for further bytes
	next    int      // the size of the next new piece
	has     int      // the size of all pieces: those that wait, the one that is being sent, and the spare one
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
		if q.bytes >= enough && q.spare == nil {
			if q.letSend(); q.err != nil { // the goroutine has ended, so nothing would make room
				break
			}
		}
		some := q.add(p[n:])
		n += some
		q.full = q.full || some == 0
		switch {
		case some > 0 && q.bytes < enough:
		case some > 0:
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

// letSend lets the goroutine that sends run before the handler takes further memory. A client that takes the waiting bytes at once frees their piece
// for the next ones. Otherwise the handler may fill fresh memory with the whole response before the goroutine runs, which takes twice the CPU time.
func (q *queue) letSend() {
	q.mu.Unlock()
	runtime.Gosched()
	q.mu.Lock()
}

// add copies bytes into the last piece, or into a further one if the last is full, and returns how many. It returns 0 if there is no room for a
// further piece.
func (q *queue) add(p []byte) int {
	last := len(q.waiting) - 1
	if last < 0 || len(q.waiting[last]) == cap(q.waiting[last]) {
		if !q.addPiece(len(p)) {
			return 0
		}
		last++
	}
	to := q.waiting[last]
	some := min(len(p), cap(to)-len(to))
	q.waiting[last] = append(to, p[:some]...)
	q.bytes += some
	return some
}

// addPiece adds an empty piece, and reports whether there was room for one. The first piece is small, because most responses are short.
func (q *queue) addPiece(wanted int) bool {
	if q.spare == nil {
		size := max(firstPiece, q.next)
		for size < min(wanted, piece) {
			size *= 2
		}
		size = min(size, int(q.Most)-q.has)
		if size <= 0 || !q.Take(int64(size)) {
			return false
		}
		q.has += size
		q.next = min(2*size, piece)
		q.spare = make([]byte, 0, size)
	}
	q.waiting, q.spare = append(q.waiting, q.spare), nil
	return true
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

// sendSome sends the first of the waiting pieces, and reports whether there was any.
func (q *queue) sendSome() bool {
	if q.err != nil || len(q.waiting) == 0 && !q.flushes {
		return false
	}
	var first []byte
	if len(q.waiting) > 0 {
		first, q.waiting[0] = q.waiting[0], nil
		q.waiting = q.waiting[1:]
		q.bytes -= len(first)
	}
	flushes := q.flushes && len(q.waiting) == 0
	q.flushes = q.flushes && !flushes
	q.pass(first, flushes)
	if cap(first) > cap(q.spare) {
		first, q.spare = q.spare, first[:0]
	}
	q.has -= cap(first)
	if q.err != nil {
		q.drop()
	}
	q.Settle(int64(q.has))
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
	q.drop()
	q.Settle(0)
	if q.broken != nil && !panicked {
		panic(q.broken)
	}
	return q.err
}

func (q *queue) drop() { q.waiting, q.spare, q.bytes, q.has = nil, nil, 0, 0 }

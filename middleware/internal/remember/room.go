package remember

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

const (
	copies      = 2                // how many copies of a response are in memory at once: the written bytes, and the encoded bytes
	roomTimeout = 10 * time.Second // how long a response waits for room
)

const MemorySize = 64 << 20

// Memory bounds how many bytes of this process's memory remembered responses take at once, over all rules. A response that is recorded takes room
// while its handler writes it, and the handler waits for the room. A response that is replayed takes room before it is decoded. A response that has
// its room waits for nothing else.
var Memory = budget.New(MemorySize)

// room is the part of Memory that one response has taken.
type room struct {
	client string

	mu      sync.Mutex
	portion *budget.Portion // nil until the first byte
	closed  bool            // a handler that writes after it has returned gets no room
}

// noWait is an ended context. With noWait, take doesn't wait for room.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// take takes room until the response has room for this many bytes, and reports whether it could. It waits for room until ctx ends.
func (r *room) take(ctx context.Context, bytes int) bool {
	r.mu.Lock()
	if r.portion == nil {
		r.portion = Memory.Portion(r.client, copies*maxPlain)
	}
	p, closed := r.portion, r.closed
	r.mu.Unlock()
	more := copies*int64(bytes) - p.Has()
	switch {
	case closed:
		return false
	case more <= 0:
		return true
	}
	granted := p.Take(ctx, more)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed { // closed while this call waited
		p.Settle(0)
	}
	return granted && !r.closed
}

func (r *room) settle(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.portion != nil {
		r.portion.Settle(copies * int64(bytes))
	}
}

// close gives back all room for good.
func (r *room) close() {
	r.settle(0)
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

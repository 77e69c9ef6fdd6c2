package remember

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

const (
	copies      = 2                // of a response that are in memory at once: as it is written, and as it is stored
	roomTimeout = 10 * time.Second // for which a response waits for room
)

// MemorySize is how many bytes Memory has.
const MemorySize = 64 << 20

// Memory bounds the bytes of the responses that are in memory because they are remembered, over all rules. One that is recorded
// takes room while it is written, for which its handler waits; one that is replayed, before it is decoded. What has room to be
// stored, or to be replayed, waits for no more.
var Memory = budget.New(MemorySize)

// room is what the response to a request has of the Memory.
type room struct {
	client string

	mu      sync.Mutex
	portion *budget.Portion // nil before the first byte
	closed  bool            // what writes after its handler has returned takes none
}

// noWait is for room that is free now.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// take takes room for a response of so many bytes in all, within the wait that ctx allows, and reports whether there was any.
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
	if r.closed { // meanwhile
		p.Settle(0)
	}
	return granted && !r.closed
}

// settle gives back all room but that for so many bytes.
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

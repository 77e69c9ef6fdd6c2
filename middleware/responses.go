package middleware

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// DefaultResponseTimeout is how long a client may keep a response waiting unless something else is set.
const DefaultResponseTimeout = 10 * time.Second

const (
	responseCopies = 2                                      // of a response that are in memory at once: as it is written, and as it is stored
	responseMost   = responseCopies * 4 * redlock.MaxResult // sealed, opened and expanded
	responseTime   = 10 * time.Second                       // for which a response waits for room
)

// responseBudget bounds the bytes of the responses that are in memory because they are remembered, over all rules. One that is recorded
// takes room while it is written, for which its handler waits; one that is replayed, before it is decoded. What has room to be
// stored, or to be replayed, waits for no more.
var responseBudget = budget.New(DefaultResponseBudget)

// DefaultResponseBudget is how many bytes the responses may take in memory at once that are being recorded, stored and replayed.
const DefaultResponseBudget = 64 << 20

// errNoRoom reports a request whose response is remembered, and finds no room in memory.
var errNoRoom = fmt.Errorf("%w: other responses take all the memory that there is for them", redlock.ErrUnreadable)

// responseRoom is what the response to a request has of the budget.
type responseRoom struct {
	mu      sync.Mutex
	portion *budget.Portion // nil before the first byte
	left    bool     // for good: what writes after its handler has returned takes none
}

// noWait is for room that is free now.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// take takes room for a response of so many bytes in all, within the wait that ctx allows, and reports whether there was any.
func (r *responseRoom) take(ctx context.Context, client string, bytes int) bool {
	r.mu.Lock()
	if r.portion == nil {
		r.portion = responseBudget.Portion(client, responseMost)
	}
	p, left := r.portion, r.left
	r.mu.Unlock()
	more := responseCopies*int64(bytes) - p.Has()
	switch {
	case left:
		return false
	case more <= 0:
		return true
	}
	granted := p.Take(ctx, more)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left { // meanwhile
		p.Settle(0)
	}
	return granted && !r.left
}

// settle gives back all room but that for so many bytes.
func (r *responseRoom) settle(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.portion != nil {
		r.portion.Settle(responseCopies * int64(bytes))
	}
}

// leave gives back all room for good.
func (r *responseRoom) leave() {
	r.settle(0)
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
}

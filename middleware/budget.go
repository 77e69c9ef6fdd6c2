package middleware

import (
	"context"
	"slices"
	"sync"
)

// DefaultBodyBudget is the size in bytes of the budget that is shared by all rules without one of their own.
const DefaultBodyBudget = 64 << 20

const (
	smallBody = 16 << 10 // bytes; most bodies are smaller
	keptPart  = 8        // one part in so many of a budget is reserved for small bodies
	share     = 3        // a client may have so many times what it leaves to others
)

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds the bytes of request bodies that are in memory at once, over all rules that share it. A body takes room as it
// arrives, whatever length it declares. If it finds none it waits, within its BodyTimeout; in a dry run it doesn't wait. A part of
// the budget is reserved for bodies up to 16 KiB, and no client takes more than three times what it leaves to others: clients that
// send much, or slowly, don't keep others out.
//
// A budget should be at least twice the largest MaxBody of its rules; a smaller one has no room for small bodies next to a large
// one.
type Budget struct {
	size int64

	mu      sync.Mutex
	largest int64       // MaxBody, of all rules whose bodies were here
	pools   [pools]pool // by kind of room
	line    []*waiting
	first   *portion // of the one body that may use the last room
}

// The kinds of room.
const (
	common = iota
	small  // for small bodies
	last   // for the first in line; as large as a body may be
	pools
)

// Bodies that have arrived in part, and wait for room for the rest, hold what others wait for. They don't wait for each other
// for ever, because one of them, the first in line, can always be completed: the last room is large enough for any body, and it
// is used only by bodies that were first before and are complete now. Their handlers, like those of all complete bodies, wait for
// no room. When the first is complete, or has run out of time, the next one becomes the first. (If a rule has a larger MaxBody
// than all rules whose bodies came before, the last room may be too small for it until the others are done.)

// NewBudget returns a budget of so many bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget {
	b := &Budget{size: size}
	for kind := range b.pools {
		b.pools[kind].of = make(map[string]int64)
	}
	return b
}

// DefaultBudget returns the budget that is shared by all rules without one of their own.
func DefaultBudget() *Budget { return defaultBudget }

// Usage returns how many bytes the bodies that are in memory take, and how many they may take.
func (b *Budget) Usage() (used, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pool := range b.pools {
		used += pool.used
	}
	return used, b.size
}

// pool is one kind of room in a budget.
type pool struct {
	used int64
	of   map[string]int64 // by client
}

// leaves reports whether a client that takes so much more leaves enough of the limit to others.
func (p *pool) leaves(client string, more, limit int64) bool {
	left := limit - p.used - more
	return left >= 0 && (p.of[client]+more)/share <= left
}

func (p *pool) add(client string, bytes int64) {
	p.used += bytes
	if p.of[client] += bytes; p.of[client] == 0 {
		delete(p.of, client)
	}
}

// portion is what a body has of a budget.
type portion struct {
	budget *Budget
	client string
	taken  [pools]int64
}

func (p *portion) held() (bytes int64) {
	for _, taken := range p.taken {
		bytes += taken
	}
	return bytes
}

// has is held for a portion whose budget others use.
func (p *portion) has() int64 {
	p.budget.mu.Lock()
	defer p.budget.mu.Unlock()
	return p.held()
}

func (p *portion) add(kind int, bytes int64) {
	p.taken[kind] += bytes
	p.budget.pools[kind].add(p.client, bytes)
}

// waiting is a portion that waits for more.
type waiting struct {
	portion *portion
	more    int64
	granted chan struct{}
}

// room returns how much the budget has of a kind.
func (b *Budget) room(kind int) int64 {
	kept := max(0, min(b.size/keptPart, b.size-b.largest))
	return [pools]int64{b.size - kept - b.largest, kept, b.largest}[kind]
}

// grant takes more for a portion, and reports whether there was room.
func (b *Budget) grant(p *portion, more int64) bool {
	switch {
	case b.pools[common].leaves(p.client, more, b.room(common)):
		p.add(common, more)
	case p.held()+more <= smallBody && b.pools[small].leaves(p.client, more, b.room(small)):
		p.add(small, more)
	case p == b.first && b.pools[last].used+more <= b.room(last):
		p.add(last, more)
	default:
		return false
	}
	return true
}

// serveLine gives room to the portions that wait, in the order in which they came.
func (b *Budget) serveLine() {
	serve := func() {
		b.line = slices.DeleteFunc(b.line, func(w *waiting) bool {
			if !b.grant(w.portion, w.more) {
				return false
			}
			close(w.granted)
			return true
		})
	}
	if serve(); b.first == nil && len(b.line) > 0 {
		b.first = b.line[0].portion
		serve()
	}
}

// portion returns an empty portion, for one body of a client.
func (b *Budget) portion(client string, most int64) *portion {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.largest = max(b.largest, most)
	return &portion{budget: b, client: client}
}

// trySpare takes more room if half of the room for large bodies remains free.
func (p *portion) trySpare(more int64) bool {
	b := p.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pools[common].leaves(p.client, more, b.room(common)/2) && b.grant(p, more)
}

// take waits for more room until ctx ends, and reports whether it has got it.
func (p *portion) take(ctx context.Context, more int64) bool {
	b := p.budget
	b.mu.Lock()
	if b.grant(p, more) {
		b.mu.Unlock()
		return true
	}
	w := &waiting{p, more, make(chan struct{})}
	b.line = append(b.line, w)
	b.serveLine()
	b.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.line, w)
	if i < 0 { // just in time
		return true
	}
	b.line = slices.Delete(b.line, i, i+1)
	return false
}

// settle gives back all but so many bytes. It is called when the body needs no more room, so that another can be the first.
func (p *portion) settle(keep int64) {
	b := p.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, kind := range []int{last, common, small} {
		p.add(kind, -min(p.taken[kind], max(0, p.held()-keep)))
	}
	if b.first == p {
		b.first = nil
	}
	b.serveLine()
}

// Package budget bounds what many take of one thing, such as memory, and keeps some of it for those that take little.
package budget

import (
	"context"
	"slices"
	"sync"
)

const (
	smallBody = 16 << 10 // bytes; most bodies are smaller
	keptPart  = 8        // one part in so many of a budget is reserved for small bodies
	share     = 3        // a client may have so many times what it leaves to others
)

// Budget bounds the bytes of bodies, or of responses, that are in memory at once. A body takes room as it arrives. If it finds none it
// waits. A part of the budget is reserved for bodies up to 16 KiB, and no client takes more than three times what it leaves to others.
type Budget struct {
	size int64

	mu      sync.Mutex
	largest int64       // body that may come, of all that were here
	pools   [pools]Pool // by kind of room
	line    []*waiting
	first   *Portion // of the one body that may use the last room
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
// no room. When the first is complete, or has run out of time, the next one becomes the first. (If a body may be larger than all
// that came before, the last room may be too small for it until the others are done.)

// New returns a budget of so many bytes. No body may be larger.
func New(size int64) *Budget {
	b := &Budget{size: size}
	for kind := range b.pools {
		b.pools[kind] = NewPool()
	}
	return b
}

// Size returns how many bytes may be in memory.
func (b *Budget) Size() int64 { return b.size }

// Waiting returns how many bodies wait for room.
func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.line)
}

// Usage returns how many bytes the bodies that are in memory take, and how many they may take.
func (b *Budget) Usage() (used, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pool := range b.pools {
		used += pool.used
	}
	return used, b.size
}

// Pool is one kind of room, which clients share. Its user holds a lock.
type Pool struct {
	used int64
	of   map[string]int64 // by client
}

// NewPool returns a Pool of which nothing is taken.
func NewPool() Pool { return Pool{of: make(map[string]int64)} }

// Used returns how much all clients have taken.
func (p *Pool) Used() int64 { return p.used }

// Leaves reports whether a client that takes so much more leaves enough of the limit to others.
func (p *Pool) Leaves(client string, more, limit int64) bool {
	left := limit - p.used - more
	return left >= 0 && (p.of[client]+more)/share <= left
}

// Add counts what a client takes or, if it is negative, gives back.
func (p *Pool) Add(client string, bytes int64) {
	p.used += bytes
	if p.of[client] += bytes; p.of[client] == 0 {
		delete(p.of, client)
	}
}

// Portion is what a body has of a budget.
type Portion struct {
	budget *Budget
	client string
	taken  [pools]int64
}

// Budget returns the budget of which it is a portion.
func (p *Portion) Budget() *Budget { return p.budget }

// Has returns how much room the portion has.
func (p *Portion) Has() int64 {
	p.budget.mu.Lock()
	defer p.budget.mu.Unlock()
	return p.has()
}

func (p *Portion) has() (bytes int64) {
	for _, taken := range p.taken {
		bytes += taken
	}
	return bytes
}

func (p *Portion) add(kind int, bytes int64) {
	p.taken[kind] += bytes
	p.budget.pools[kind].Add(p.client, bytes)
}

// waiting is a portion that waits for more.
type waiting struct {
	portion *Portion
	more    int64
	granted chan struct{}
}

// room returns how much the budget has of a kind.
func (b *Budget) room(kind int) int64 {
	kept := max(0, min(b.size/keptPart, b.size-b.largest))
	return [pools]int64{b.size - kept - b.largest, kept, b.largest}[kind]
}

// grant takes more for a portion, and reports whether there was room.
func (b *Budget) grant(p *Portion, more int64) bool {
	switch {
	case b.pools[common].Leaves(p.client, more, b.room(common)):
		p.add(common, more)
	case p.has()+more <= smallBody && b.pools[small].Leaves(p.client, more, b.room(small)):
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

// Portion returns an empty portion, for one body of a client, which may have at most so many bytes.
func (b *Budget) Portion(client string, most int64) *Portion {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.largest = max(b.largest, most)
	return &Portion{budget: b, client: client}
}

// TrySpare takes more room if half of the room for large bodies remains free.
func (p *Portion) TrySpare(more int64) bool {
	b := p.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pools[common].Leaves(p.client, more, b.room(common)/2) && b.grant(p, more)
}

// Take waits for more room until ctx ends, and reports whether it has got it.
func (p *Portion) Take(ctx context.Context, more int64) bool {
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

// Settle gives back all but so many bytes. It is called when the body needs no more room, so that another can be the first.
func (p *Portion) Settle(keep int64) {
	b := p.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, kind := range []int{last, common, small} {
		p.add(kind, -min(p.taken[kind], max(0, p.has()-keep)))
	}
	if b.first == p {
		b.first = nil
	}
	b.serveLine()
}

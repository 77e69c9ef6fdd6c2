// Package budget bounds how much memory, or another resource, all clients take together, and reserves a part for clients that take little.
package budget

import (
	"context"
	"slices"
	"sync"
)

const (
	smallBody = 16 << 10 // bytes; most bodies are smaller
	keptPart  = 8        // 1/keptPart of a budget is reserved for small bodies
	share     = 3        // a client may take this many times as much as it leaves free for others
)

// Budget bounds how many bytes of bodies, or of responses, are in memory at once. A body takes room as it arrives, and waits if there is none. A part
// of the budget is reserved for bodies of up to 16 KiB. No client takes more than three times as much as it leaves free for others.
type Budget struct {
	size int64

	mu      sync.Mutex
	largest int64       // the largest size that was allowed for a body so far
	pools   [pools]Pool // by kind of room
	line    []*waiting
	first   *Portion // the portion that may use the room "last"; nil for none
}

const (
	common = iota
	small  // reserved for small bodies
	last   // reserved for the first body in line; its size is that of the largest allowed body
	pools
)

// A body that waits for the rest of its room keeps the room that it has, and other bodies may wait for that room. Still, bodies can't wait for each
// other forever, because there is always room for the first body in line: the room "last" is large enough for any body, and only the first body takes
// from it. When the first body is complete, its handler waits for no more room. When it is complete, or has run out of time, the next body in line
// becomes the first. (If a body may be larger than all bodies before it, "last" may be too small for it until the others are done.)

// New returns a budget of size bytes. No body may be larger.
func New(size int64) *Budget {
	b := &Budget{size: size}
	for kind := range b.pools {
		b.pools[kind] = NewPool()
	}
	return b
}

func (b *Budget) Size() int64 { return b.size }

func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.line)
}

// Usage returns how many bytes all bodies in memory take now, and how many they may take.
func (b *Budget) Usage() (used, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pool := range b.pools {
		used += pool.used
	}
	return used, b.size
}

// Pool counts the room of one kind that each client has taken. It is not safe for concurrent use.
type Pool struct {
	used int64
	of   map[string]int64 // by client
}

func NewPool() Pool { return Pool{of: make(map[string]int64)} }

func (p *Pool) Used() int64 { return p.used }

// Leaves reports whether the client may take this much more. It may if it then leaves enough of the limit for other clients.
func (p *Pool) Leaves(client string, more, limit int64) bool {
	left := limit - p.used - more
	return left >= 0 && (p.of[client]+more)/share <= left
}

// Add counts bytes that a client takes or, if the number is negative, gives back.
func (p *Pool) Add(client string, bytes int64) {
	p.used += bytes
	if p.of[client] += bytes; p.of[client] == 0 {
		delete(p.of, client)
	}
}

// Portion is the part of a budget that one body has taken.
type Portion struct {
	budget *Budget
	client string
	taken  [pools]int64
}

func (p *Portion) Budget() *Budget { return p.budget }

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

type waiting struct {
	portion *Portion
	more    int64
	granted chan struct{}
}

// room returns how much of the budget is for one kind of room, taken or not.
func (b *Budget) room(kind int) int64 {
	kept := max(0, min(b.size/keptPart, b.size-b.largest))
	return [pools]int64{b.size - kept - b.largest, kept, b.largest}[kind]
}

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

// serveLine gives room to the waiting portions, in the order in which they came. It passes over a portion for which there isn't enough.
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

// Portion returns an empty portion for one body of a client. The body may have at most this many bytes.
func (b *Budget) Portion(client string, most int64) *Portion {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.largest = max(b.largest, most)
	return &Portion{budget: b, client: client}
}

// TrySpare takes more room if half of the room of the kind common remains free.
func (p *Portion) TrySpare(more int64) bool {
	b := p.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pools[common].Leaves(p.client, more, b.room(common)/2) && b.grant(p, more)
}

// Take waits for more room until ctx ends, and reports whether the portion got it.
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
	if i < 0 { // the room was granted just as ctx ended
		return true
	}
	b.line = slices.Delete(b.line, i, i+1)
	return false
}

// Settle gives back all room except for this many bytes. Call it when the body needs no more room, so that the next body in line becomes the first.
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

package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The properties that hold in every world.
const (
	exclusion = "no two hold a key at once"
	fencing   = "fences grow in the order of grants"
	noRefill  = "no lost lock is taken again for its old holder"
	allEnds   = "every lock ends, and leaves no key"
	inOrder   = "who came first has the lock first"
	awake     = "nobody sleeps while the lock is free"
)

// holder is a lock as its application knows it.
type holder struct {
	*Lock
	process  *process
	key      string
	others   []*holder // on other keys of the same lock
	order    int       // of the grants, over all keys
	granted  time.Duration
	unlocked time.Duration // 0 if never
	promised time.Duration // the end of the longest validity that a renewal was sent in
}

// until is the end of the validity so far.
func (h *holder) until() time.Duration { return h.Until().Sub(h.process.world.start) }

// end is when the lock was not certain any more.
func (h *holder) end() time.Duration {
	if h.unlocked > 0 {
		return min(h.unlocked, h.until())
	}
	return h.until()
}

func (w *world) granted(p *process, key string, lock *Lock) *holder {
	w.event("process %d holds %s by %s with fence %d until %v", p.index, key, short(lock.attempt.calls[0].Token), lock.Fence(), lock.Until().Sub(w.start))
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &holder{Lock: lock, process: p, key: key, order: len(w.held), granted: w.now()}
	w.held = append(w.held, h)
	w.tokens[lock.attempt.calls[0].Token] = h
	return h
}

// violated notes that a property doesn't hold.
func (w *world) violated(property, form string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, property+": "+fmt.Sprintf(form, args...))
	w.events = append(w.events, event{w.now(), "VIOLATION " + form, args})
}

// renewing notes the validity in which an extend is sent.
func (w *world) renewing(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.tokens[token]; h != nil {
		h.promised = max(h.promised, h.ownUntil().Sub(w.start))
	}
}

// refilled checks an extend that took the key anew. A server's clock that jumped back is late to see
// that the time for it is over.
func (w *world) refilled(s *simServer, token string) {
	w.mu.Lock()
	h, end := w.tokens[token], time.Duration(0)
	if h != nil {
		end = max(h.promised, h.ownUntil().Sub(w.start))
	}
	w.mu.Unlock()
	if late := w.now() - end; h != nil && late > max(-s.jump, 0) {
		w.violated(noRefill, "%s on server %d, %v after the end of its validity", short(token), s.index, late)
	}
}

// write is what a lock is for: the store remembers the largest fence and refuses smaller ones.
func (w *world) write(h *holder) {
	w.mu.Lock()
	last := w.stored[h.key]
	if last == nil || h.Fence() >= last.Fence() {
		w.stored[h.key] = h
	}
	w.mu.Unlock()
	if last != nil && h.Fence() >= last.Fence() && h.order < last.order {
		w.violated(fencing, "the store took a write with fence %d of grant %d after that of grant %d with %d", h.Fence(), h.order, last.order, last.Fence())
	}
}

func (w *world) expectNoKeys(when string) {
	for _, s := range w.servers {
		for _, key := range s.keys() {
			w.violated(allEnds, "left %s: %s", when, key)
		}
	}
}

// skew is by how much one may come later, in a quiet world, and have the lock before: it takes so long
// to be in all queues, and processes differ so much about the time.
const skew = 100 * time.Millisecond

// judgeOrder looks at who waited for whom.
func (w *world) judgeOrder() {
	came := func(h *holder) time.Duration { return h.granted - h.Wait().Duration }
	waited := make(map[string][]*holder) // by key
	for _, h := range w.held {
		waited[h.key] = append(waited[h.key], h)
		if w.eternal && h.Wait().Duration > time.Minute {
			w.violated(awake, "grant %d (process %d) was waited for %v", h.order, h.process.index, h.Wait().Duration)
		}
	}
	if w.pairs {
		return // they have their place for a key only when it is their turn for the one before it
	}
	for _, all := range waited {
		for i, first := range all {
			for _, later := range all[i+1:] {
				if came(first) > came(later)+skew && came(first) < w.faults.to { // afterwards nobody has heard the time for long
					w.violated(inOrder, "grant %d (process %d), who came at %v, before grant %d (process %d), who came at %v",
						first.order, first.process.index, came(first), later.order, later.process.index, came(later))
				}
			}
		}
	}
}

// judge looks at all grants of each key in their order.
func (w *world) judge() {
	if w.quiet {
		w.judgeOrder()
	}
	last := make(map[string]*holder) // the one with the latest end
	top := make(map[string]*holder)  // the one with the largest fence
	for _, h := range w.held {
		if errors.Is(context.Cause(h.Context()), ErrLost) {
			w.lost++
		}
		if other := last[h.key]; other != nil && h.granted < other.end() {
			w.violated(exclusion, "grant %d (process %d) at %v, while grant %d (process %d) holds the key until %v", h.order, h.process.index, h.granted, other.order, other.process.index, other.end())
		}
		if other := top[h.key]; other != nil && h.Fence() <= other.Fence() {
			w.violated(fencing, "grant %d has %d, after grant %d with %d", h.order, h.Fence(), other.order, other.Fence())
		}
		if last[h.key] == nil || h.end() > last[h.key].end() {
			last[h.key] = h
		}
		if top[h.key] == nil || h.Fence() > top[h.key].Fence() {
			top[h.key] = h
		}
	}
}

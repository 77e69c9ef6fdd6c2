package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// The properties that hold in every world.
const (
	exclusion = "no two hold a key at once"
	fencing   = "fences grow in the order of grants"
	noRefill  = "no lost lock is taken again for its old holder"
	allEnds   = "every lock ends, and leaves no key"
	inOrder   = "who came first has the lock first"
	awake     = "nobody sleeps while the lock is free"
	byForce   = "a lock that was released by force is not renewed"
)

// holder is a lock as its application knows it.
type holder struct {
	*Lock
	process  *process
	key      string
	others   []*holder // on other keys of the same lock
	order    int       // of the grants, over all keys
	fence    uint64
	granted  time.Duration
	unlocked time.Duration // 0 if never
	promised time.Duration // the end of the longest validity that a renewal was sent in
	believed time.Duration // when its process was told last that it holds the lock
	useless  bool          // lost before it left its result
}

// force is what was done to a token.
type force struct {
	begun time.Duration // from then on another may hold the key
	done  time.Duration // the masters have released it; never if not
}

// forcing notes that a token is about to be released by force.
func (w *world) forcing(token string) *force {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.forced[token] == nil {
		w.forced[token] = &force{begun: w.now(), done: never}
	}
	return w.forced[token]
}

// inspectedHolder is who holds a key, as a server tells.
type inspectedHolder struct {
	token string
	fence uint64
}

// told notes what a server tells of a key.
func (w *world) told(token string, fence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inspected[inspectedHolder{token, fence}] = true
}

// inspectedToken returns the token that a server has told with this fence, from its part that operators are shown.
func (w *world) inspectedToken(shown string, fence uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for seen := range w.inspected {
		if protocol.Shown(seen.token) == shown && seen.fence == fence {
			return seen.token
		}
	}
	return ""
}

// forcedAs notes that a server is about to release a token by force, if that token has the fence that was named: between the looks
// of an operator and of inspect.Force, the fence of a lock that is gone may have become that of a call which is getting the lock.
func (w *world) forcedAs(token string, fence uint64) {
	w.mu.Lock()
	told := w.inspected[inspectedHolder{token, fence}]
	w.mu.Unlock()
	if told {
		w.forcing(token)
	}
}

// forced returns what was done to the lock's token.
func (h *holder) forced() *force { return h.process.world.forced[h.attempt.Token()] }

// endedUnknown reports whether the lock was released by force before its process knew that it has it, so that its place
// in the order of grants means nothing. The world's mu is held, or the world is at its end.
func (h *holder) endedUnknown() bool {
	f := h.forced()
	return f != nil && f.begun <= h.granted
}

// until is the end of the validity so far.
func (h *holder) until() time.Duration { return h.Until().Sub(h.process.world.start) }

// end is when the lock was not certain any more, and its process not told any more that it is.
func (h *holder) end() time.Duration {
	end := h.until()
	if h.unlocked > 0 {
		end = min(h.unlocked, end)
	}
	end = max(end, h.believed)
	if f := h.forced(); f != nil {
		end = min(f.begun, end)
	}
	return end
}

func (w *world) granted(p *process, key string, lock *Lock) *holder {
	w.event("process %d holds %s by %s with fence %d until %v", p.index, key, short(lock.attempt.Token()), lock.Fence(), lock.Until().Sub(w.start))
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &holder{Lock: lock, process: p, key: key, order: len(w.held), granted: w.now(), fence: lock.Fence()}
	if w.mutant.fence != nil {
		h.fence = w.mutant.fence(lock)
	}
	context.AfterFunc(lock.Context(), func() {
		if cause := context.Cause(lock.Context()); errors.Is(cause, ErrClosed) || errors.Is(cause, ErrForced) {
			w.over(h)
		}
	})
	if until, ok := w.judgeBeats(h); !ok {
		w.broken = append(w.broken, fmt.Sprintf("%s: grant %d until %v, remembered until %v", outlived, h.order, h.until(), until))
	}
	w.held = append(w.held, h)
	w.tokens[lock.attempt.Token()] = h
	return h
}

// grantedAll notes a lock on several keys.
func (w *world) grantedAll(p *process, keys []string, lock *Lock) *holder {
	slices.Sort(keys)
	h := w.granted(p, keys[0], lock)
	for i, other := range lock.whole {
		if i > 0 {
			h.others = append(h.others, w.granted(p, keys[i], other))
		}
	}
	return h
}

// over notes that a lock is unlocked, by its process, by Close or by force.
func (w *world) over(h *holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.unlocked == 0 {
		h.unlocked = w.now()
	}
}

// believes notes that the process was told that it held the lock at this time.
func (w *world) believes(h *holder, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.believed = max(h.believed, at)
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
	last := w.stored[h.slotKey()]
	if last == nil || h.fence >= last.fence {
		w.stored[h.slotKey()] = h
	}
	ordered := last != nil && !h.endedUnknown() && !last.endedUnknown()
	w.mu.Unlock()
	if ordered && h.fence >= last.fence && h.order < last.order {
		w.violated(fencing, "the store took a write with fence %d of grant %d after that of grant %d with %d", h.fence, h.order, last.order, last.fence)
	}
}

func (w *world) expectNoKeys(when string) {
	for _, s := range w.servers {
		for _, key := range s.Keys() {
			w.violated(allEnds, "left %s: %s on %s", when, key, s)
		}
	}
}

// skew is by how much one may come later, in a quiet world, and have the lock before: it takes so long
// to be in all queues, and processes differ so much about the time.
const skew = 100 * time.Millisecond

// judgeOrder looks at who waited for whom.
func (w *world) judgeOrder() {
	came := func(h *holder) time.Duration { return h.granted - inside.AcquisitionOf(h.Lock).Waited }
	waited := make(map[string][]*holder) // by key
	for _, h := range w.held {
		waited[lockname.Of(h.key)] = append(waited[lockname.Of(h.key)], h)
		if w.eternal && inside.AcquisitionOf(h.Lock).Waited > time.Minute && !w.oneBesideSeveral() {
			w.violated(awake, "grant %d (process %d) was waited for %v", h.order, h.process.index, inside.AcquisitionOf(h.Lock).Waited)
		}
	}
	if w.pairs || w.several || w.mixed {
		return // they have their place for a key only when it is their turn for the one before it
	}
	var atOnce time.Duration
	differ := skew
	if w.slots > 1 {
		differ += 30 * time.Millisecond // who was offered a slot before an older ticket came has it
		atOnce = 30 * time.Millisecond  // several are granted a slot at once: who is nearer to the servers has it some round trips earlier
	}
	for _, all := range waited {
		for i, first := range all {
			for _, later := range all[i+1:] {
				if came(first) > came(later)+differ && later.granted >= first.granted+atOnce && came(first) < w.faults.to { // afterwards nobody has heard the time for long
					w.violated(inOrder, "grant %d (process %d), who came at %v, before grant %d (process %d), who came at %v",
						first.order, first.process.index, came(first), later.order, later.process.index, came(later))
				}
			}
		}
	}
}

// judge looks at all grants of each key in their order.
func (w *world) judge() {
	w.judgeSlots()
	if w.quiet {
		w.judgeOrder()
		w.judgeWork()
	}
	last := make(map[string]*holder) // the one with the latest end
	top := make(map[string]*holder)  // the one with the largest fence
	for _, h := range w.held {
		if errors.Is(context.Cause(h.Context()), ErrLost) {
			w.lost++
		}
		if f := h.forced(); f != nil && h.ownUntil().Sub(w.start) > f.done+h.attempt.TTL {
			w.violated(byForce, "grant %d, released at %v, goes on until %v", h.order, f.done, h.ownUntil().Sub(w.start))
		} else if h.endedUnknown() {
			continue
		}
		if other := last[h.slotKey()]; other != nil && h.granted < other.end() {
			w.violated(exclusion, "grant %d (process %d) at %v, while grant %d (process %d) holds the key until %v", h.order, h.process.index, h.granted, other.order, other.process.index, other.end())
		}
		if other := top[h.slotKey()]; other != nil && h.fence <= other.fence {
			w.violated(fencing, "grant %d has %d, after grant %d with %d", h.order, h.fence, other.order, other.fence)
		}
		if last[h.slotKey()] == nil || h.end() > last[h.slotKey()].end() {
			last[h.slotKey()] = h
		}
		if top[h.slotKey()] == nil || h.fence > top[h.slotKey()].fence {
			top[h.slotKey()] = h
		}
	}
}

package redlock

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// onceOnly is the property of results.
const onceOnly = "what is done is not done again, and has one result"

// jobs is how many pieces of work a world has that are to be done once.
const jobs = 3

// confirmed is a result that a quorum is said to remember.
type confirmed struct {
	fence  uint64
	starts int // of all servers so far: whoever starts has forgotten what it remembered
}

// onceWorld says whether results are judged: servers that are replaced, and other sets of masters, forget them.
func (w *world) onceWorld() bool { return w.moves == nil && !w.neighbors && !w.apart }

// once does a piece of work, unless it is done.
func (w *world) once(p *process, r *rand.Rand) {
	key := "job" + strconv.Itoa(r.IntN(jobs))
	if w.spelled && chance(r, 50) { // what is done once is so for each spelling
		key = strings.ToUpper(key)
	}
	before := w.mustBeMet(key)
	opts := []LockOption{WithRecall(), WithTTL(between(r, w.ttl/4, w.ttl))}
	if w.ending {
		opts = append(opts, WithMaxHold(between(r, w.ttl/4, w.ttl)))
	}
	lock, err := p.take(key, between(r, w.timeout, w.ttl), chance(r, 50), opts...)
	if w.passes && errors.Is(err, ErrUnreadable) {
		lock, err = p.take(key, w.timeout, true)
	}
	var done *DoneError
	switch {
	case errors.As(err, &done):
		w.met(p, key, done, before)
		return
	case err != nil:
		return
	}
	h := w.granted(p, key, lock)
	if after := w.mustBeMet(key); before > 0 && after >= before {
		w.violated(onceOnly, "grant %d of %s, which was done with fence %d before the call", h.order, key, before)
	}
	p.nap(upTo(r, 2*w.timeout))
	if w.ending {
		w.endWith(p, lock, r)
	}
	if p.dead() {
		<-lock.Context().Done()
		return
	}
	w.over(h)
	w.mu.Lock()
	h.useless = lock.over() != "" || lock.ending() != "" // Err would decide it, and that is for UnlockWith
	w.mu.Unlock()
	result := strconv.Itoa(h.order)
	if w.long || chance(r, 50) { // on a lane of its own
		result += strings.Repeat(" ", protocol.ShortResult)
	}
	unlock := (*Lock).UnlockWith
	if w.mutant.unlock != nil {
		unlock = w.mutant.unlock
	}
	err = unlock(lock, []byte(result), never)
	w.event("process %d unlocks grant %d with its result: %v", p.index, h.order, err)
	if err == nil && !p.dead() {
		w.confirm(key, h.fence)
	}
}

// longEndings has all results take the lane, and the work end as its lock does.
func longEndings(w *world) { w.long, w.ending = true, true }

// endWith works until about the end of a lock, whose timer is late.
func (w *world) endWith(p *process, lock *Lock, r *rand.Rand) {
	ends := time.Until(lock.Until()) // by its max hold, mostly
	p.nap(max(ends-upTo(r, w.timeout), 0))
	lock.timer.Stop()
	time.AfterFunc(upTo(r, 4*w.timeout), lock.timeOver)
	if chance(r, 50) {
		p.nap(max(time.Until(lock.Until()), 0))
	}
}

// met judges a result that a call has met. before is the fence of the last one that it had to meet.
func (w *world) met(p *process, key string, done *DoneError, before uint64) {
	w.event("process %d meets the result of fence %d of %s", p.index, done.Fence, key)
	order, err := strconv.Atoi(strings.TrimSpace(string(done.Result)))
	w.mu.Lock()
	known := err == nil && order < len(w.held) && w.held[order].key == key && w.held[order].fence == done.Fence
	useless := known && w.held[order].useless
	w.mu.Unlock()
	if !known {
		w.violated(onceOnly, "%q of fence %d is no result of %s", done.Result, done.Fence, key)
	}
	if useless {
		w.violated(onceOnly, "grant %d of %s was lost before it left its result", order, key)
	}
	if after := w.mustBeMet(key); done.Fence < before && after >= before {
		w.violated(onceOnly, "%s has the result of fence %d, after that of %d", key, done.Fence, before)
	}
	w.confirm(key, done.Fence)
}

func (w *world) confirm(key string, fence uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := (confirmed{fence, w.starts()}); c.fence >= w.confirmed[key].fence || c.starts > w.confirmed[key].starts {
		w.confirmed[key] = c
	}
}

// mustBeMet returns the fence of the result that every call from now on has to meet, or 0: one that was
// confirmed, if no server has forgotten anything since, or one that so many servers have that every quorum meets one of them.
func (w *world) mustBeMet(key string) uint64 {
	var fences []int64
	asked := &protocol.Command{Key: protocol.Key(DefaultPrefix, key), Given: protocol.Given(key)}
	for _, s := range w.servers {
		var result protocol.Result
		if _, up := s.life(); up {
			s.Look(func(m *memory.Master) { result, _, _ = m.Results.Get(asked.ResultOf(), s.clock()) })
		}
		fences = append(fences, result.Fence)
	}
	slices.Sort(fences)
	w.mu.Lock()
	defer w.mu.Unlock()
	most := uint64(fences[len(fences)/2]) // a majority has this one, or a later one
	if c := w.confirmed[key]; c.starts == w.starts() {
		most = max(most, c.fence)
	}
	return most
}

// starts counts the starts of all servers.
func (w *world) starts() (n int) {
	for _, s := range w.servers {
		epoch, _ := s.life()
		n += epoch
	}
	return n
}

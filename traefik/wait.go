package traefik

import (
	"context"
	"math/rand"
	"time"
)

// failure is why a lock was not taken.
type failure struct {
	outcome string // held, no_quorum or canceled
	retry   time.Duration
}

// gate is where the requests for one key wait in this process, in the order in which they came. Only its head deals with
// the masters. The locker's mu guards it.
type gate struct {
	line   []chan bool // those that wait behind the head
	lock   *lock       // the last one
	newest int64       // the highest ticket of its heads
}

// take takes the lock on a key. It waits for as long as the rule says, behind all that came before.
func (l *locker) take(ctx context.Context, key string, r *rule) (*lock, *failure) {
	came := time.Now()
	if r.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, came.Add(r.wait))
		defer cancel()
	}
	arrival, f := l.enter(ctx, key, r.wait > 0)
	if f != nil {
		return nil, f
	}
	won := false
	defer func() { // even if it panics
		if !won {
			l.mu.Lock()
			l.leave(key)
			l.mu.Unlock()
		}
	}()
	pause := waitLeast
	ticket := int64(0)
	for tries := 1; ; tries++ {
		if r.wait > 0 && ticket == 0 {
			ticket = l.ticket(key, arrival)
		}
		a, patience := l.begin(key, r.ttl, ticket)
		flush(l)
		if a.win(ctx, patience) && ctx.Err() == nil {
			won = true
			return l.hold(a, key, r.maxHold), nil
		}
		f, split := a.failure()
		again := r.wait > 0 && (f.outcome == "held" || !l.hopeless(came, came.Add(r.wait)))
		delay := pause
		switch {
		case r.wait > 0:
			pause = shorter(2*pause, waitMost)
		case split && tries <= splitTries:
			again, delay = true, splitPause
		}
		again = again && ctx.Err() == nil
		l.giveBack(a, again)
		if again {
			again = sleep(ctx, delay/2+time.Duration(rand.Int63n(int64(delay))))
			if !again && a.queued {
				l.giveBack(a, false)
			}
		}
		if !again {
			return nil, f
		}
	}
}

// giveBack releases what an attempt may have on the masters.
func (l *locker) giveBack(a *attempt, waiting bool) {
	l.pushReleases(a, waiting)
	flush(l)
}

func (l *locker) pushReleases(a *attempt, waiting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.release(waiting)
}

// sleep waits, and reports whether the time was over before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// enter puts a call into the line of its key, and returns when the call is the head, or why it can't become that.
func (l *locker) enter(ctx context.Context, key string, waits bool) (arrival int64, f *failure) {
	l.mu.Lock()
	if now, known := mastersNow(l); known {
		arrival = now
	}
	if l.sets.refused != "" {
		l.mu.Unlock()
		return 0, &failure{outcome: "no_quorum"}
	}
	g := l.gates[key]
	if g == nil {
		l.gates[key] = &gate{}
		l.mu.Unlock()
		return arrival, nil
	}
	f = g.held()
	if !waits || len(g.line) >= defaultMaxWaiters {
		l.mu.Unlock()
		return 0, f
	}
	turn := make(chan bool, 1)
	g.line = append(g.line, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return arrival, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 0; i < len(g.line); i++ {
		if g.line[i] == turn {
			g.line = append(g.line[:i], g.line[i+1:]...)
			return 0, f
		}
	}
	l.leave(key) // its turn has just come
	return 0, f
}

// held returns the failure of a call that finds the key held or wanted in this process.
func (g *gate) held() *failure {
	f := &failure{outcome: "held"}
	if g.lock != nil {
		f.retry = longer(0, time.Until(g.lock.until))
	}
	return f
}

// leave ends the head's turn: the next call becomes the head, or the gate is removed. The caller holds mu.
func (l *locker) leave(key string) {
	g := l.gates[key]
	if len(g.line) == 0 {
		delete(l.gates, key)
		return
	}
	turn := g.line[0]
	g.line = g.line[1:]
	turn <- true
}

// ticket returns the place of a gate's head in the masters' queues: when its call came, on the masters' clocks, but above the tickets of
// the heads before it; 0, for none, while the clocks are unknown.
func (l *locker) ticket(key string, arrival int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gates[key]
	if arrival == 0 {
		now, known := mastersNow(l)
		if !known {
			return 0
		}
		arrival = now
	}
	if arrival <= g.newest {
		arrival = g.newest + 1
	}
	g.newest = arrival
	return arrival
}

// failure returns why the attempt was lost, and whether the votes were split between several attempts, so that perhaps none has won.
// Votes for others are contention; no_quorum is for masters that don't answer.
func (a *attempt) failure() (f *failure, split bool) {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := a.failures
	if a.late {
		failed += a.pending
	}
	if len(a.votes)-failed < l.quorum || len(a.holders) == 0 || l.sets.refused != "" {
		return &failure{outcome: "no_quorum", retry: l.guarded()}, false
	}
	split = true
	for _, holder := range a.holders {
		same := 0
		for _, other := range a.holders {
			if other == holder {
				same++
			}
		}
		split = split && same < l.quorum
	}
	return &failure{outcome: "held", retry: a.left}, split
}

// guarded returns for how long too many masters will have no vote for a quorum; 0 if that is unknown.
func (l *locker) guarded() time.Duration {
	now := time.Now()
	left := []int64{}
	for _, s := range l.streams {
		if s.conn == nil && s.seat.until.After(now) {
			left = append(left, int64(s.seat.until.Sub(now)))
		}
	}
	sortNumbers(left)
	missing := l.quorum - (len(l.streams) - len(left))
	if missing <= 0 || missing > len(left) {
		return 0
	}
	return time.Duration(left[missing-1])
}

// hopeless reports whether there can be no quorum before a wait ends: too many masters have no vote until then, or have had no connection
// for the length of an outage, during which this call has waited. A master that hangs may still answer.
func (l *locker) hopeless(came, end time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := len(l.streams)
	now := time.Now()
	for _, s := range l.streams {
		switch {
		case s.conn != nil || s.down == "":
		case s.seat.until.After(end) || shorter(now.Sub(came), now.Sub(s.connects)) >= outage:
			left--
		}
	}
	return left < l.quorum
}

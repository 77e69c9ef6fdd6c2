package traefik

import (
	"errors"
	"time"
)

var (
	errLost    = errors.New("redlock: lease lost")
	errMaxHold = errors.New("redlock: lease lost: held for its max hold")
)

// lock is a held lock. Its lease is renewed until it is unlocked or lost. The locker's mu guards it.
type lock struct {
	a       *attempt
	key     string
	id      int64
	until   time.Time // the end of the validity so far
	next    time.Time // when it is renewed next
	holdEnd time.Time // the end of maxHold, when it is lost although it could be renewed
	ended   bool      // it was unlocked or lost, and is never renewed again
	lost    error     // why it was lost
	end     func(error)

	round      int
	roundStart time.Time
	stored     int // masters that have renewed the lease in this round
	taken      int // masters on which another has the key
}

// early is how long before the end of its validity a lock may be given up: as long as run may sleep while locks are held.
const early = 25 * time.Millisecond

// hold returns the lock of an attempt that is won.
func (l *locker) hold(a *attempt, key string, maxHold time.Duration) *lock {
	k := &lock{a: a, key: key, holdEnd: a.start.Add(maxHold), next: a.start.Add(a.ttl / 3)}
	k.until = earlier(a.until(), k.holdEnd)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	k.id = l.lastID
	a.lockID = k.id
	l.locks[k.id] = k
	l.gates[key].lock = k
	l.soon(k)
	return k
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// soon makes run look at a lock in time.
func (l *locker) soon(k *lock) {
	due := earlier(k.next, k.until.Add(-early))
	if l.nextDue.IsZero() || due.Before(l.nextDue) {
		l.nextDue = due
	}
}

// keep renews the locks that are due, and returns those that are lost. The caller holds mu.
func (l *locker) keep(now time.Time) []*lock {
	lost := []*lock{}
	if l.nextDue.IsZero() || now.Before(l.nextDue) {
		return lost
	}
	l.nextDue = time.Time{}
	for _, k := range l.locks {
		if past(k.until.Add(-early)) {
			k.lose()
			lost = append(lost, k)
			continue
		}
		if !now.Before(k.next) {
			k.renew(now)
		}
		l.soon(k)
	}
	return lost
}

// renew queues extends for all masters. A master that lacks the key takes it anew, until the end of the lease.
func (k *lock) renew(now time.Time) {
	k.round++
	k.roundStart = now
	k.stored = 0
	k.taken = 0
	k.next = now.Add(k.a.ttl/9 + k.a.ttl/30) // if no quorum renews it; otherwise renewed sets the regular time
	for i := 0; i < len(k.a.votes); i++ {
		extendOn(k.a, i, held, k.round, k.until)
	}
}

// renewed counts the answer of one master: 1 if it has renewed the lease, -1 if another has the key, 0 otherwise. A quorum renews
// the lease, counted from when the round began. If another has the key on so many masters that a quorum is out of reach, the lock
// is lost at once.
func (l *locker) renewed(c *command, status int) {
	k := l.locks[c.a.lockID]
	if k == nil || c.round != k.round || past(k.until) {
		return
	}
	switch status {
	case 1:
		k.stored++
		if k.stored == l.quorum {
			k.until = earlier(k.roundStart.Add(k.a.ttl-drift(k.a.ttl)), k.holdEnd)
			k.next = k.roundStart.Add(k.a.ttl / 3)
		}
	case -1:
		k.taken++
		if k.taken == len(l.streams)-l.quorum+1 {
			k.until = time.Now()
		}
	}
	l.soon(k)
}

// lose ends a lock that was not unlocked.
func (k *lock) lose() {
	l := k.a.l
	k.lost = errLost
	if past(k.holdEnd.Add(-early)) {
		k.lost = errMaxHold
	}
	l.note("lease lost: another may take the lock while its holder still works")
	k.ended = true
	delete(l.locks, k.id)
	k.a.release(false)
	l.leave(k.key)
}

// onLoss sets the function to call when the lock is lost. If it is lost already, the function is called at once.
func (k *lock) onLoss(end func(error)) {
	l := k.a.l
	l.mu.Lock()
	k.end = end
	lost := k.lost
	l.mu.Unlock()
	if lost != nil {
		end(lost)
	}
}

// err returns why the lock is lost, or nil while it is held.
func (k *lock) err() error {
	l := k.a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.lost == nil && past(k.until) { // keep is about to end it
		return errLost
	}
	return k.lost
}

// unlock releases the lock. It waits, for twice the time-out at most, until a quorum has released the key, and reports whether a
// quorum has. The release is repeated, in the background, for masters that missed it, until the TTL has passed.
func (k *lock) unlock() bool {
	l := k.a.l
	if !k.free() {
		return false
	}
	flush(l)
	timer := time.NewTimer(2 * l.timeout) // if another has begun to wait, a release takes two round trips
	defer timer.Stop()
	select {
	case <-k.a.news:
	case <-timer.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(k.key)
	return k.a.yes >= l.quorum
}

// free queues the releases, unless the lock was lost before: then lose has queued them.
func (k *lock) free() bool {
	l := k.a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.ended {
		return false
	}
	k.ended = true
	delete(l.locks, k.id)
	k.a.release(false)
	return true
}

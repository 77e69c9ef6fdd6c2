package redlock

import (
	"cmp"
	"container/heap"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// keeper renews the leases of all locks and releases lost locks, with one goroutine and one timer for any number of locks. That goroutine does
// nothing that may take long: it queues commands, which the streams send, and notices for the log and the Observer. If the goroutine is late all the
// same, locks are lost. But each lock ends by a separate timer.
type keeper struct {
	voters   *vote.Masters
	reporter *reporter
	logger   *slog.Logger
	began    time.Time
	recheck  chan struct{}
	losing   atomic.Int64 // how many calls of Lock.end, which may add to lost, are under way
	stop     chan struct{}
	ended    chan struct{}

	many atomic.Bool // manyLocks or more are held

	mu    sync.Mutex
	locks schedule
	lost  []*Lock
	next  time.Time // when run will check the locks again, unless recheck signals earlier

	longHoldLogged time.Time // when the log last named a lock that is held long; only the goroutine of run uses it
}

func newKeeper(voters *vote.Masters, reporter *reporter, logger *slog.Logger) *keeper {
	k := &keeper{voters: voters, reporter: reporter, logger: logger, began: time.Now(), recheck: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go k.run()
	return k
}

// end stops the keeper and ends the locks that are still held. After that, keep must not be called.
func (k *keeper) end() {
	close(k.stop)
	<-k.ended
}

// manyLocks is the number of locks above which renewals are spread over time. The renewals of fewer locks share a few pipelines, and delay no other
// command.
const manyLocks = 10_000

// keep makes the keeper renew a lock from now on. If many locks are held, the first renewal comes at a random time within its period. Otherwise locks
// that were taken together would always be renewed together, and fresh locks would wait behind them.
func (k *keeper) keep(lock *Lock) {
	k.mu.Lock()
	k.many.Store(len(k.locks) >= manyLocks)
	if k.many.Load() {
		lock.hasten(rand.N(lock.attempt.TTL / 3))
	}
	lock.scheduled.due = lock.next
	heap.Push(&k.locks, lock)
	late := lock.scheduled.due.Before(k.next)
	k.mu.Unlock()
	if late {
		link.Signal(k.recheck)
	}
}

// reschedule sets when a lock is due next, unless the keeper has dropped the lock. With the zero time, it drops the lock.
func (k *keeper) reschedule(lock *Lock, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := lock.scheduled.at
	switch {
	case at >= len(k.locks) || k.locks[at] != lock:
	case due.IsZero():
		heap.Remove(&k.locks, at)
	default:
		lock.scheduled.due = due
		heap.Fix(&k.locks, at)
	}
}

const idle = time.Hour

func (k *keeper) run() {
	defer close(k.ended)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		timer.Reset(k.work())
		select {
		case <-timer.C:
		case <-k.recheck:
		case <-k.stop:
			k.endAll()
			return
		}
	}
}

// work does everything that is due, and returns the time until it must run again. It queues the commands for all due locks, and then sends them, so
// that locks that are due together share pipelines.
func (k *keeper) work() time.Duration {
	attended := k.releaseLost()
	for {
		now := time.Now()
		lock := k.firstDue(now)
		if lock == nil {
			break
		}
		attended = true
		k.reschedule(lock, lock.renew(now))
		k.tellLongHold(lock, now)
	}
	if attended {
		k.voters.SendSoon()
	}
	return time.Until(k.next) // without mu, because only this goroutine sets next
}

// firstDue returns a lock that is due now. If there is none, it returns nil and sets when the next lock is due.
func (k *keeper) firstDue(now time.Time) *Lock {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.locks) == 0:
		k.next = now.Add(idle)
	case k.locks[0].scheduled.due.After(now):
		k.next = k.locks[0].scheduled.due
	default:
		return k.locks[0]
	}
	return nil
}

// longHold is how long a lock without a max hold is held before the log names it. The holder may have dropped it without Unlock, and then it is
// renewed until the process ends.
const longHold = time.Hour

// tellLongHold logs that a lock has been held for longHold: once for each lock, and at most one lock per longHold.
func (k *keeper) tellLongHold(lock *Lock, now time.Time) {
	if lock.longHoldLogged || !lock.holdEnd.IsZero() || now.Sub(lock.since()) < longHold || now.Sub(k.longHoldLogged) < longHold || lock.parts()[0] != lock {
		return
	}
	lock.longHoldLogged, k.longHoldLogged = true, now
	k.logger.Info("a lock has been held for an hour, and is renewed until Unlock: was that forgotten? WithMaxHold bounds how long a lock is held", lock.words()...)
}

// releaseSoon makes run release lost locks, whose contexts have ended.
func (k *keeper) releaseSoon(lost []*Lock) {
	k.mu.Lock()
	k.lost = append(k.lost, lost...)
	k.mu.Unlock()
	k.losing.Add(-1)
	link.Signal(k.recheck)
}

func (k *keeper) releaseLost() (any bool) {
	k.mu.Lock()
	lost := k.lost
	k.lost = nil
	k.mu.Unlock()
	for _, lock := range lost {
		runtime.Gosched() // if many locks are lost at once, all of their contexts should end first
		k.reschedule(lock, time.Time{})
		lock.attempt.EnqueueRelease()
		lock.slotEnded()
		if lock.parts()[0] == lock {
			lock.tell(lock.endedBy())
		}
	}
	return len(lost) > 0
}

func (k *keeper) endAll() {
	k.mu.Lock()
	locks := slices.Clone(k.locks)
	k.mu.Unlock()
	for _, lock := range locks {
		lock.end(inside.EndClosed)
	}
	link.Signal(k.recheck)
	for more := true; more; k.releaseLost() { // some of the locks may have been lost at the same time
		<-k.recheck
		more = k.losing.Load() > 0
	}
	k.voters.SendSoon()
}

// schedule is a heap of locks by the time at which they are due; it implements heap.Interface.
type schedule []*Lock

// scheduled is a lock's place in the schedule. The keeper's mu guards it.
type scheduled struct {
	due time.Time
	at  int
}

func (s schedule) Len() int { return len(s) }

func (s schedule) Less(i, j int) bool { return s[i].scheduled.due.Before(s[j].scheduled.due) }

func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].scheduled.at, s[j].scheduled.at = i, j
}

func (s *schedule) Push(x any) {
	lock := x.(*Lock)
	lock.scheduled.at = len(*s)
	*s = append(*s, lock)
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	lock := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return lock
}

// renewal is one round of extends for one lock. No goroutine waits for it: the replies come to Receive. The mu of the lock guards it.
type renewal struct {
	lock     *Lock
	start    time.Time
	answered int // how many masters have answered or failed
	stored   int // on how many masters the lease is renewed
	taken    int // on how many masters another token has the key, or the lock was released by force
	failed   []*MasterError
}

// renewed returns start plus after, rounded down to a grid of 1/30 of the TTL, or 1/150 if many locks are held. Locks that are due at the same point
// of the grid share their pipelines.
func (k *keeper) renewed(start time.Time, after, ttl time.Duration) time.Time {
	step := ttl / 30
	if k.many.Load() {
		step = ttl / 150
	}
	return k.began.Add(start.Add(after).Sub(k.began).Truncate(step))
}

// failure returns the reason why a round has not renewed the lease so far. It is nil if the round has, or if there was no round.
func (r *renewal) failure() error {
	if r == nil {
		return nil
	}
	quorum, total := r.lock.call.voters.Quorum, len(r.lock.call.voters.Streams)
	switch {
	case r.stored >= quorum:
		return nil
	case r.taken > total-quorum:
		return ErrNotOwner
	}
	return &QuorumError{Answered: r.stored, Quorum: quorum, Total: total, Masters: r.failed}
}

// hopeless reports whether a round can't renew the lease any more, whatever the remaining masters reply.
func (r *renewal) hopeless() bool {
	return r != nil && r.stored+len(r.lock.call.voters.Streams)-r.answered < r.lock.call.voters.Quorum
}

// Receive counts the reply of one master; it runs on that master's goroutine. Until the lock has ended, a reply counts even after the next round has
// begun. If so many masters refuse that no quorum is left, the lock is lost at once rather than at the end of its lease.
func (r *renewal) Receive(c *link.Command) {
	k := r.lock
	voters := r.lock.call.voters
	var failed *MasterError
	if err := c.Reply.Err; err != nil {
		failed = &MasterError{voters.Name(c.Master, c.Key), err}
	}
	done := false
	k.mu.Lock()
	if k.how == "" && !vote.Past(k.until) {
		r.answered++
		switch {
		case failed != nil:
			r.failed = append(r.failed, failed)
		case c.Reply.Status == protocol.StatusGranted:
			r.stored++
			done = r.stored == voters.Quorum
			k.prove(c.Master, r.start, true)
		case c.Reply.Status == protocol.StatusNotOwner, c.Reply.Status == protocol.StatusForced:
			if c.Reply.Status == protocol.StatusForced {
				k.refused, k.by = inside.EndForced, cmp.Or(k.by, c.Reply.Answer.(*protocol.Force).By)
			}
			r.taken++
			k.prove(c.Master, r.start, false)
			if r.taken == len(voters.Streams)-voters.Quorum+1 {
				k.refused = cmp.Or(k.refused, inside.EndTaken)
				k.until = time.Now()
				k.expireAt(k.until)
			}
		}
	}
	k.mu.Unlock()
	if done {
		k.call.reporter.renewed(nil)
	}
}

package redlock

import (
	"container/heap"
	"sync"
	"time"
)

// keeper renews the leases of all locks, and ends the locks that are lost: one goroutine and one
// timer for any number of them.
type keeper struct {
	locker *Locker
	wake   chan struct{}
	ended  chan struct{}

	mu    sync.Mutex
	locks schedule
	next  time.Time // when it wakes by itself
}

func newKeeper(l *Locker) *keeper {
	k := &keeper{locker: l, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go k.run()
	return k
}

// keep takes care of a lock from now on.
func (k *keeper) keep(lock *Lock) {
	k.mu.Lock()
	lock.kept.due = lock.due()
	heap.Push(&k.locks, lock)
	late := lock.kept.due.Before(k.next)
	k.mu.Unlock()
	if late {
		k.rouse()
	}
}

func (k *keeper) forget(lock *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeps(lock) {
		heap.Remove(&k.locks, lock.kept.at)
	}
}

// keeps says whether a lock is in the schedule. Callers hold mu.
func (k *keeper) keeps(lock *Lock) bool {
	at := lock.kept.at
	return at < len(k.locks) && k.locks[at] == lock
}

func (k *keeper) rouse() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run ends when the Locker closes. It ends the locks that are still held then.
func (k *keeper) run() {
	defer close(k.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		case <-k.locker.closing:
			k.endAll()
			return
		}
		timer.Reset(k.work())
	}
}

// work does what is due, and says how long nothing will be. The masters get the extends of all locks that
// were due together.
func (k *keeper) work() time.Duration {
	attended := false
	for {
		now := time.Now()
		lock := k.firstDue(now)
		if lock == nil {
			break
		}
		attended = true
		k.attend(lock, now)
	}
	if attended {
		for _, s := range k.locker.streams {
			s.rouse()
		}
	}
	return time.Until(k.next) // which this goroutine alone sets
}

// firstDue gives a lock that is due now; if none is, it gives nil and sets when one will be.
func (k *keeper) firstDue(now time.Time) *Lock {
	const idle = time.Hour
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case len(k.locks) == 0:
		k.next = now.Add(idle)
	case k.locks[0].kept.due.After(now):
		k.next = k.locks[0].kept.due
	default:
		return k.locks[0]
	}
	return nil
}

// attend renews a lock, or ends it if it is lost.
func (k *keeper) attend(lock *Lock, now time.Time) {
	cause := lock.lost()
	if cause == nil && lock.renew(now) {
		k.reschedule(lock, lock.due())
		return
	}
	k.forget(lock)
	if cause != nil && lock.lose(cause) {
		k.locker.logger.Warn("lease lost: another may take the lock while its holder still works", "error", cause)
		k.locker.observer.LeaseLost(cause)
	}
}

// hurry attends to a lock at once.
func (k *keeper) hurry(lock *Lock) {
	k.reschedule(lock, time.Now())
	k.rouse()
}

func (k *keeper) reschedule(lock *Lock, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeps(lock) {
		lock.kept.due = due
		heap.Fix(&k.locks, lock.kept.at)
	}
}

func (k *keeper) endAll() {
	k.mu.Lock()
	locks := k.locks
	k.locks = nil
	k.mu.Unlock()
	for _, lock := range locks {
		lock.lose(ErrClosed)
	}
}

// schedule is a heap of locks, the next one due first.
type schedule []*Lock

// kept is a lock's place in the schedule. The keeper's mu guards it.
type kept struct {
	due time.Time
	at  int
}

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].kept.due.Before(s[j].kept.due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].kept.at, s[j].kept.at = i, j
}
func (s *schedule) Push(x any) {
	lock := x.(*Lock)
	lock.kept.at = len(*s)
	*s = append(*s, lock)
}
func (s *schedule) Pop() any {
	last := len(*s) - 1
	lock := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return lock
}

package redlock

import (
	"container/heap"
	"sync"
	"time"
)

// keeper renews the leases of all locks and ends the locks that are lost, with one goroutine and one timer
// for any number of them.
type keeper struct {
	locker  *Locker
	recheck chan struct{}
	stop    chan struct{}
	ended   chan struct{} // closed when run returns

	mu    sync.Mutex
	locks schedule
	next  time.Time // when run looks at the locks again, unless recheck signals before
}

func newKeeper(l *Locker) *keeper {
	k := &keeper{locker: l, recheck: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go k.run()
	return k
}

// end stops the keeper and ends the locks that are still held. No lock may be given to it any more.
func (k *keeper) end() {
	close(k.stop)
	<-k.ended
}

// keep has the keeper look after a lock from now on.
func (k *keeper) keep(lock *Lock) {
	k.mu.Lock()
	lock.scheduled.due = lock.due()
	heap.Push(&k.locks, lock)
	late := lock.scheduled.due.Before(k.next)
	k.mu.Unlock()
	if late {
		signal(k.recheck)
	}
}

func (k *keeper) forget(lock *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeps(lock) {
		heap.Remove(&k.locks, lock.scheduled.at)
	}
}

// keeps reports whether a lock is in the schedule. mu is held.
func (k *keeper) keeps(lock *Lock) bool {
	at := lock.scheduled.at
	return at < len(k.locks) && k.locks[at] == lock
}

func (k *keeper) run() {
	defer close(k.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.recheck:
		case <-k.stop:
			k.endAll()
			return
		}
		timer.Reset(k.work())
	}
}

// work does what is due and returns how long nothing will be. Extends are only queued while it goes through
// the locks, and sent at the end: those of locks that are due together share pipelines.
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
			s.sendSoon()
		}
	}
	return time.Until(k.next) // without mu: only this goroutine sets it
}

// firstDue returns a lock that is due now. If there is none it returns nil, and sets when one will be.
func (k *keeper) firstDue(now time.Time) *Lock {
	const idle = time.Hour
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

// attend renews a lock, or ends it if it is lost.
func (k *keeper) attend(lock *Lock, now time.Time) {
	cause := lock.lost()
	if cause == nil && lock.renew(now) {
		k.reschedule(lock, lock.due())
		return
	}
	if cause != nil {
		k.lose(lock, cause)
	} else {
		k.forget(lock)
	}
}

// lose ends a lock that is lost, unless it has ended.
func (k *keeper) lose(lock *Lock, cause error) {
	k.forget(lock)
	if lock.lose(cause) {
		k.locker.logger.Warn("lease lost: another process may now hold this lock while its holder is still working", "error", cause)
		if failure := lock.unrenewed(); failure != nil && (cause == ErrLost || cause == ErrForced) {
			k.locker.observer.Renewed(failure)
		}
		k.locker.observer.LeaseLost(cause)
	}
}

// hurry has a lock looked at now.
func (k *keeper) hurry(lock *Lock) {
	k.reschedule(lock, time.Now())
	signal(k.recheck)
}

func (k *keeper) reschedule(lock *Lock, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeps(lock) {
		lock.scheduled.due = due
		heap.Fix(&k.locks, lock.scheduled.at)
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

// schedule is a heap of locks by the time at which they are due; it implements heap.Interface.
type schedule []*Lock

// scheduled is a lock's place in the schedule. The keeper's mu guards it.
type scheduled struct {
	due time.Time
	at  int
}

func (s schedule) Len() int           { return len(s) }
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

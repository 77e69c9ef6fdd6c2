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
	index map[*Lock]*entry
}

type entry struct {
	lock *Lock
	due  time.Time
	at   int // in the schedule
}

func newKeeper(l *Locker) *keeper {
	k := &keeper{locker: l, wake: make(chan struct{}, 1), ended: make(chan struct{}), index: make(map[*Lock]*entry)}
	go k.run()
	return k
}

// keep takes care of a lock from now on.
func (k *keeper) keep(lock *Lock) {
	k.mu.Lock()
	e := &entry{lock: lock, due: lock.due()}
	k.index[lock] = e
	heap.Push(&k.locks, e)
	first := e.at == 0
	k.mu.Unlock()
	if first {
		k.rouse()
	}
}

func (k *keeper) forget(lock *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.index[lock]; e != nil {
		heap.Remove(&k.locks, e.at)
		delete(k.index, lock)
	}
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

// work does what is due, and says how long nothing will be.
func (k *keeper) work() time.Duration {
	const idle = time.Hour
	for {
		now := time.Now()
		k.mu.Lock()
		if len(k.locks) == 0 {
			k.mu.Unlock()
			k.send()
			return idle
		}
		lock, wait := k.locks[0].lock, k.locks[0].due.Sub(now)
		k.mu.Unlock()
		if wait > 0 {
			k.send()
			return wait
		}
		k.attend(lock, now)
	}
}

// send has the masters get the extends of all locks that were due, together.
func (k *keeper) send() {
	for _, s := range k.locker.streams {
		s.rouse()
	}
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
	if e := k.index[lock]; e != nil {
		e.due = due
		heap.Fix(&k.locks, e.at)
	}
}

func (k *keeper) endAll() {
	k.mu.Lock()
	locks := k.locks
	k.locks, k.index = nil, make(map[*Lock]*entry)
	k.mu.Unlock()
	for _, e := range locks {
		e.lock.lose(ErrClosed)
	}
}

// schedule is a heap of entries, the next one due first.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}
func (s *schedule) Push(x any) {
	e := x.(*entry)
	e.at = len(*s)
	*s = append(*s, e)
}
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return e
}

package redlock

import (
	"cmp"
	"slices"
	"time"
)

// queue is who waits for a key, in the order of their tickets: the memory master's.
type queue struct{ places []place }

// place is a process's in a queue.
type place struct {
	process string
	ticket  int64
	ends    time.Time // when the process isn't believed to wait any more
}

// before says whether the place is before that of another. Tickets that are equal are in the order of
// the names, so that all masters have the same.
func (p place) before(ticket int64, process string) bool {
	return cmp.Or(cmp.Compare(p.ticket, ticket), cmp.Compare(p.process, process)) < 0
}

// join gives a process this place, in exchange for the one that it may have.
func (q *queue) join(p place) {
	q.leave(p.process, 1<<63-1)
	at, _ := slices.BinarySearchFunc(q.places, p, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.ticket, b.ticket), cmp.Compare(a.process, b.process))
	})
	q.places = slices.Insert(q.places, at, p)
}

// leave takes a process off if its ticket is not above this one.
func (q *queue) leave(process string, ticket int64) {
	q.places = slices.DeleteFunc(q.places, func(p place) bool { return p.process == process && p.ticket <= ticket })
}

// oldest gives the first place that is not this process's. Those whose time is over are passed over.
func (q *queue) oldest(but string, now time.Time) *place {
	q.places = slices.DeleteFunc(q.places, func(p place) bool { return !now.Before(p.ends) && p.process != but })
	for i := range q.places {
		if q.places[i].process != but {
			return &q.places[i]
		}
	}
	return nil
}

package redlock

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// slotsAtOnce is how many slots a master is asked for at a time: it has other work.
const slotsAtOnce = 32

// InspectSlots is Inspect for a key that may have several holders, see WithConcurrency: it returns slot 0, which has the line and the
// result, and behind it each other slot that any master has given to somebody. It asks each master for all 256 slots, with a command for each.
//
// With an error, which is as that of Inspect, it returns what is known all the same, or nothing if the Locker is closed.
func (l *Locker) InspectSlots(ctx context.Context, key string) ([]*Inspection, error) {
	first, err := l.InspectSlot(ctx, key, 0)
	if first == nil {
		return nil, err
	}
	slots := []*Inspection{first}
	for next := 1; next < protocol.MaxSlots && err == nil; next += slotsAtOnce {
		var more []*Inspection
		for range 2 { // a master that has answered so far may be slow once
			if more, err = l.inspectSlots(ctx, key, next, min(next+slotsAtOnce, protocol.MaxSlots)); err == nil || ctx.Err() != nil {
				break
			}
		}
		slots = append(slots, more...)
	}
	return slots, err
}

// inspectSlots returns those from the first slot to the one before end that any master has given to somebody.
func (l *Locker) inspectSlots(ctx context.Context, key string, first, end int) (slots []*Inspection, err error) {
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	seen, failed := make([]*Inspection, end-first), make([]error, end-first)
	var all sync.WaitGroup
	for i := range seen {
		all.Go(func() {
			if seen[i], _, failed[i] = l.look(ctx, key, first+i); seen[i] != nil && seen[i].given() {
				l.nameProcesses(ctx, seen[i])
			}
		})
	}
	all.Wait()
	for i, n := range seen {
		if n != nil && n.given() {
			slots = append(slots, n)
		}
		err = cmp.Or(err, failed[i])
	}
	return slots, err
}

// given reports whether any master has given the slot to somebody.
func (n *Inspection) given() bool {
	return slices.ContainsFunc(n.Masters, func(m InspectedMaster) bool { return m.Token != "" })
}

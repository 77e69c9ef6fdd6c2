// Package inspect shows operators the state of a key on the masters, whichever process holds or awaits it, and which processes share the masters. It
// can end a lock by force, and make the masters forget a result. Keys, and a Locker's Status, show what the Locker itself knows, without asking the
// masters.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// View is the state of a key on the masters.
type View struct {
	Key   string
	Slot  int  // the number of the slot, if the key may have several holders; otherwise 0
	Slots int  // how many slots the key has, if this process holds one of them; otherwise 0
	Held  bool // a quorum of the masters has given the key to one holder
	// Fence is the fencing token of the holder's lock. Holder is the instance name of its process, or the process's ID if the masters don't know that
	// name any more. TTL is how long the lease still lasts unless it is renewed. They are zero if the key isn't held. While a master doesn't answer,
	// Fence may be larger than the lock's own fencing token.
	Fence  uint64
	Holder string
	TTL    time.Duration
	Turn   *Turn // the call that holds the key, as its process describes it: known at once for this process, and after a few seconds for another; otherwise nil
	// Result is the remembered result with the largest fence. Remembered reports whether a quorum of the masters remembers it, so that every call
	// with WithRecall meets it. Then Result.Keep is how long a quorum will remember it.
	Result     Result
	Remembered bool
	Masters    []Master // in the order of Status.Masters
}

// Result is a remembered result without its content. It is zero if there is none.
type Result struct {
	Fence uint64        // the fence of the lock whose UnlockWith has left the result
	Bytes int           // how many bytes the masters store
	Keep  time.Duration // how long the result is still remembered
}

// Master is the state of a key on one master.
type Master struct {
	Name   string
	Err    error         // the reason why the master can't be asked, or hasn't answered
	Token  string        // the beginning of the token that has the key; empty if the key is free
	Holder string        // the process with that token: its instance name, or its ID
	TTL    time.Duration // the rest of the lease
	Fence  uint64        // the key's last fencing token; 0 if the master has forgotten it. It remembers a token for at least 5 s and the lock's TTL
	Result Result        // the result that the master remembers for the key
	Queue  []Waiter      // the processes that wait for the key, in the order of the queue: at most 100
}

// Waiter is a process that waits for a key.
type Waiter struct {
	Process string    // the process's instance name, or its ID
	Since   time.Time // when the process's oldest call came, on the masters' clocks
	Turn    *Turn     // the first of the process's calls that wait; nil if it isn't known
}

// Key asks all masters who holds a key, who waits for it, and whether a result is remembered for it. It changes nothing. It waits for the masters
// until ctx ends, but no longer than Lock does: for their timeouts, and for connections that are being made. It takes two round trips.
//
// The error is a *redlock.QuorumError if fewer masters than a quorum have answered. Then it isn't known whether the key is held, and the view shows
// the replies that have come. If the Locker is closed, the error is redlock.ErrClosed, and there is no view.
func Key(ctx context.Context, l *redlock.Locker, key string) (*View, error) {
	return Slot(ctx, l, key, 0)
}

// Slot is Key for one slot of a key that may have several holders: see redlock.WithConcurrency. All slots have the same queue.
func Slot(ctx context.Context, l *redlock.Locker, key string, slot int) (*View, error) {
	in, err := enter(ctx, l)
	if err != nil {
		return nil, err
	}
	seen, _, err := in.look(ctx, key, slot)
	if seen != nil {
		in.nameProcesses(ctx, key, seen)
	}
	return seen, err
}

// Slots is Key for a key that may have several holders: see redlock.WithConcurrency. It returns slot 0, whose view has the queue and the result, and
// each further slot that any master has given to a holder. It asks each master for all 256 slots, with one command each.
//
// The error is the same as Key's. With an error, Slots returns the views that it has. It returns no views if the Locker is closed.
func Slots(ctx context.Context, l *redlock.Locker, key string) ([]*View, error) {
	first, err := Slot(ctx, l, key, 0)
	if first == nil {
		return nil, err
	}
	slots := []*View{first}
	for next := 1; next < protocol.MaxSlots && err == nil; next += slotsAtOnce {
		var more []*View
		for range 2 { // one slow reply of a master must not end the search
			if more, err = someSlots(ctx, l, key, next, min(next+slotsAtOnce, protocol.MaxSlots)); err == nil || ctx.Err() != nil {
				break
			}
		}
		slots = append(slots, more...)
	}
	return slots, err
}

// slotsAtOnce is how many slots a master is asked for at once, so that other commands don't wait long.
const slotsAtOnce = 32

// someSlots returns the slots from first to end-1 that any master has given to a holder.
func someSlots(ctx context.Context, l *redlock.Locker, key string, first, end int) (slots []*View, err error) {
	in, err := enter(ctx, l)
	if err != nil {
		return nil, err
	}
	seen, failed := make([]*View, end-first), make([]error, end-first)
	var all sync.WaitGroup
	for i := range seen {
		all.Go(func() { seen[i], _, failed[i] = in.look(ctx, key, first+i) })
	}
	all.Wait()
	for i, v := range seen {
		if v != nil && v.given() {
			slots = append(slots, v)
		}
		err = cmp.Or(err, failed[i])
	}
	in.nameProcesses(ctx, key, slots...)
	return slots, err
}

// given reports whether any master has given the slot to a holder.
func (v *View) given() bool {
	return slices.ContainsFunc(v.Masters, func(m Master) bool { return m.Token != "" })
}

// inside is a Locker with the unexported parts that this package needs.
type inside struct {
	hook.Inside
	*redlock.Locker
}

func enter(ctx context.Context, l *redlock.Locker) (*inside, error) {
	in, err := hook.InsideOf(ctx, l)
	return &inside{in, l}, err
}

// look asks the masters for a slot. The view has the IDs of processes in place of their names. token is the holder's token.
func (in *inside) look(ctx context.Context, key string, slot int) (seen *View, token string, err error) {
	switch {
	case key == "":
		return nil, "", errors.New("redlock: key is empty")
	case len(key) > redlock.MaxKeyLength:
		return nil, "", fmt.Errorf("%w: it has %d bytes, and may have %d", redlock.ErrKeyTooLong, len(key), redlock.MaxKeyLength)
	case slot < 0 || slot >= protocol.MaxSlots:
		return nil, "", fmt.Errorf("redlock: slot %d: must be 0 to %d", slot, protocol.MaxSlots-1)
	}
	full := in.fullKey(key, slot)
	replies, err := in.ask(ctx, protocol.Command{Op: protocol.OpInspect, Key: full, Given: protocol.Given(key)}, nil)
	if replies == nil {
		return nil, "", err
	}
	seen = &View{Key: key, Slot: slot, Masters: make([]Master, len(replies))}
	carriers := make(map[string][]int) // the masters of each token
	for i, reply := range replies {
		seen.Masters[i] = masterOf(reply)
		seen.Masters[i].Name = in.Name(i, full)
		if has, ok := reply.Answer.(*protocol.Inspected); ok && has.Holder != "" {
			carriers[has.Holder] = append(carriers[has.Holder], i)
		}
	}
	for holder, at := range carriers {
		if len(at) >= in.Quorum {
			token = holder
			seen.held(at, in.Quorum)
		}
	}
	seen.remembered(in.Quorum)
	return seen, token, err
}

// fullKey returns the name of a slot's key on the masters.
func (in *inside) fullKey(key string, slot int) string {
	return protocol.SlotKey(protocol.Key(in.Prefix, key), slot)
}

// ask sends a command to all masters, as Masters.AskAll does. If fewer than a quorum have answered, it returns the replies and a
// *redlock.QuorumError. If the Locker is closed, it returns redlock.ErrClosed, and no replies.
func (in *inside) ask(ctx context.Context, cmd protocol.Command, done func(protocol.Reply) bool) ([]protocol.Reply, error) {
	replies, end := in.AskAll(ctx, cmd, done)
	select {
	case <-in.Closing:
		return nil, redlock.ErrClosed
	default:
	}
	var failed []*redlock.MasterError
	for i, reply := range replies {
		if reply.Err != nil {
			failed = append(failed, &redlock.MasterError{Master: in.Name(i, cmd.Key), Err: reply.Err})
		}
	}
	answered := len(replies) - len(failed)
	if answered >= in.Quorum {
		return replies, nil
	}
	err := &redlock.QuorumError{Answered: answered, Quorum: in.Quorum, Total: len(replies), Masters: failed}
	if end == vote.CallerLeft {
		err.Err = context.Cause(ctx)
	}
	return replies, err
}

// masterOf reads a master's reply. It leaves the IDs of processes in place of their names.
func masterOf(reply protocol.Reply) Master {
	has, ok := reply.Answer.(*protocol.Inspected)
	if !ok {
		return Master{Err: reply.Err}
	}
	m := Master{TTL: has.TTL, Fence: uint64(has.Fence)}
	if token := has.Holder; token != "" {
		m.Holder, m.Token = protocol.IDOf(token), protocol.Shown(token)
	}
	if result := has.Result; result != nil {
		m.Result = Result{Fence: uint64(result.Fence), Bytes: result.Size, Keep: result.Keep}
	}
	for line := range strings.Lines(has.Queue) {
		if w, ok := protocol.ParseWaiter(strings.TrimSuffix(line, "\n")); ok {
			m.Queue = append(m.Queue, Waiter{Process: protocol.IDOf(w.Process), Since: time.UnixMicro(w.Ticket)})
		}
	}
	return m
}

// held notes that the masters at these indexes have given the key to one holder.
func (v *View) held(at []int, quorum int) {
	var fences []int64
	var left []time.Duration
	for _, i := range at {
		fences, left = append(fences, int64(v.Masters[i].Fence)), append(left, v.Masters[i].TTL)
	}
	slices.Sort(left)
	fence, _ := vote.ChooseFence(fences, quorum) // the holder has chosen its fence in the same way
	v.Held, v.Fence, v.Holder, v.TTL = true, uint64(fence), v.Masters[at[0]].Holder, left[len(left)-quorum]
}

// remembered finds the result with the largest fence, and whether a quorum of the masters remembers it.
func (v *View) remembered(quorum int) {
	var keeps []time.Duration // how long each master keeps that result, the longest time first
	for _, m := range v.Masters {
		if m.Result.Fence > v.Result.Fence {
			v.Result, keeps = m.Result, nil
		}
		if m.Result.Fence == v.Result.Fence && m.Result.Fence > 0 {
			keeps = append(keeps, m.Result.Keep)
		}
	}
	if len(keeps) == 0 {
		return
	}
	slices.SortFunc(keeps, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	v.Result.Keep = keeps[0]
	if v.Remembered = len(keeps) >= quorum; v.Remembered {
		v.Result.Keep = keeps[quorum-1]
	}
}

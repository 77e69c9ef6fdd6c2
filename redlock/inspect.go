package redlock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Inspection is a key as the masters see it.
type Inspection struct {
	Key   string
	Slot  int  // the number of the slot, if the key may have several holders; otherwise 0
	Slots int  // how many slots the key has, if this process holds one of several; otherwise 0
	Held  bool // a quorum of the masters has given the key to one holder
	// Fence is the fencing token of the holder's lock, Holder the instance name of its process, or the process's ID if
	// that isn't known any more, and TTL how long the lease still lasts unless it is renewed. They are zero if
	// the key isn't held. While a master doesn't answer, Fence may be larger than that of the lock.
	Fence  uint64
	Holder string
	TTL    time.Duration
	Turn   *Turn // the call of the holder's process: known at once for this process, and after a few seconds for another; otherwise nil
	// Result is the last result that any master remembers, by its fence. Remembered reports whether a quorum of the masters remembers it, so that
	// every call with WithRecall meets it; then Keep is how long that stays so.
	Result     InspectedResult
	Remembered bool
	Masters    []InspectedMaster // in the order of Status
}

// InspectedResult is a remembered result without its content. It is zero if there is none.
type InspectedResult struct {
	Fence uint64        // the fence of the lock whose UnlockWith has left the result
	Bytes int           // how many bytes the masters store
	Keep  time.Duration // how long the result is still remembered
}

// InspectedMaster is a key as one master sees it.
type InspectedMaster struct {
	Name   string
	Err    error             // the reason why the master can't be asked, or hasn't answered
	Token  string            // the beginning of the token that has the key; empty if the key is free
	Holder string            // the process with that token: its instance name, or its ID
	TTL    time.Duration     // the rest of the lease
	Fence  uint64            // the last fence given with the key; 0 if the master has forgotten it, 5 s after it was given or last renewed
	Result InspectedResult   // the result that the master remembers for the key
	Queue  []InspectedWaiter // processes that wait for the key, the first in line first: at most 100
}

// InspectedWaiter is a process that waits for a key.
type InspectedWaiter struct {
	Process string    // the process's instance name, or its ID
	Since   time.Time // when the process's oldest call came, on the masters' clocks
	Turn    *Turn     // the first of the process's calls, as for the holder
}

// idOf returns the process ID at the beginning of the random part of a token or a name. For a foreign token it returns some part as well.
func idOf(random string) string { return random[:min(protocol.IDLen, len(random)/2)] }

// shown returns the part of a token that Inspect shows: a whole token could end the lock.
func shown(token string) string { return token[:min(protocol.IDLen+4, len(token)/2)] }

// Inspect asks all masters who holds a key, who waits for it, and whether a result is remembered for it, in this process and in others. It changes
// nothing. It waits for the masters until ctx ends, or as long as Lock does: for their timeouts, and for connections that are being made. It takes
// two round trips.
//
// The error is a *QuorumError if fewer masters than a quorum have answered: then it isn't known whether the key is held, and the inspection shows the
// replies of the others. It is ErrClosed, without an inspection, if the Locker is closed.
func (l *Locker) Inspect(ctx context.Context, key string) (*Inspection, error) {
	return l.InspectSlot(ctx, key, 0)
}

// InspectSlot is Inspect for a slot of a key with several: see WithConcurrency. All slots have the same line.
func (l *Locker) InspectSlot(ctx context.Context, key string, slot int) (*Inspection, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	seen, _, err := l.look(ctx, key, slot)
	if seen != nil {
		l.nameProcesses(ctx, seen)
	}
	return seen, err
}

// look asks the masters. The inspection has the IDs of processes in place of their names. token is the holder's.
func (l *Locker) look(ctx context.Context, key string, slot int) (seen *Inspection, token string, err error) {
	if err := checkKeys(key); err != nil {
		return nil, "", err
	}
	if slot < 0 || slot >= protocol.MaxSlots {
		return nil, "", fmt.Errorf("redlock: slot %d: must be 0 to %d", slot, protocol.MaxSlots-1)
	}
	full := protocol.SlotKey(protocol.Key(l.prefix, key), slot)
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpInspect, Key: full}, nil)
	if l.ends() {
		return nil, "", ErrClosed
	}
	seen = &Inspection{Key: key, Slot: slot, Slots: l.gates.slotsOf(protocol.Key(l.prefix, key)), Masters: make([]InspectedMaster, len(replies))}
	carriers := make(map[string][]int) // the masters of each token
	for i, reply := range replies {
		seen.Masters[i] = inspected(reply)
		seen.Masters[i].Name = l.voters.Name(i, full)
		if has, ok := reply.Answer.(*protocol.Inspected); ok && has.Holder != "" {
			carriers[has.Holder] = append(carriers[has.Holder], i)
		}
	}
	for holder, at := range carriers {
		if len(at) >= l.voters.Quorum {
			token = holder
			seen.held(at, l.voters.Quorum)
		}
	}
	seen.remembered(l.voters.Quorum)
	return seen, token, l.tooFew(ctx, full, replies, end)
}

// tooFew returns an error if fewer masters than a quorum have answered.
func (l *Locker) tooFew(ctx context.Context, key string, replies []protocol.Reply, end vote.Ending) error {
	var failed []*MasterError
	for i, reply := range replies {
		if reply.Err != nil {
			failed = append(failed, &MasterError{l.voters.Name(i, key), reply.Err})
		}
	}
	answered := len(replies) - len(failed)
	if answered >= l.voters.Quorum {
		return nil
	}
	err := &QuorumError{Answered: answered, Quorum: l.voters.Quorum, Total: len(replies), Masters: failed}
	if end == vote.CallerLeft {
		err.Err = cmp.Or(context.Cause(ctx), ErrClosed)
	}
	return err
}

// inspected reads a master's reply. It leaves IDs in place of names.
func inspected(reply protocol.Reply) InspectedMaster {
	has, ok := reply.Answer.(*protocol.Inspected)
	if !ok {
		return InspectedMaster{Err: reply.Err}
	}
	m := InspectedMaster{TTL: has.TTL, Fence: uint64(has.Fence)}
	if token := has.Holder; token != "" {
		m.Holder, m.Token = idOf(token), shown(token)
	}
	if result := has.Result; result != nil {
		m.Result = InspectedResult{Fence: uint64(result.Fence), Bytes: result.Size, Keep: result.Keep}
	}
	for line := range strings.Lines(has.Queue) {
		if w, ok := protocol.ParseWaiter(strings.TrimSuffix(line, "\n")); ok {
			m.Queue = append(m.Queue, InspectedWaiter{Process: idOf(w.Process), Since: time.UnixMicro(w.Ticket)})
		}
	}
	return m
}

// held notes that the masters at these indexes have given the key to one holder.
func (n *Inspection) held(at []int, quorum int) {
	var fences []int64
	var left []time.Duration
	for _, i := range at {
		fences, left = append(fences, int64(n.Masters[i].Fence)), append(left, n.Masters[i].TTL)
	}
	slices.Sort(left)
	fence, _ := vote.ChooseFence(fences, quorum) // in the way in which the holder has chosen it
	n.Held, n.Fence, n.Holder, n.TTL = true, uint64(fence), n.Masters[at[0]].Holder, left[len(left)-quorum]
}

// remembered finds the last result, and whether a quorum of the masters remembers it.
func (n *Inspection) remembered(quorum int) {
	var keeps []time.Duration // how long masters keep the last result, the longest time first
	for _, m := range n.Masters {
		if m.Result.Fence > n.Result.Fence {
			n.Result, keeps = m.Result, nil
		}
		if m.Result.Fence == n.Result.Fence && m.Result.Fence > 0 {
			keeps = append(keeps, m.Result.Keep)
		}
	}
	if len(keeps) == 0 {
		return
	}
	slices.SortFunc(keeps, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	n.Result.Keep = keeps[0]
	if n.Remembered = len(keeps) >= quorum; n.Remembered {
		n.Result.Keep = keeps[quorum-1]
	}
}

// nameProcesses replaces the IDs of processes by their names, if any master knows them, and adds the turns that they tell masters.
func (l *Locker) nameProcesses(ctx context.Context, seen *Inspection) {
	names, turns := map[string]string{l.voters.Process: l.instance}, map[string]*storedTurn{l.voters.Process: l.ownTurn(seen.Key, seen.Slot)}
	var unknown []string
	seen.processes(func(id *string, _ **Turn, _ uint64) {
		if names[*id] == "" && *id != "" && !slices.Contains(unknown, *id) {
			unknown = append(unknown, *id)
		}
	})
	if len(unknown) > 0 && l.heart != nil {
		left := len(unknown)
		l.ask(ctx, protocol.Command{Op: protocol.OpNames, Key: l.heart.key, Ask: &protocol.Names{IDs: unknown, Hash: KeyHash(seen.Key)}}, func(reply protocol.Reply) (done bool) {
			named, ok := reply.Answer.(*protocol.Named)
			if !ok {
				return false
			}
			for line := range strings.Lines(named.Turns) {
				id, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
				turns[id] = cmp.Or(turns[id], parseTurn(text))
			}
			for line := range strings.Lines(named.Lines) {
				if p, ok := heartbeat.Parse(strings.TrimSuffix(line, "\n"), time.Now()); ok && names[p.ID] == "" {
					names[p.ID] = p.Name
					left--
				}
			}
			return left <= 0
		})
	}
	seen.processes(func(id *string, turn **Turn, fence uint64) {
		*turn = turns[*id].turn(fence)
		*id = cmp.Or(names[*id], *id)
	})
}

// processes calls f for each process in the inspection, with its ID, the place for its turn, and its fence.
func (n *Inspection) processes(f func(id *string, turn **Turn, fence uint64)) {
	f(&n.Holder, &n.Turn, n.Fence)
	for i := range n.Masters {
		m := &n.Masters[i]
		f(&m.Holder, new(*Turn), m.Fence)
		for j := range m.Queue {
			f(&m.Queue[j].Process, &m.Queue[j].Turn, 0)
		}
	}
}

// ask sends a command to all masters and returns the replies that have come when done reports that they are enough, when ctx has ended, or when the
// masters' time is over. The other replies have errors.
func (l *Locker) ask(ctx context.Context, cmd protocol.Command, done func(protocol.Reply) bool) (replies []protocol.Reply, end vote.Ending) {
	r := l.voters.NewRound(cmd.Op, 1)
	over := new(atomic.Bool)
	defer over.Store(true)
	var timeout time.Duration
	for i, s := range l.voters.Streams {
		timeout = max(timeout, s.At(cmd.Key).Patience())
		s.Push(&link.Command{Command: cmd, Master: i, Abandoned: over, To: r.Replies})
	}
	replies = make([]protocol.Reply, len(l.voters.Streams))
	answered := make([]bool, len(l.voters.Streams))
	within := vote.NewSpan(timeout)
	end = r.Collect(ctx, l.closing, &within, len(l.voters.Streams), func(c *link.Command, _ int) bool {
		replies[c.Master], answered[c.Master] = c.Reply, true
		return done != nil && done(c.Reply)
	})
	for i := range replies {
		switch {
		case answered[i]:
		case end == vote.CallerLeft:
			replies[i].Err = cmp.Or(context.Cause(ctx), ErrClosed)
		default:
			replies[i].Err = l.voters.Hung(i, cmd.Key, timeout)
		}
	}
	return replies, end
}

// InspectSlots is Inspect for a key that may have several holders, see WithConcurrency: it returns slot 0, which has the line and the result, and
// each further slot that any master has given to somebody. It asks each master for all 256 slots, with one command each.
//
// The error is as for Inspect. It returns all that is known despite an error, and nothing if the Locker is closed.
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

// inspectSlots returns the slots from first to end-1 that any master has given to somebody.
func (l *Locker) inspectSlots(ctx context.Context, key string, first, end int) (slots []*Inspection, err error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
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

// slotsAtOnce is how many slots a master is asked for at once, because it has other work.
const slotsAtOnce = 32

// given reports whether any master has given the slot to somebody.
func (n *Inspection) given() bool {
	return slices.ContainsFunc(n.Masters, func(m InspectedMaster) bool { return m.Token != "" })
}

// ForceUnlock frees a key that a lock with this fencing token holds, in any process: for an operator who knows that the holder must not have it any
// longer. Inspect shows the token. If the holder still works, the next one works at the same time: mutual exclusion is broken on purpose. Fencing
// tokens still grow, so a store that checks them refuses the former holder's writes.
//
// The holder loses the lock with ErrForced: at once if it is in this process, else at its next renewal, after a third of its TTL. It can't take the
// key back. The calls that wait for the key are woken.
//
// The error matches ErrFenceChanged if the key is free, if another lock has it, or if the masters that answer don't know this token. Then nothing is
// released. Masters forget a lock's token 5 s after it was taken or renewed. While a master is missing, Inspect may show a larger token than the
// lock's own. The error is a *QuorumError if too few masters answer: then the key may be free on the others. It is ErrClosed if the Locker is closed.
// ForceUnlock waits for the masters as Inspect does.
func (l *Locker) ForceUnlock(ctx context.Context, key string, fence uint64) error {
	return l.ForceUnlockSlot(ctx, key, 0, fence)
}

// ForceUnlockSlot is ForceUnlock for a slot of a key with several: see WithConcurrency. Fencing tokens of different slots can't be compared.
func (l *Locker) ForceUnlockSlot(ctx context.Context, key string, slot int, fence uint64) error {
	if fence == 0 {
		return fmt.Errorf("%w: 0 stands for one that the masters have forgotten", ErrFenceChanged)
	}
	if err := l.usable(ctx); err != nil {
		return err
	}
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.leave()
	seen, token, err := l.look(ctx, key, slot)
	switch {
	case err != nil:
		return err
	case !seen.Held:
		return fmt.Errorf("%w: it is free", ErrFenceChanged)
	case seen.Fence == 0:
		return fmt.Errorf("%w: the masters have forgotten that of the one that has it, and learn it when its lease is renewed: try again then, or wait until the lease ends", ErrFenceChanged)
	case !seen.has(token, fence):
		return fmt.Errorf("%w: the one that has it has the fencing token %d", ErrFenceChanged, seen.Fence)
	}
	full, by := protocol.SlotKey(protocol.Key(l.prefix, key), slot), l.operator(ctx)
	released := false
	if lock := l.gates.holding(full, token); lock != nil { // its context ends before the next holder has the key
		lock.isForcedBy(by)
		released = lock.end(EndForced)
		ctx = context.WithoutCancel(ctx) // ctx may be the context of this lock
	}
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpForce, Key: full, Token: token, TTL: l.maxTTL, Ask: &protocol.Force{By: by}}, nil)
	for _, reply := range replies {
		released = released || reply.Status == protocol.StatusReleased
	}
	if err := l.tooFew(ctx, full, replies, end); err != nil {
		return err
	}
	if !released {
		return fmt.Errorf("%w: the lock has just ended", ErrFenceChanged)
	}
	return nil
}

// Forget makes the masters forget the result that UnlockWith has left for a key, so that the next call with WithRecall does the work again: for an
// operator who knows that it must be done again. It takes the lock on the key, so that nobody does the work meanwhile: the command that frees the key
// on a master removes the result there.
//
// If the error is nil, a quorum of the masters has forgotten the result, and so have the others that answer. left has the masters that may still
// remember it, each with the reason. One master with the result is enough for a call to meet it, and to store it on the others again, so call Forget
// again when they are back.
//
// The error is ErrNotRemembered if no master that answers remembers a result, with the others in left. It is a *HeldError if
// somebody holds the key: then nothing is forgotten. It is a *QuorumError if too few masters answer: then some may have
// forgotten the result. It is ErrClosed if the Locker is closed.
func (l *Locker) Forget(ctx context.Context, key string) (left []*MasterError, err error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	var forgotten uint64 // results with a smaller fence are forgotten as well
	for try := 0; ; try++ {
		seen, _, err := l.look(ctx, key, 0)
		if err != nil {
			return nil, err
		}
		left, remember := seen.mayRemember(forgotten)
		switch {
		case !remember && try == 0:
			return left, ErrNotRemembered
		case !remember, try == forgetTries:
			return left, nil
		}
		lock, err := l.TryLock(ctx, key)
		if forgotten > 0 && errors.Is(err, ErrHeld) { // the work is being done again, and its result will count
			return left, nil
		}
		if err != nil {
			return nil, err
		}
		if err := lock.unlockForgetting(); err != nil {
			return nil, err
		}
		forgotten = lock.Fence()
		select { // by then, calls that were storing the result on other masters are done
		case <-time.After(l.timeout):
		case <-ctx.Done():
		}
	}
}

// operator returns the name, for the holder's log, of whoever released a lock by force.
func (l *Locker) operator(ctx context.Context) string {
	who := l.instance
	if name, _ := ctx.Value(operatorKey{}).(string); name != "" {
		who += ", asked by " + name
	}
	return strings.ToValidUTF8(who[:min(len(who), maxOperator)], "")
}

// has reports whether a master has given the key to this token with this fence. A master that has the key has the lock's fence; the Fence of an
// Inspection may be larger if a master is missing.
func (n *Inspection) has(token string, fence uint64) bool {
	return slices.ContainsFunc(n.Masters, func(m InspectedMaster) bool { return m.Token == shown(token) && m.Fence == fence })
}

// forgetTries is how often Forget takes the lock: calls that were storing the result on other masters meanwhile may have left it on one again.
const forgetTries = 3

var errStillRemembers = errors.New("it still remembers a result: a call was handing it on")

// mayRemember returns the masters that remember a result with a fence below the given one, or any result if fence is 0, and the masters that haven't
// answered. remember says whether there are masters of the first kind.
func (n *Inspection) mayRemember(fence uint64) (which []*MasterError, remember bool) {
	for _, m := range n.Masters {
		switch {
		case m.Err != nil:
			which = append(which, &MasterError{m.Name, m.Err})
		case m.Result.Fence > 0 && (fence == 0 || m.Result.Fence < fence):
			which = append(which, &MasterError{m.Name, errStillRemembers})
			remember = true
		}
	}
	return which, remember
}

type operatorKey struct{}

// maxOperator bounds the bytes of the name given to AskedBy, because the masters keep it.
const maxOperator = 200

// AskedBy says who asks for a ForceUnlock with this context, in the caller's words, such as a name and an address. The holder's log has it, after the
// instance of the process that was asked. It is cut after 200 bytes.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, operatorKey{}, who)
}

// KeyHash returns the beginning of the SHA-256 of a key, in hexadecimal digits. Log lines have it in place of the key, which may be personal data, so
// that all lines about one key can be found. Anybody who can guess a key can check the guess.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

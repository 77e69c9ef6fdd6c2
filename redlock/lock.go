package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// MaxResult is the largest number of bytes of a result.
const MaxResult = protocol.MaxResult

var (
	errNoRoom    = fmt.Errorf("%w: %d others are being stored or read, and it is not remembered", ErrNoRoom, vote.ResultRoom)
	errNotStored = errors.New("the result could not be stored")
)

// Lock is a lock that is held until Unlock, or until it is lost. Its lease is renewed all that time. So a Lock that the caller drops without Unlock
// is held until the Locker is closed, the process ends, or the time of WithMaxHold is over. The log names a lock that has been held for an hour. The
// methods of a Lock are safe for concurrent use.
type Lock struct {
	call        *call
	place       *place
	attempt     *vote.Attempt
	gate        *gate
	acquisition inside.Acquisition
	own         heldContext // the context that Context returns
	holdEnd     time.Time   // the end of the time of WithMaxHold; zero for none

	mu      sync.Mutex
	until   time.Time   // the end of the validity so far
	timer   *time.Timer // ends the lock at until
	renewal *renewal
	proofs  []proof                   // the last reply of each master about the lease; nil before the first reply to a renewal
	next    time.Time                 // when the next renewal is due
	refused inside.End                // how the lock will have ended, because masters have refused to renew it: EndForced or EndTaken; otherwise empty
	by      string                    // the operator who has released the lock by force, for the log; or empty
	how     inside.End                // how the lock has ended: see decide and confirm; empty while it is held
	derived map[*heldContext]struct{} // the contexts that WithContext has returned

	scheduled      scheduled
	longHoldLogged bool // the log has said that the lock is held long; only the keeper's goroutine uses it

	whole      []*Lock          // the locks on all keys of the call, if it has several; the first is the caller's
	result     *protocol.Result // a short result that the release stores, an empty one that makes the masters forget theirs, or nil
	unlock     sync.Once
	unlockErr  error
	withResult bool // UnlockWith has freed the lock
}

func newLock(p *place) *Lock {
	a := p.attempt
	k := &Lock{
		call:        p.call,
		place:       p,
		attempt:     a,
		gate:        p.gate,
		acquisition: inside.Acquisition{Waited: time.Since(p.began), Position: p.ahead, Via: p.via, Granted: a.Votes()},
		next:        p.keeper.renewed(a.Start, a.TTL/3, a.TTL),
	}
	if p.maxHold > 0 {
		k.holdEnd = a.Start.Add(p.maxHold)
	}
	k.until = k.bounded(a.Until())
	k.own.lock = k
	k.own.Context, k.own.cancel = context.WithCancelCause(context.WithoutCancel(p.ctx))
	return k
}

func (k *Lock) hasten(by time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = k.next.Add(-by)
}

func (k *Lock) since() time.Time { return k.call.began.Add(k.acquisition.Waited) }

// bounded returns end, or the time when WithMaxHold ends the lock, whichever is earlier.
func (k *Lock) bounded(end time.Time) time.Time {
	if !k.holdEnd.IsZero() && k.holdEnd.Before(end) {
		return k.holdEnd
	}
	return end
}

// errNoLock is the error of a Lock that no call has returned. Methods that return no error panic with it.
var errNoLock = errors.New("redlock: the Lock is nil, or was not returned by a call of a Locker: did that return an error?")

func (k *Lock) isMade() bool { return k != nil && k.attempt != nil }

func (k *Lock) made() *Lock {
	if !k.isMade() {
		panic(errNoLock)
	}
	return k
}

// Context returns a context that ends when the lock does. Its cause (see context.Cause) is ErrLost, ErrMaxHold or ErrForced if the lock was lost,
// context.Canceled after Unlock, and ErrClosed if the Locker was closed. It has the values of the context given to Lock, but doesn't end with it:
// that context bounds the wait for the lock. A call for one of the lock's keys with this context, a context of WithContext, or a child of them fails
// with ErrHeldByCaller. If the key may have several holders, it fails only if the caller's own locks have all slots.
func (k *Lock) Context() context.Context { return &k.made().own }

// WithContext returns a child of ctx that also ends when the lock does, with the same cause as Context, and before another holder can have the lock.
// Call the cancel function when the work is done.
func (k *Lock) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	held := &heldContext{lock: k.made()}
	held.Context, held.cancel = context.WithCancelCause(ctx)
	k.mu.Lock()
	ended := causeOf(k.how)
	if ended == nil {
		if k.derived == nil {
			k.derived = make(map[*heldContext]struct{}, 1)
		}
		k.derived[held] = struct{}{}
	}
	k.mu.Unlock()
	if ended != nil {
		held.cancel(ended)
	}
	return held, func() {
		k.mu.Lock()
		delete(k.derived, held)
		k.mu.Unlock()
		held.cancel(context.Canceled)
	}
}

// heldContext is a context of work under a lock. It knows the lock, so that a call of this work for the same key fails instead of waiting for itself.
type heldContext struct {
	context.Context
	lock   *Lock
	cancel context.CancelCauseFunc
}

type heldContextKey struct{}

func (c *heldContext) Value(key any) any {
	if key == (heldContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func innermost(ctx context.Context) *heldContext {
	held, _ := ctx.Value(heldContextKey{}).(*heldContext)
	return held
}

// waitsForItself reports whether a call with this context would wait for its own caller: the locks of this context and its parents have as many slots
// of the place's key as the call allows. A nil context is under no lock.
func (c *heldContext) waitsForItself(p *place) bool {
	var holders []*Lock
	for ; c != nil; c = innermost(c.Context) {
		if c.lock.Err() != nil {
			continue
		}
		for _, part := range c.lock.parts() {
			if part.place.key == p.key && part.call.sharesMasters(p.shared) && !slices.Contains(holders, part) {
				holders = append(holders, part)
			}
		}
	}
	return len(holders) >= p.slots
}

// Fence returns the lock's fencing token: a number below 2^53, larger than the tokens of all locks on the key before it. A store that remembers the
// largest token it has seen, and refuses writes with smaller ones, is safe from the late write of a holder that was paused past its lease
// (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
func (k *Lock) Fence() uint64 { return uint64(k.made().attempt.Fence) }

// Slot returns the number of the lock's slot, from 0 to n-1, for a key with n holders: see WithConcurrency. No other holder has the same slot.
// Without WithConcurrency it is 0. For a lock on several keys, give the key: the slot is -1 for a key that the lock hasn't.
func (k *Lock) Slot(key ...string) int {
	if len(key) == 0 {
		return int(k.made().attempt.Slot)
	}
	for _, part := range k.made().parts() {
		if part.place.key == protocol.Key(k.call.prefix, key[0]) {
			return part.Slot()
		}
	}
	return -1
}

// Until returns the end of the lock's validity so far. Before that time no other holder can have the lock. Each renewal makes it later. It means
// nothing after the lock has ended.
func (k *Lock) Until() time.Time {
	until := k.made().ownUntil()
	for _, part := range k.whole {
		if end := part.ownUntil(); end.Before(until) {
			until = end
		}
	}
	return until
}

func (k *Lock) ownUntil() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until
}

// Err returns nil while the lock is held, and afterwards the reason for its end: ErrLost, ErrMaxHold, ErrForced, ErrClosed, or context.Canceled after
// Unlock. From Until on it is never nil. The reason never changes. It is also the cause with which the lock's contexts end, and Unlock returns it if
// the lock had ended before Unlock.
func (k *Lock) Err() error {
	k.made().expire() // the timer of the lock may be late
	return k.endedBy()
}

// Unlock frees the lock. It takes no context on purpose, because it must work after the context of the work has ended. It returns as soon as a quorum
// of the masters has freed the key, and takes at most twice the masters' timeout. Masters that missed the release get it again in the background
// until the TTL has passed. Further calls of Unlock do nothing, and return the same error.
//
// The error is nil if the lock was held until now. If the lock had ended before, the work may have overlapped with another holder's. Then the error
// matches ErrExpired and the reason: ErrClosed if Close has freed the lock, and otherwise ErrLost, ErrMaxHold or ErrForced. If only the masters'
// replies show that the lock was lost, the error matches ErrLost, and either ErrExpired or, if another holder has the key, ErrNotOwner.
//
// The error is a *QuorumError, matching ErrNoQuorum, if too few masters confirmed the release. Then the lock is free when its TTL is over, at the
// latest. End returns how the lock has ended, in one word.
func (k *Lock) Unlock() error {
	if !k.isMade() {
		return errNoLock
	}
	k.unlock.Do(func() { k.unlockErr = k.release() })
	return k.unlockErr
}

func (k *Lock) do(ctx context.Context, f func(context.Context, *Lock) error) (err error) {
	defer func() {
		ended := k.Unlock()
		if cause := k.endedBy(); cause != context.Canceled { // Unlock may have returned the error of a call of UnlockWith in f, which isn't only about the lock
			ended = cause
		}
		if ended != nil && !errors.Is(ended, ErrNoQuorum) && !errors.Is(err, ended) {
			err = errors.Join(err, ended)
		}
	}()
	held, cancel := k.WithContext(ctx)
	defer cancel()
	return f(held, k)
}

func (k *Lock) release() error {
	unlocks := &k.call.unlocks
	if !unlocks.enter() {
		return endedError{k.endedBy()} // Close has released the lock, unless it was lost
	}
	defer unlocks.leave()
	if !k.end(inside.EndUnconfirmed) {
		return endedError{k.endedBy()} // the keeper releases the lock, or another call has
	}
	parts := k.parts()
	var left []*Lock
	for _, part := range parts {
		part.call.keeper.reschedule(part, time.Time{})
		part.handOff()
		if len(parts) > 1 {
			left = append(left, part)
		}
	}
	k.call.gates.leave(left...)
	k.attempt.SendSoon()
	var err error
	within := vote.NewSpan(2 * k.attempt.ReleaseTimeout()) // a release takes two round trips if another process has just begun to wait
	for _, part := range parts {
		failed := unreleased(part.call.voters, part.attempt.ConfirmRelease(&within, part.ownUntil()))
		if err == nil || endOf(failed) == inside.EndGone { // if one of several keys was lost, the error says so
			err = failed
		}
	}
	k.confirm(endOf(err))
	k.tell(err)
	return err
}

func (k *Lock) parts() []*Lock {
	if len(k.whole) == 0 {
		return []*Lock{k}
	}
	return k.whole
}

// handOff releases the key. If a call of this process can take over (see nextFor), one command for each master releases this lock and acquires the
// key for that call. A lock on several keys is only released here. The caller removes its parts from their gates together.
func (k *Lock) handOff() {
	if len(k.whole) == 0 {
		if next := k.call.gates.nextFor(k); next != nil {
			next.handOn(k.attempt)
			return
		}
	}
	k.attempt.Free(k.result)
	if len(k.whole) == 0 {
		k.slotEnded()
	}
}

// slotEnded makes the oldest call in line ask after this lock was released. For a key with several holders, the acquire follows the release at once,
// so that the call is in the masters' queues before another process can learn of the release.
func (k *Lock) slotEnded() {
	next := k.call.gates.afterSlot(k)
	if next == nil {
		return
	}
	if next.slots == 1 || next.several() {
		next.promoted <- nil
	} else {
		next.handOn(nil)
	}
	k.call.gates.settleNow(k.gate)
}

// proof is a master's last reply about a lock's lease.
type proof struct {
	asked time.Time // when the round of the reply began; zero without a reply
	held  bool
}

// prove notes a master's reply in a round that began at the time asked. A reply that grants the lease proves it for a TTL from the beginning of its
// round. The lock is valid for as long as a quorum has the lease, even if the proofs come from different rounds. Callers hold mu.
func (k *Lock) prove(master int, asked time.Time, held bool) {
	a := k.attempt
	if k.proofs == nil {
		k.proofs = make([]proof, len(k.call.voters.Streams))
		for _, granted := range a.Granted() {
			k.proofs[granted] = proof{a.Start, true}
		}
	}
	if asked.Before(k.proofs[master].asked) {
		return // the reply of a later round is already known
	}
	k.proofs[master] = proof{asked, held}
	for _, oldest := range k.proofs {
		quorum := 0
		for _, p := range k.proofs {
			if p.held && !p.asked.Before(oldest.asked) {
				quorum++
			}
		}
		end := k.bounded(oldest.asked.Add(a.TTL - admission.Drift(a.TTL)))
		if quorum >= k.call.voters.Quorum && end.After(k.until) {
			k.until = end
			k.expireAt(end)
		}
	}
}

// renew queues extends for all masters if the lock is due; the keeper sends them. It returns when the lock is due next, or the zero time if it has
// ended. An Unlock at the same time does no harm: a release undoes an extend that was sent before it, and an extend that is still queued then is
// dropped.
//
// Slow masters are not asked more often than others. A round begins a third of the TTL after the previous round, or sooner if the previous round
// can't renew the lease any more.
func (k *Lock) renew(now time.Time) (due time.Time) {
	ttl := k.attempt.TTL
	k.mu.Lock()
	if k.how == "" && vote.Past(k.until) {
		k.expireAt(time.Now()) // the timer stands still while the host is suspended
		k.next = now.Add(ttl)
	}
	ended, early, until := k.how != "", now.Before(k.next) && !k.renewal.hopeless(), k.until
	due = k.next
	r := &renewal{lock: k, start: now}
	var failure error
	if !ended && !early {
		failure = k.renewal.failure()
		k.renewal = r
		k.next = k.call.keeper.renewed(now, ttl/3, ttl)
		due = k.call.keeper.renewed(now, ttl/9+ttl/30, ttl) // by then this round may be known to be hopeless
	}
	k.mu.Unlock()
	switch {
	case ended:
		return time.Time{}
	case early:
		return due
	case failure != nil:
		k.call.reporter.renewed(failure)
	}
	k.attempt.EnqueueRenewal(until, r)
	return due
}

// unrenewed returns why the last round has not renewed the lease, or nil if it has, or if there was no round.
func (k *Lock) unrenewed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewal.failure()
}

// watch sets the timer that ends the lock at the end of its validity.
func (k *Lock) watch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.how == "" {
		k.expireAt(k.until)
	}
}

// expireAt makes the lock's timer run out at end, or now if end has passed. The timer's function runs in a separate goroutine, which nothing else can
// delay. Callers hold mu.
func (k *Lock) expireAt(end time.Time) {
	if k.timer != nil {
		k.timer.Reset(time.Until(end))
		return
	}
	k.timer = time.AfterFunc(time.Until(end), k.timeOver)
}

func (k *Lock) timeOver() {
	k.expire()
	k.watch() // the lock may have been renewed at the same time
}

func (k *Lock) expire() {
	if over := k.over(); over != "" && k.ending() == "" {
		k.end(over)
	}
}

// runDone calls f under the lock, and frees the lock: with unlockDone if f has succeeded, and otherwise without a result.
func (k *Lock) runDone(ctx context.Context, f func(context.Context) error, unlockDone func() error) error {
	var done bool
	var unlocked error
	err := k.do(ctx, func(ctx context.Context, _ *Lock) error {
		if err := f(ctx); err != nil {
			return err
		}
		done, unlocked = true, unlockDone()
		return nil
	})
	switch {
	case !done:
		return err
	case errors.Is(unlocked, ErrNotRemembered):
		return unlocked
	}
	return nil // once the result is remembered, no other error of the lock matters: the next holder finds the result
}

// UnlockDone is Unlock after the work has succeeded, for a lock taken WithOncePer. The masters remember the work for the rest of the period. It has
// the same errors as UnlockWith.
func (k *Lock) UnlockDone() error {
	if !k.isMade() {
		return errNoLock
	}
	period := k.call.period
	if period == 0 {
		return errors.Join(errors.New("redlock: UnlockDone needs a lock that was taken WithOncePer: no period is known"), k.Unlock())
	}
	m := mark{Took: time.Since(k.since()), Lasts: time.Duration(periodShare * float64(period))}
	grace := max(time.Millisecond, min(period-m.Lasts, time.Minute)) // if the work has taken longer than its period, calls that waited for it still find the mark
	m.Kept = max(m.Lasts-m.Took, grace)
	text, err := json.Marshal(m)
	if err != nil {
		return errors.Join(err, k.Unlock())
	}
	return k.UnlockWith(text, m.Kept)
}

// UnlockWith is Unlock that also makes the masters remember a result for the key. No call with WithRecall can take the lock before the result is
// remembered. The command that frees the key on a master stores a short result there. A result over 4 KiB is stored on a quorum before the key is
// freed, so the lock is held for up to 10 seconds more. While the result is kept, calls with WithRecall fail with a *DoneError that has it. Once does
// all this in one call.
//
// Unless the error matches ErrNotRemembered, a quorum of the masters remembers the result. Then every later call with WithRecall gets it, unless so
// many masters lose their data that no quorum with the result is left. If the lock had ended before, or Unlock has freed it, nothing is remembered.
// If too few masters confirm the result, some may remember it nevertheless. If masters remember different results, the one with the largest fencing
// token counts. Any other error is an error of Unlock; a quorum had confirmed the result before.
//
// A result has at most MaxResult bytes, and is kept for at least a millisecond. If these limits are broken, or the lock is on several keys or has a
// concurrency above 1, the lock is freed without the result, and the error says so.
func (k *Lock) UnlockWith(result []byte, keep time.Duration) error {
	if !k.isMade() {
		return errNoLock
	}
	k.unlock.Do(func() {
		k.withResult = true
		var wrong error
		remembered := false
		switch {
		case len(result) > MaxResult:
			wrong = fmt.Errorf("redlock: the result has %d bytes: at most %d can be remembered", len(result), MaxResult)
		case checkKeep(keep) != nil:
			wrong = checkKeep(keep)
		case k.attempt.Slots > 1:
			wrong = fmt.Errorf("%w: a result needs a lock with one holder", ErrConcurrency)
		case k.call.spellings:
			wrong = errors.New("redlock: a lock on several keys has no result")
		default:
			k.result = &protocol.Result{Data: string(result), Keep: keep, Fence: k.attempt.Fence}
			if len(result) > protocol.ShortResult { // on the connection for locks, a long result would delay them
				wrong = k.store()
				remembered, k.result = wrong == nil, nil
			}
		}
		err := k.release()
		if k.endedBy() == context.Canceled { // a lost lock leaves no result, whatever else is wrong
			err = errors.Join(wrong, err)
		}
		if err != nil && !remembered {
			err = becauseError{ErrNotRemembered, err}
		}
		k.unlockErr = err
	})
	if !k.withResult {
		return becauseError{ErrNotRemembered, errors.Join(errFreedBefore, k.unlockErr)}
	}
	return k.unlockErr
}

var errFreedBefore = errors.New("redlock: the lock was freed before, without its result")

func checkKeep(keep time.Duration) error {
	if keep < time.Millisecond {
		return fmt.Errorf("redlock: the result is to be kept for %v: must be at least 1ms", keep)
	}
	return nil
}

// store makes the masters remember the result while the lock is held and renewed. It uses the masters' separate connections for results (link.Lane).
// The error is nil if a quorum has confirmed the result, even if the lock is lost meanwhile.
func (k *Lock) store() error {
	if k.Err() != nil { // a lost lock leaves no result
		return errNotStored
	}
	ctx, cancel := context.WithTimeout(&k.own, vote.ResultTime)
	defer cancel()
	if !k.call.voters.EnterRoom(ctx) {
		return errNoRoom
	}
	defer k.call.voters.LeaveRoom()
	if unstored := k.attempt.Store(ctx, k.result); unstored != nil {
		err := noQuorum(k.call.voters, *unstored)
		err.Err = errNotStored
		return err
	}
	return nil
}

func (k *Lock) isForcedBy(by string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == "" {
		k.by = by
	}
}

// unlockForgetting is Unlock that also makes the masters forget the result of an earlier lock.
func (k *Lock) unlockForgetting() error {
	k.unlock.Do(func() {
		k.result = &protocol.Result{Fence: k.attempt.Fence}
		k.unlockErr = k.release()
	})
	return k.unlockErr
}

// words returns the attributes with which the log describes a lock.
func (k *Lock) words() []any {
	words := []any{"key_hash", lockname.Hash(k.place.given), "fence", k.Fence(), "since", k.since().UTC()}
	if label := k.call.label; label != "" {
		words = append(words, "rule", label)
	}
	return words
}

func (k *Lock) lastWords(cause error) []any {
	words := append([]any{"error", cause}, k.words()...)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by != "" {
		words = append(words, "by", k.by)
	}
	return words
}

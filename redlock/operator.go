package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// ForceUnlock frees a key that a lock with this fencing token holds, in whatever process: for an operator who knows that the
// holder must not have it any longer. Inspect shows the token. If the holder still works, the next one works at the same
// time: mutual exclusion is broken on purpose. Only fencing tokens still grow, so a store that checks them refuses the
// former holder's writes.
//
// The holder loses the lock with ErrForced, at once if it is in this process, else at its next renewal, after a third of
// its TTL. It can't take the key back. Who waits for the key is woken.
//
// The error matches ErrFenceChanged if the key is free, if another lock has it, or if the masters have forgotten the token of the lock
// that has it, which they know for 5 s after it was taken or renewed: then nothing is released. It is a
// *QuorumError if too few masters answer: then the key may be free on the others. It is ErrClosed if the Locker is closed.
// ForceUnlock waits for the masters as Inspect does.
func (l *Locker) ForceUnlock(ctx context.Context, key string, fence uint64) error {
	return l.ForceUnlockSlot(ctx, key, 0, fence)
}

// ForceUnlockSlot is ForceUnlock for a slot of a key that may have several holders: see WithConcurrency. The fencing tokens of one slot
// say nothing of those of another.
func (l *Locker) ForceUnlockSlot(ctx context.Context, key string, slot int, fence uint64) error {
	if fence == 0 {
		return fmt.Errorf("%w: 0 stands for one that the masters have forgotten", ErrFenceChanged)
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
		released = lock.lose(ErrForced)
		ctx = context.WithoutCancel(ctx) // it may be that of this lock
	}
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpForce, Key: full, Token: token, TTL: l.maxTTL, By: by}, nil)
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

// has reports whether a master has given the key to this token with this fence. The fence of the lock is among
// these; seen.Fence may be larger if a master is missing.
func (n *Inspection) has(token string, fence uint64) bool {
	return slices.ContainsFunc(n.Masters, func(m InspectedMaster) bool { return m.Token == shown(token) && m.Fence == fence })
}

// isForcedBy notes who released the lock by force, for the log.
func (k *Lock) isForcedBy(by string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == "" {
		k.by = by
	}
}

// holding returns the lock on a key if this process has it with this token, or nil.
func (g *gates) holding(key, token string) *Lock {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, _ := protocol.SlotOf(key)
	if at := g.byKey[line]; at != nil {
		for _, k := range at.locks {
			if k.attempt.acquires[0].Token == token && k.ctx.Err() == nil {
				return k
			}
		}
	}
	return nil
}

// forgetTries is how often Forget takes the lock: calls that were handing the result on while it was forgotten may have left it
// on a master again.
const forgetTries = 3

var errStillRemembers = errors.New("it still remembers a result: a call was handing it on")

// Forget has the masters forget what UnlockWith has left for a key, so that the next call with WithRecall does the work again:
// for an operator who knows that it must be done again. It takes the lock on the key for that, so that nobody does the work
// meanwhile: the command that frees the key on a master removes the result there.
//
// If the error is nil, a quorum of the masters has forgotten the result. The others that answer have forgotten it too; those that
// may still remember it are in left, each with the reason. As one that remembers a result is enough for a call to meet it, call
// Forget again when they have been back for a minute: until then another process may hand them a result that they had missed.
//
// The error is ErrNotRemembered if no master that answers remembers a result, with the others in left. It is a *HeldError if
// somebody holds the key: then nothing is forgotten. It is a *QuorumError if too few masters answer: then some may have
// forgotten the result. It is ErrClosed if the Locker is closed.
func (l *Locker) Forget(ctx context.Context, key string) (left []*MasterError, err error) {
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	var forgotten uint64 // results of smaller fences are
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
		l.late.forget(protocol.Key(l.prefix, key))
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
		select { // by then, calls that were handing the result on have done so
		case <-time.After(l.timeout):
		case <-ctx.Done():
		}
	}
}

// mayRemember returns the masters that remember a result with a smaller fence than this one, or any if it is 0, and those that
// haven't answered; and whether there is one of the former.
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

// unlockForgetting is Unlock that has the masters forget a result of an earlier lock.
func (k *Lock) unlockForgetting() error {
	k.unlock.Do(func() {
		k.result = &protocol.Result{Fence: k.attempt.fence}
		k.unlockErr = k.release()
	})
	return k.unlockErr
}

type operatorKey struct{}

// maxOperator bounds the bytes of what AskedBy says: the masters keep it.
const maxOperator = 200

// AskedBy says who asks for a ForceUnlock with this context, in the words of the caller, such as a name and an address. The log
// of the holder has it, behind the instance of the process that was asked. What is longer than 200 bytes is cut.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, operatorKey{}, who)
}

// operator returns what the holder's log says of who released a lock by force.
func (l *Locker) operator(ctx context.Context) string {
	who := l.instance
	if name, _ := ctx.Value(operatorKey{}).(string); name != "" {
		who += ", asked by " + name
	}
	return strings.ToValidUTF8(who[:min(len(who), maxOperator)], "")
}

// KeyHash returns the beginning of the SHA-256 of a key, in hexadecimal digits. Log lines have it in place of the key, which may be
// personal data, so that what is said of one key can be found together. Who can guess a key can check the guess.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// lastWords are what the log says of a lock that was lost.
func (k *Lock) lastWords(cause error) []any {
	key := protocol.KeyOf(k.attempt.locker.prefix, k.gate.key)
	words := []any{"error", cause, "key_hash", KeyHash(key), "fence", k.Fence(), "since", k.since().UTC()}
	if label := k.caller.label; label != "" {
		words = append(words, "rule", label)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by != "" {
		words = append(words, "by", k.by)
	}
	return words
}

package redlock

import (
	"context"
	"fmt"
	"slices"

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
	if fence == 0 {
		return fmt.Errorf("%w: 0 stands for one that the masters have forgotten", ErrFenceChanged)
	}
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.leave()
	seen, token, err := l.look(ctx, key)
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
	full := protocol.Key(l.prefix, key)
	released := false
	if lock := l.gates.holding(full, token); lock != nil { // its context ends before the next holder has the key
		released = lock.lose(ErrForced)
		ctx = context.WithoutCancel(ctx) // it may be that of this lock
	}
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpForce, Key: full, Token: token, TTL: l.maxTTL}, nil)
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

// holding returns the lock on a key if this process has it with this token, or nil.
func (g *gates) holding(key, token string) *Lock {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.byKey[key]; at != nil && at.isHeld() && at.lock.attempt.acquires[0].Token == token {
		return at.lock
	}
	return nil
}

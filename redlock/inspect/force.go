package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// ErrFenceChanged is the error of Force if the key is free, if a lock with a different fencing token has it, or if the masters don't know the fencing
// token. Force has released nothing then.
var ErrFenceChanged = errors.New("redlock: no lock with this fencing token is known to have the key")

// Force frees a key that the lock with this fencing token holds, in any process. It is for an operator who knows that the holder must not have the
// key any longer. Key shows the token. The slot is 0 unless the key may have several holders: see redlock.WithConcurrency. Fencing tokens of
// different slots can't be compared. If the holder still works, the next one works at the same time: mutual exclusion is broken on purpose. Fencing
// tokens still grow, so a store that checks them refuses the former holder's writes.
//
// The holder loses the lock with redlock.ErrForced: at once if it is in this process, else at its next renewal, after a third of its TTL. It can't
// take the key back. The calls that wait for the key are woken.
//
// The error matches ErrFenceChanged if the key is free, if another lock has it, or if no master that answers has this token. Then nothing is
// released. While a master is missing, Key may show a larger token than the lock's own. The error is a *redlock.QuorumError if too few masters
// answer: then the key may be free on the masters that do. It is redlock.ErrClosed if the Locker is closed. Force waits for the masters as Key does.
func Force(ctx context.Context, l *redlock.Locker, key string, slot int, fence uint64) error {
	if fence == 0 {
		return fmt.Errorf("%w: 0 stands for one that the masters have forgotten", ErrFenceChanged)
	}
	in, err := enter(ctx, l)
	if err != nil {
		return err
	}
	seen, token, err := in.look(ctx, key, slot)
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
	full, by := in.fullKey(key, slot), in.operator(ctx)
	released := in.EndByForce(full, token, by) // now, so that the lock's context ends before the next holder has the key
	ctx = context.WithoutCancel(ctx)           // ctx may be the context of this lock
	replies, err := in.ask(ctx, protocol.Command{Op: protocol.OpForce, Key: full, Token: token, TTL: in.MaxTTL, Ask: &protocol.Force{By: by}}, nil)
	for _, reply := range replies {
		released = released || reply.Status == protocol.StatusReleased
	}
	if err == nil && !released {
		return fmt.Errorf("%w: the lock has just ended", ErrFenceChanged)
	}
	return err
}

// Forget makes the masters forget the result that Lock.UnlockWith has left for a key, so that the next call with redlock.WithRecall does the work
// again. It is for an operator who knows that the work must be done again. It takes the lock on the key, so that nobody does the work meanwhile. The
// command that frees the key on a master removes the result there.
//
// If the error is nil, a quorum of the masters has forgotten the result, and so have the other masters that answer. left has the masters that may
// still remember it, each with the reason. One master with the result is enough for a call to find it, and to store it on the others again. So call
// Forget again when the masters in left are back.
//
// The error is redlock.ErrNotRemembered if no master that answers remembers a result; left has the masters that don't answer. It is a
// *redlock.HeldError if another holder has the key: then nothing is forgotten. It is a *redlock.QuorumError if too few masters answer: then some may
// have forgotten the result. It is redlock.ErrClosed if the Locker is closed.
func Forget(ctx context.Context, l *redlock.Locker, key string) (left []*redlock.MasterError, err error) {
	in, err := enter(ctx, l)
	if err != nil {
		return nil, err
	}
	var forgotten uint64 // the fence of the last lock that Forget took; results with a smaller fence were left before it
	for try := 0; ; try++ {
		seen, _, err := in.look(ctx, key, 0)
		if err != nil {
			return nil, err
		}
		left, remember := seen.mayRemember(forgotten)
		switch {
		case !remember && try == 0:
			return left, redlock.ErrNotRemembered
		case !remember, try == forgetTries:
			return left, nil
		}
		lock, err := l.TryLock(ctx, key)
		if forgotten > 0 && errors.Is(err, redlock.ErrHeld) { // another call does the work again, and its result is a new one
			return left, nil
		}
		if err != nil {
			return nil, err
		}
		if err := in.UnlockForgetting(lock); err != nil {
			return nil, err
		}
		forgotten = lock.Fence()
		select { // calls that have met the old result wait this long for the other masters, and again until they have stored it there
		case <-time.After(2 * in.Patience(in.fullKey(key, 0))):
		case <-ctx.Done():
		}
	}
}

// operator returns the name of the operator who releases a lock by force, for the holder's log.
func (in *inside) operator(ctx context.Context) string {
	who := in.Instance
	if name, _ := ctx.Value(operatorKey{}).(string); name != "" {
		who += ", asked by " + name
	}
	return strings.ToValidUTF8(who[:min(len(who), maxOperator)], "")
}

// has reports whether a master has given the key to this token with this fence. The check is on single masters, because the Fence of a View may be
// larger than the lock's own fence if a master is missing.
func (v *View) has(token string, fence uint64) bool {
	return slices.ContainsFunc(v.Masters, func(m Master) bool { return m.Token == protocol.Shown(token) && m.Fence == fence })
}

// forgetTries is how often Forget takes the lock. Calls that were storing the result on other masters meanwhile may have left it on one of them
// again.
const forgetTries = 3

var errStillRemembers = errors.New("it still remembers a result: a call was handing it on")

// mayRemember returns the masters that remember a result with a fence below the given one, or any result if fence is 0, and the masters that haven't
// answered. remember reports whether a master is known to remember such a result.
func (v *View) mayRemember(fence uint64) (which []*redlock.MasterError, remember bool) {
	for _, m := range v.Masters {
		switch {
		case m.Err != nil:
			which = append(which, &redlock.MasterError{Master: m.Name, Err: m.Err})
		case m.Result.Fence > 0 && (fence == 0 || m.Result.Fence < fence):
			which = append(which, &redlock.MasterError{Master: m.Name, Err: errStillRemembers})
			remember = true
		}
	}
	return which, remember
}

type operatorKey struct{}

// maxOperator bounds the bytes of the name that operator returns, because the masters keep it.
const maxOperator = 200

// AskedBy returns a context for Force with a text about the operator, such as a name and an address. The holder's log has this text, after the
// instance name of the process that runs Force. Both together are cut after 200 bytes.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, operatorKey{}, who)
}

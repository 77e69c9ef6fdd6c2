package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

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
		seen, _, err := l.look(ctx, key)
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
		k.unlockErr = k.freeAll()
	})
	return k.unlockErr
}

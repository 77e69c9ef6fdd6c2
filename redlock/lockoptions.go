package redlock

import (
	"math"
	"time"
)

// WithTTL sets how long a lease lasts on the masters. It is renewed while the lock is held, so the TTL does
// not bound the work: it bounds how long a key stays locked after its holder has died. At least twice the
// timeout and 20 ms, at most the max TTL. Default: 10 s.
func WithTTL(ttl time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.ttl = ttl; return o })
}

// WithWait sets how long a call waits for the lock, at most: from the call on, for all keys of LockAll
// together. The context of the call may end the wait earlier. With 0 the call does not wait at all, as
// TryLock. It bounds neither the lock nor the work of Do. Default: the call waits until its context ends.
//
// An attempt that is under way when the time is over is completed, and may still get the lock: that takes at
// most a few of the masters' timeouts. So a call with a short wait has at least the chances of TryLock.
//
// When the time is over, the error is the same as when the deadline of the context is: a *HeldError or
// *QuorumError that also matches context.DeadlineExceeded.
func WithWait(d time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.wait = d; return o })
}

// WithMaxHold bounds how long a lock is held: then it is lost, with ErrMaxHold, although its lease could be renewed.
// It frees the key of a holder that is stuck. 0 is for no bound. Default: 0, the lock is held until
// Unlock, for as long as its lease can be renewed.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.maxHold = d; return o })
}

// WithConcurrency sets how many holders the key may have at once, over all processes: 1 to MaxConcurrency (256). Each has one of n slots, which is a lock
// of its own: see Lock.Slot and Lock.Fence. All that wait stand in one line, and a slot that becomes free goes to the first. All
// processes should have the same n for a key: where they differ, there are never more holders than the largest n allows, and a process
// takes none of the slots that are beyond its own. LockAll takes a slot of each of its keys.
// WithRecall, WithOncePer, Once and UnlockWith give ErrConcurrency for n above 1. Default: 1.
func WithConcurrency(n int) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.slots = int16Of(n); return o })
}

// WithConcurrencyOf is WithConcurrency for one key, whatever that says of others: so the keys of LockAll may differ. Default: none.
func WithConcurrencyOf(key string, n int) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.slotsOf = &slotsOf{key, int16Of(n), o.slotsOf}; return o })
}

// slotsOf is how many may hold a key at once.
type slotsOf struct {
	key  string
	n    int16
	next *slotsOf
}

// most returns how many may hold a key at once.
func (o *lockOptions) most(key string) int16 {
	for of := o.slotsOf; of != nil; of = of.next {
		if of.key == key {
			return of.n
		}
	}
	return o.slots
}

func int16Of(n int) int16 { return int16(max(min(n, math.MaxInt16), math.MinInt16)) }

// WithMaxWaiters bounds how many calls wait for a key in this process: further ones fail at once, with a *HeldError
// that matches ErrTooManyWaiters. At least 1. Default: 1000.
func WithMaxWaiters(n int) LockOption {
	return lockOption(func(o lockOptions) lockOptions {
		o.maxWaiters = int32(max(min(n, math.MaxInt32), math.MinInt32))
		return o
	})
}

// WithLabel sets a text that Keys shows with the key: what it is locked for. Package middleware sets the name of
// the rule. At most MaxKeyLength bytes. Default: none.
func WithLabel(text string) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.label = text; return o })
}

// WithRequest says for which request a lock is, so that Keys and Inspect can tell those who operate it: Inspect in other processes, too,
// once the call has held the lock, or waited, for some seconds. Nothing of it is logged. It must not be changed any more. Default: none.
func WithRequest(r *Request) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.request = r; return o })
}

// WithRecall has a call fail with a *DoneError if a result is remembered for the key, which an earlier holder has left
// with Lock.UnlockWith: then the work need not be done again. It costs no command more, but waits for the replies of all masters that are
// not known to be away, within their time-out: one that remembers the result is enough. If it can't be read, the error is an
// *UnreadableError. It is for calls with one key.
// Default: remembered results are ignored.
func WithRecall() LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.recall = true; return o })
}

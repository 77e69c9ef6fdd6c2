package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Locker takes locks on a majority of its masters. It is made by New, is safe for concurrent use,
// and must be closed.
type Locker struct {
	options
	streams []*stream
	quorum  int
	terms   string
	name    string // among the waiters on the masters
	gates   gates
	ears    ears
	warned  atomic.Bool // of a process that works under other terms

	keeper *keeper

	closing chan struct{}
	mu      sync.Mutex
	closed  bool
	calls   sync.WaitGroup // of Lock and TryLock
}

// New makes a Locker on these masters, which it owns from now on and closes. The quorum is the
// majority of them, whether they can be reached or not: New doesn't wait for them. It begins to
// connect, so that the log tells early of masters that can't be reached or may not vote.
//
// All processes that share locks must have the same masters, prefix and max TTL.
func New(masters []Master, opts ...Option) (*Locker, error) {
	o, err := newOptions(opts)
	if err == nil && len(masters) == 0 {
		err = errors.New("redlock: no masters; give one, or three or five so that locks survive the loss of a server")
	}
	if err == nil {
		err = distinct(masters)
	}
	if err != nil {
		for _, m := range masters {
			err = errors.Join(err, m.Close())
		}
		return nil, err
	}
	l := &Locker{
		options: o,
		quorum:  len(masters)/2 + 1,
		terms:   terms(len(masters), o.maxTTL),
		name:    o.prefix + ":wake:" + rand.Text(),
		gates:   gates{byKey: make(map[string]*gate)},
		closing: make(chan struct{}),
	}
	voters := &electorate{options: o, masters: masters, servers: make(map[string]int)}
	for i, m := range masters {
		if m, ok := m.(admitter); ok {
			m.admitWith(func(s server) error { return voters.admit(i, s) })
		}
		s := newStream(m, o)
		l.streams = append(l.streams, s)
		s.push(&call{Command: Command{Op: OpPing}, master: i})
	}
	l.ears.locker = l
	l.keeper = newKeeper(l)
	return l, nil
}

// distinct refuses one master named twice.
func distinct(masters []Master) error {
	seen := make(map[string]int)
	for i, m := range masters {
		name := m.String()
		if first, ok := seen[name]; ok {
			return fmt.Errorf("redlock: masters %d and %d are both %s: each must be an independent server", first+1, i+1, name)
		}
		seen[name] = i
	}
	return nil
}

// Lock takes the lock on the key, and waits for it until ctx ends: in the order in which the calls
// came, in this process exactly, and over all processes within the skew of their clocks. When ctx has
// ended the error is a *HeldError or a *QuorumError that tells why the last attempt failed, and
// matches the context's error too. A *HeldError that matches ErrTooManyWaiters comes at once. ErrClosed
// if the Locker is closed.
func (l *Locker) Lock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, false)
}

// LockAll is Lock for several keys: it takes the locks on all of them at once, or none. Calls that want
// some of the same keys don't block each other for ever, whatever the order of the keys. The Lock is
// lost when one of them is, and has one fence for all. In a Redis Cluster the keys may be anywhere.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, distinctKeys(keys), opts, false)
}

// TryLockAll is TryLock for several keys, as LockAll is Lock.
func (l *Locker) TryLockAll(ctx context.Context, keys []string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, distinctKeys(keys), opts, true)
}

// distinctKeys gives each key once, in the order in which all calls go through their gates.
func distinctKeys(keys []string) []string {
	if len(keys) == 1 {
		return keys
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// TryLock takes the lock on the key if it is free now, and nobody waits for it. The error is a
// *HeldError or a *QuorumError. It takes one round trip, and longer only where several callers have taken votes from each other:
// then it tries again, a few times, so that one of them gets the lock.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, true)
}

// Do runs f while it holds the lock on the key, for which it waits as Lock does. The context of f
// is a child of ctx that ends when the lock is lost. The error is that of Lock, or that of f joined
// with ErrLost, ErrExpired or ErrNotOwner if the lock did not last until f had returned.
func (l *Locker) Do(ctx context.Context, key string, f func(context.Context) error, opts ...LockOption) (err error) {
	lock, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer func() {
		lost := lock.Err()
		if unlockErr := lock.Unlock(); lost == nil && !errors.Is(unlockErr, ErrNoQuorum) {
			lost = unlockErr
		}
		err = errors.Join(err, lost)
	}()
	held, cancel := lock.WithContext(ctx)
	defer cancel()
	return f(held)
}

// Check says whether locks can be taken with these options: nil, or what Lock would say of them. It
// is for those who want to know early.
func (l *Locker) Check(opts ...LockOption) error {
	_, err := l.with(opts)
	return err
}

// MaxWaiters is how many calls of Lock may wait for a key in this process, where they aren't given
// another number.
func (l *Locker) MaxWaiters() int { return l.maxWaiters }

func (l *Locker) with(opts []LockOption) (lockOptions, error) {
	if len(opts) == 0 {
		return l.lockOptions, nil // New has checked them
	}
	o := l.lockOptions
	for _, opt := range opts {
		opt.applyToLock(&o)
	}
	return o, l.check(o)
}

// enter counts a call, unless the Locker is closed.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls.Add(1)
	return true
}

// clock gives our proposal for a fence: the time in microseconds, on the masters' clocks rather than
// on ours, so that processes whose clocks differ propose alike.
func (l *Locker) clock() int64 {
	offsets := make([]int64, 0, len(l.streams))
	for _, s := range l.streams {
		if s.clock.known.Load() {
			offsets = append(offsets, s.clock.offset.Load())
		}
	}
	now := time.Now().UnixMicro()
	if len(offsets) == 0 {
		return now
	}
	slices.Sort(offsets)
	return now + offsets[len(offsets)/2]
}

// Close ends all waits with ErrClosed, frees the locks that are still held, whose contexts end with
// ErrClosed, and closes the masters. Where all masters answer, no key, goroutine or connection is
// left when it returns; it takes at most a few of the masters' timeouts.
func (l *Locker) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.closing)
	l.mu.Unlock()
	l.calls.Wait()

	<-l.keeper.ended // it frees the locks that are held
	l.ears.end()
	errs := make([]error, len(l.streams))
	var streams sync.WaitGroup
	for i, s := range l.streams {
		streams.Go(func() { errs[i] = s.close(4 * s.latency.timeout()) })
	}
	streams.Wait()
	return errors.Join(errs...)
}

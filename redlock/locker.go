package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Locker takes locks on a majority of its masters. Open and New make one. It is safe for concurrent
// use, and must be closed.
type Locker struct {
	shared
	close func() error
	calls callGroup
}

// New returns a Locker on these masters. Use it with NewMaster, for masters that no URL can describe,
// and Open otherwise. The Locker owns the masters from now on, and closes them; only a master in
// memory may have several Lockers. The quorum is the majority of them, whether they can be reached or
// not: New does not wait for them. It begins to connect, so that the log soon names masters that
// cannot be reached or may not vote.
//
// All processes that share locks must have the same masters, prefix and max TTL.
//
// New returns an error if an option is wrong, the list of masters is empty, a master is named twice, or a master in memory is beside servers. It then
// closes the masters.
func New(masters []Master, opts ...Option) (*Locker, error) {
	o, err := newOptions(opts)
	if err == nil && o.tls != nil {
		err = errors.New("redlock: WithTLS is for Open: give the TLS settings to the clients of which NewMaster makes masters")
	}
	return newLocker(masters, o, err)
}

// newLocker is New, with the error that the options have.
func newLocker(masters []Master, o options, err error) (*Locker, error) {
	if err == nil && len(masters) == 0 {
		err = errors.New("redlock: no masters; give one, or three or five so that locks survive the loss of a server")
	}
	if err == nil {
		err = checkMasters(masters)
	}
	if err != nil {
		for _, m := range masters {
			err = errors.Join(err, m.close())
		}
		return nil, err
	}
	if len(masters) == 1 {
		o.solo = soloWait
	}
	reporter := newReporter(&o)
	if n := len(masters); n%2 == 0 && !o.warned {
		o.logger.Warn("an even number of masters tolerates no more failures than one master less, and more can fail", "masters", n, "tolerated", (n-1)/2)
	}
	l := &Locker{shared: shared{
		options:  o,
		reporter: reporter,
		pace:     newPace(),
		gates:    gates{byKey: make(map[string]*gate), began: time.Now()},
		closing:  make(chan struct{}),
	}}
	l.voters = vote.New(len(masters), rand.Text()[:protocol.IDLen], o.maxSkew, o.fastFrom, l.closing)
	l.name = o.prefix + ":wake:" + l.voters.Random()
	l.gates.canAsk, l.gates.firstSlot = l.voters.CanAsk, firstSlot(l.voters.Process)
	l.heart = newHeart(o, masters, l.voters.Process)
	voting := o.admission()
	voting.Refused = l.heart.refusal
	seats := admission.New(len(masters), voting)
	for i, m := range masters {
		l.servers = append(l.servers, m.server())
		seat := seats.Add(m.impl)
		seat.OnAdmitted = func(reached protocol.Server) { l.heart.reached(i, reached, seat.LostUntil()) }
		seat.OnServing = l.heart.want
		l.voters.Streams = append(l.voters.Streams, m.connect(o.link(m.impl, reporter), seat))
	}
	l.subscriptions = subscriptions{voters: l.voters, gates: &l.gates, name: l.name, logger: o.logger}
	l.keeper = newKeeper(l.voters, reporter, o.logger)
	l.close = sync.OnceValue(l.end)
	l.heart.start(l) // last, because the heart reads the status of the complete Locker
	return l, nil
}

// soloWait is how long a caller that is alone waits for its own reply on the connection, before the stream's reader does. Most replies of a single
// master come within this time, and a master that hangs delays nobody noticeably.
const soloWait = 2 * time.Millisecond

// checkMasters refuses lists of masters with which two callers could have a majority at once: a master is named twice, or a master in memory is
// beside servers. Each process has its own memory, so that master would be a different one in each process.
func checkMasters(masters []Master) error {
	seen := make(map[string]int)
	inMemory := 0
	for i, m := range masters {
		if m.impl == nil {
			return fmt.Errorf("redlock: master %d is empty: make it with NewMaster", i+1)
		}
		name := m.String()
		if first, ok := seen[name]; ok {
			return fmt.Errorf("redlock: masters %d and %d are both %s: each must be an independent server", first+1, i+1, name)
		}
		seen[name] = i
		if m.inMemory() {
			inMemory++
		}
	}
	if 0 < inMemory && inMemory < len(masters) {
		i := slices.IndexFunc(masters, Master.inMemory)
		return fmt.Errorf("redlock: master %d is %s, beside servers: each process has one of its own, so that two could have a lock at once; name only servers", i+1, masters[i])
	}
	return nil
}

// Lock takes the lock on the key. Keys that differ only in the case of ASCII letters share a lock: rules of package middleware lock values in lower
// case. Results, as those of Once, are each key's own, as it is written. Lock waits for the key until ctx ends, or for as long as WithWait and
// WithMastersWait allow. Calls are served in the order in which they came: exactly within this process, and over all processes up to the differences
// between their clocks. ctx bounds the wait only, not the lock.
//
// If the wait ends without the lock, the error says why the last attempt failed: it is a *HeldError or a *QuorumError, and matches the error of the
// context as well (context.DeadlineExceeded if the time of WithWait is over). If ctx ends before the first attempt does, the error only matches the
// context's. A call in line behind other calls of this process gets their error, or ErrBusy if they haven't asked the masters for its key either. If
// too many calls wait already, the error comes at once, and matches ErrTooManyWaiters. The error is ErrClosed if the Locker is closed.
//
// If too few masters have a vote, a call may end before the time of its wait, with a *QuorumError whose Err is nil. It ends after a minute without
// enough masters, or after the time of WithMastersWait. It ends at once if a restart guard, or the exclusion after a jump of a clock, keeps too many
// masters from voting for longer than that.
func (l *Locker) Lock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, false)
}

// TryLock takes the lock on the key if it is free and no other call waits for it. It is Lock with WithWait(0), whatever the options say. The error is
// a *HeldError or a *QuorumError, the error of ctx if that ends first, or ErrClosed. TryLock takes one round trip to the masters. If several callers
// have split the votes, it tries up to four times more, some milliseconds apart, so that one of them gets the lock.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, true)
}

// MaxKeys is the largest number of different keys in one call of LockAll. That many commands fit into one pipeline, and take a server
// some milliseconds.
const MaxKeys = protocol.MaxBatch

const maxKeyLengths = 64 * MaxKeyLength

// LockAll is Lock for several keys, at most MaxKeys: it takes the locks on all of them at once, or none. Keys that share a lock count once. Calls
// that share some of their keys never block each other forever, in whatever order they name them. LockAll takes as many round trips as Lock. With
// WithWait(0) it doesn't wait, as TryLock. The Lock is lost as soon as it is lost on one key, and has one fencing token for all of them. In a Redis
// Cluster the keys may be on different nodes.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, keys, opts, false)
}

// distinctKeys returns a key for each lock, in the order in which all calls ask for the locks. Of several spellings of a key, it returns the first one
// given.
func distinctKeys(keys []string) []string {
	if len(keys) == 1 {
		return keys
	}
	keys = slices.Clone(keys)
	slices.SortStableFunc(keys, func(a, b string) int { return strings.Compare(lockname.Of(a), lockname.Of(b)) })
	return slices.CompactFunc(keys, func(a, b string) bool { return lockname.Of(a) == lockname.Of(b) })
}

// Do takes the lock on the key, as Lock does, calls f, and frees the lock when f has returned or panicked. The context of f is a child of ctx that
// also ends when the lock is lost. WithWait bounds only the wait for the lock; ctx bounds the wait and f. f gets the lock for its fencing token and
// its state, and need not unlock it.
//
// If the lock could not be taken, the error is Lock's, and f was not called. Otherwise it is the error of f, joined with the reason if the lock did
// not last until f had returned: an error that matches ErrLost, ErrClosed, ErrExpired or ErrNotOwner. A release that the masters did not confirm is
// no error of Do: it is repeated until the TTL has passed.
func (l *Locker) Do(ctx context.Context, key string, f func(ctx context.Context, lock *Lock) error, opts ...LockOption) error {
	lock, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return lock.do(ctx, f)
}

// TryDo is Do with TryLock in place of Lock: it does not wait for the lock.
func (l *Locker) TryDo(ctx context.Context, key string, f func(ctx context.Context, lock *Lock) error, opts ...LockOption) error {
	lock, err := l.TryLock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return lock.do(ctx, f)
}

func (l *Locker) with(opts []LockOption) (lockOptions, error) {
	if len(opts) == 0 {
		return l.lockOptions, nil // New has checked these defaults
	}
	o := l.lockOptions
	for i, opt := range opts {
		if opt == nil {
			return o, nilOption(i)
		}
		o = opt.applyToLock(o)
	}
	return o, l.check(o)
}

// Close ends all waits with ErrClosed, frees the locks that are still held, whose contexts end with ErrClosed, and closes the masters. It waits for
// running calls, including Unlock. If all masters answer, no lock, ticket, goroutine or connection is left when it returns. Masters keep the fencing
// tokens for the locks' TTL, and at least 5 s. They keep some facts about themselves, which processes have told them, for up to an hour. Close takes
// at most a few of the masters' timeouts. Further calls wait for the first, and return its error: an error of closing the masters.
func (l *Locker) Close() error {
	if err := l.usable(context.Background()); err != nil {
		return err
	}
	return l.close()
}

// end is Close. Its order leaves no lock behind: when the keeper ends the held locks, no call can win a new one, and when the streams end, no Unlock
// has anything to send.
func (l *Locker) end() error {
	close(l.closing)
	l.calls.close()
	l.keeper.end()
	l.unlocks.close()
	l.heart.end()
	l.subscriptions.end()
	errs := make([]error, len(l.voters.Streams))
	var streams sync.WaitGroup
	for i, s := range l.voters.Streams {
		streams.Go(func() { errs[i] = s.Close(4 * s.Timeout()) })
	}
	streams.Wait()
	l.reporter.close()
	return errors.Join(errs...)
}

func (l *Locker) lock(ctx context.Context, given []string, opts []LockOption, try bool) (*Lock, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	keys := distinctKeys(given)
	o.spellings = slices.ContainsFunc(given, func(key string) bool { return key != given[0] })
	if err := checkKeys(keys...); err != nil {
		return nil, err
	}
	switch {
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("redlock: %d keys in one call: at most %d can be locked together", len(keys), MaxKeys)
	case o.recall && o.spellings:
		return nil, errors.New("redlock: WithRecall and WithOncePer are for calls with one key")
	}
	var lock *Lock
	if o.period > 0 {
		lock, err = l.ofPeriod(ctx, keys, o, try)
	} else {
		lock, err = l.take(ctx, keys, o, try)
	}
	return lock, labeled(err, o.label)
}

// usable returns an error if the Locker is nil or wasn't made by New or Open, or if ctx is nil.
func (l *Locker) usable(ctx context.Context) error {
	switch {
	case l == nil || l.closing == nil:
		return errors.New("redlock: the Locker is nil, or none that New or Open has made: did that return an error?")
	case ctx == nil:
		return errors.New("redlock: the context is nil: use context.Background()")
	}
	return nil
}

func (l *Locker) take(ctx context.Context, keys []string, o lockOptions, try bool) (*Lock, error) {
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	if err := l.excluded(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, nil)
	}
	c := newCall(ctx, &l.shared, keys, o, try)
	if held := innermost(ctx); held != nil {
		for _, p := range c.places {
			if held.waitsForItself(p) {
				return nil, &HeldError{Slots: p.slots, Err: ErrHeldByCaller}
			}
		}
	}
	return c.run()
}

// checkKeys returns an error if a call has no key, an empty key, or keys that are too long. Their length is bounded because each key is in several
// commands to each master.
func checkKeys(keys ...string) error {
	switch {
	case len(keys) == 0:
		return errors.New("redlock: no key was given")
	case slices.Contains(keys, ""):
		return errors.New("redlock: key is empty")
	}
	sum := 0
	for _, key := range keys {
		if len(key) > MaxKeyLength {
			return fmt.Errorf("%w: it has %d bytes, and may have %d: use a hash of it", ErrKeyTooLong, len(key), MaxKeyLength)
		}
		sum += len(key)
	}
	if sum > maxKeyLengths {
		return fmt.Errorf("%w: those of one call have %d bytes together, and may have %d: use hashes of them", ErrKeyTooLong, sum, maxKeyLengths)
	}
	return nil
}

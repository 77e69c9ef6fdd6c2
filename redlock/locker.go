package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/lockerinfo"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Locker takes locks on a majority of its masters. Open and New make one. It is safe for concurrent
// use, and must be closed.
type Locker struct {
	options
	streams       []*link.Stream
	quorum        int
	id            string // of this process: with it begins what its tokens and its name have by chance
	name          string // among the waiters on the masters
	gates         gates
	subscriptions subscriptions
	differs       atomic.Pointer[otherSlots] // the latest; nil for none

	told    *told
	keeper  *keeper
	late    *lateResults
	room    chan struct{} // has an entry for each result that is being stored or read: at most resultRoom
	refused atomic.Uint64 // results that found no room there

	heart *heart // nil where the masters are only ours

	closing chan struct{} // closed when Close begins
	close   func() error
	calls   callGroup // of Lock and TryLock
	unlocks callGroup // a lock that ends later has been freed by Close
}

// New returns a Locker on these masters. Use it with NewMaster, for masters that no URL can describe,
// and Open otherwise. The Locker owns the masters from now on, and closes them. The quorum is the
// majority of them, whether they can be reached or not: New does not wait for them. It begins to
// connect, so that the log soon names masters that cannot be reached or may not vote.
//
// All processes that share locks must have the same masters, prefix and max TTL.
//
// The error is about the options, an empty list of masters, or a master that is named twice. The
// masters are closed then, too.
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
			err = errors.Join(err, m.close())
		}
		return nil, err
	}
	if len(masters) == 1 {
		o.solo = soloWait
	}
	told := newTold(&o)
	if n := len(masters); n%2 == 0 && !o.warned {
		o.logger.Warn("an even number of masters tolerates no more failures than one master less, and more can fail", "masters", n, "tolerated", (n-1)/2)
	}
	l := &Locker{
		options: o,
		told:    told,
		quorum:  len(masters)/2 + 1,
		id:      rand.Text()[:protocol.IDLen],
		gates:   gates{byKey: make(map[string]*gate)},
		closing: make(chan struct{}),
	}
	l.name = o.prefix + ":wake:" + l.random()
	l.heart = newHeart(o, masters, l.id)
	voting := o.admission()
	voting.Refused = l.heart.refusal
	seats := admission.New(len(masters), voting)
	for i, m := range masters {
		seat := seats.Add(m.impl)
		seat.OnAdmitted = func(reached protocol.Server) { l.heart.reached(i, reached, seat.LostUntil()) }
		seat.OnServing = l.heart.want
		s := link.NewStream(m.impl, o.link(m.impl), seat)
		l.streams = append(l.streams, s)
	}
	l.subscriptions.locker = l
	l.late, l.room = newLateResults(l), make(chan struct{}, resultRoom)
	l.keeper = newKeeper(l)
	l.close = sync.OnceValue(l.end)
	l.heart.start(l) // last: it asks for the status of the whole Locker
	return l, nil
}

// soloWait is so long that one master mostly answers meanwhile, and so short that nobody notices one that doesn't.
const soloWait = 2 * time.Millisecond

// distinct refuses one master named twice.
func distinct(masters []Master) error {
	seen := make(map[string]int)
	for i, m := range masters {
		if m.impl == nil {
			return fmt.Errorf("redlock: master %d is empty: make it with Dial, NewMaster or NewMemoryMaster", i+1)
		}
		name := m.String()
		if first, ok := seen[name]; ok {
			return fmt.Errorf("redlock: masters %d and %d are both %s: each must be an independent server", first+1, i+1, name)
		}
		seen[name] = i
	}
	return nil
}

// Lock takes the lock on the key. It waits for it until ctx ends, or for as long as WithWait allows.
// Calls are served in the order in which they came: exactly within this process, and over all
// processes up to the differences between their clocks. ctx bounds the wait only, not the lock.
//
// If the wait ends without the lock, the error says why the last attempt failed: it is a *HeldError
// or a *QuorumError, and matches the error of the context as well (context.DeadlineExceeded if the
// time of WithWait is over). If ctx ends before the first attempt does, the error only matches that
// of the context. If too many calls wait already, a *HeldError that matches ErrTooManyWaiters comes at
// once. The error is ErrClosed if the Locker is closed.
//
// A wait with a deadline, of ctx or by WithWait, ends before it where no quorum can come in time, with a
// *QuorumError that does not match the context's error: at once if too many masters are in a restart
// guard, or in quarantine after a jump of their clocks, that lasts beyond the deadline; and after a second,
// in which they are tried several times, if too many masters cannot be connected to. Masters that
// hang are waited for until the end.
func (l *Locker) Lock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, false)
}

// TryLock takes the lock on the key if it is free and no other call waits for it: it is Lock with
// WithWait(0), whatever the options say. The error is a *HeldError or a *QuorumError, the error of ctx
// if that ends first, or ErrClosed. TryLock takes one round trip to the masters; if several callers have
// taken votes from each other, it tries up to four times more, some milliseconds apart, so that one
// of them gets the lock.
func (l *Locker) TryLock(ctx context.Context, key string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, []string{key}, opts, true)
}

// MaxKeys is the largest number of different keys that one call of LockAll or TryLockAll may have. So many
// commands fit into one pipeline, and take a server some milliseconds.
const MaxKeys = protocol.MaxBatch

// MaxConcurrency is the largest number for WithConcurrency.
const MaxConcurrency = protocol.MaxSlots

// MaxKeyLength is how many bytes a key may have; a longer one is refused with ErrKeyTooLong. The keys of one call of
// LockAll or TryLockAll may have 64 times as many together.
const MaxKeyLength = 1 << 10

const maxKeyLengths = 64 * MaxKeyLength

// LockAll is Lock for several keys, at most MaxKeys: it takes the locks on all of them at once, or
// none. Duplicate keys count once. Calls that share some of their keys never block each other for ever,
// in whatever order they name them. It takes as many round trips as one lock. The Lock is lost as soon as it
// is lost on one key, and has one fence for all of them. In a Redis Cluster the keys may be on different nodes.
func (l *Locker) LockAll(ctx context.Context, keys []string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, distinctKeys(keys), opts, false)
}

// TryLockAll is TryLock for several keys, as LockAll is Lock.
func (l *Locker) TryLockAll(ctx context.Context, keys []string, opts ...LockOption) (*Lock, error) {
	return l.lock(ctx, distinctKeys(keys), opts, true)
}

// distinctKeys returns each key once, in the order in which all calls ask for them.
func distinctKeys(keys []string) []string {
	if len(keys) == 1 {
		return keys
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Do takes the lock on the key, as Lock does, calls f, and frees the lock when f has returned or
// panicked. The context of f is a child of ctx that also ends when the lock is lost. WithWait bounds only
// the wait for the lock; ctx bounds the wait and f. The lock is for its fencing token and its state; f
// need not unlock it.
//
// If the lock could not be taken, the error is that of Lock, and f was not called. Otherwise it is that
// of f, joined with the reason if the lock did not last until f had returned: an error that matches ErrLost,
// ErrClosed, ErrExpired or ErrNotOwner. A release that the masters did not confirm is no error of Do: it is
// repeated until the TTL has passed.
func (l *Locker) Do(ctx context.Context, key string, f func(ctx context.Context, lock *Lock) error, opts ...LockOption) error {
	lock, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return lock.run(ctx, f)
}

// TryDo is Do with TryLock in place of Lock: it does not wait for the lock.
func (l *Locker) TryDo(ctx context.Context, key string, f func(ctx context.Context, lock *Lock) error, opts ...LockOption) error {
	lock, err := l.TryLock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return lock.run(ctx, f)
}

func init() {
	lockerinfo.CheckTTL = func(l any, ttl time.Duration) error {
		_, err := l.(*Locker).with([]LockOption{WithTTL(ttl)})
		return err
	}
	lockerinfo.MaxHold = func(l any) time.Duration { return l.(*Locker).maxHold }
	lockerinfo.Keyspace = func(l any) string { return l.(*Locker).keyspace() }
	lockerinfo.Warned = option(func(o *options) { o.warned = true })
	lockerinfo.Logger = func(l any) *slog.Logger { return l.(*Locker).told.logger }
}

func (l *Locker) with(opts []LockOption) (lockOptions, error) {
	if len(opts) == 0 {
		return l.lockOptions, nil // New has checked them
	}
	o := l.lockOptions
	for _, opt := range opts {
		o = opt.applyToLock(o)
	}
	return o, l.check(o)
}

// Close ends all waits with ErrClosed, frees the locks that are still held, whose contexts end with
// ErrClosed, and closes the masters. It waits for the calls that are running, including those of Unlock. If all
// masters answer, no lock, ticket, goroutine or connection is left when it returns; the fences stay on the
// masters for 5 s, and what was told of processes for up to an hour. It takes at most a few of the masters' timeouts. Further
// calls wait for the first, and return the same error: those of closing the masters.
func (l *Locker) Close() error { return l.close() }

// end is Close. The order is what leaves no lock behind: no call can win one any more when the keeper ends
// those that are held, and no Unlock has anything to send when the streams end.
func (l *Locker) end() error {
	close(l.closing)
	l.calls.close()
	l.keeper.end()
	l.heart.end()
	l.unlocks.close()
	l.late.end()
	l.subscriptions.end()
	errs := make([]error, len(l.streams))
	var streams sync.WaitGroup
	for i, s := range l.streams {
		streams.Go(func() { errs[i] = s.Close(4 * s.Timeout()) })
	}
	streams.Wait()
	l.told.close()
	return errors.Join(errs...)
}

// callGroup counts the calls that are running, until it is closed. The zero value is open.
type callGroup struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// enter counts a call, which must call leave at its end. It reports false if no call may begin any more.
func (c *callGroup) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

func (c *callGroup) leave() { c.running.Done() }

// close keeps further calls from beginning, and waits for those that are running.
func (c *callGroup) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Locker takes locks on a majority of its masters. Open and New make one. It is safe for concurrent
// use, and must be closed.
type Locker struct {
	shared
	close func() error
	calls callGroup // of Lock and TryLock
}

// New returns a Locker on these masters. Use it with NewMaster, for masters that no URL can describe,
// and Open otherwise. The Locker owns the masters from now on, and closes them. The quorum is the
// majority of them, whether they can be reached or not: New does not wait for them. It begins to
// connect, so that the log soon names masters that cannot be reached or may not vote.
//
// All processes that share locks must have the same masters, prefix and max TTL.
//
// The error is about the options, an empty list of masters, a master that is named twice, or one in memory beside
// servers. The masters are closed then, too.
func New(masters []Master, opts ...Option) (*Locker, error) {
	o, err := newOptions(opts)
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
	told := newTold(&o)
	if n := len(masters); n%2 == 0 && !o.warned {
		o.logger.Warn("an even number of masters tolerates no more failures than one master less, and more can fail", "masters", n, "tolerated", (n-1)/2)
	}
	l := &Locker{shared: shared{
		options: o,
		told:    told,
		pace:    newPace(),
		gates:   gates{byKey: make(map[string]*gate), began: time.Now()},
		closing: make(chan struct{}),
	}}
	l.voters = vote.New(len(masters), rand.Text()[:protocol.IDLen], o.maxSkew, o.fastFrom, l.closing)
	l.name = o.prefix + ":wake:" + l.voters.Random()
	l.gates.canAsk = l.voters.CanAsk
	l.heart = newHeart(o, masters, l.voters.Process)
	voting := o.admission()
	voting.Refused = l.heart.refusal
	seats := admission.New(len(masters), voting)
	for i, m := range masters {
		l.servers = append(l.servers, m.server())
		seat := seats.Add(m.impl)
		seat.OnAdmitted = func(reached protocol.Server) { l.heart.reached(i, reached, seat.LostUntil()) }
		seat.OnServing = l.heart.want
		l.voters.Streams = append(l.voters.Streams, m.connect(o.link(m.impl, told), seat))
	}
	l.subscriptions = subscriptions{voters: l.voters, gates: &l.gates, name: l.name, logger: o.logger}
	l.keeper = newKeeper(l.voters, told, o.logger)
	l.close = sync.OnceValue(l.end)
	l.heart.start(l) // last: it asks for the status of the whole Locker
	return l, nil
}

// soloWait is so long that one master mostly answers meanwhile, and so short that nobody notices one that doesn't.
const soloWait = 2 * time.Millisecond

// checkMasters refuses masters of which no majority excludes others: one that is named twice, and one in memory beside servers, which is
// another one in each process.
func checkMasters(masters []Master) error {
	seen := make(map[string]int)
	inMemory := 0
	for i, m := range masters {
		if m.impl == nil {
			return fmt.Errorf("redlock: master %d is empty: make it with Dial, NewMaster or NewMemoryMaster", i+1)
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

// Lock takes the lock on the key. It waits for it until ctx ends, or for as long as WithWait and WithMastersWait allow.
// Calls are served in the order in which they came: exactly within this process, and over all
// processes up to the differences between their clocks. ctx bounds the wait only, not the lock.
//
// If the wait ends without the lock, the error says why the last attempt failed: it is a *HeldError
// or a *QuorumError, and matches the error of the context as well (context.DeadlineExceeded if the
// time of WithWait is over). If ctx ends before the first attempt does, the error only matches that
// of the context. A call that stands in line behind others of this process is told what those have met, or ErrBusy if they
// have not been asked for its key either. If too many calls wait already, that comes at once, and matches ErrTooManyWaiters. The error
// is ErrClosed if the Locker is closed.
//
// Where too few masters have a vote, a call ends before its wait, with a *QuorumError whose Err is nil: when that has been so for a
// minute, or for the time of WithMastersWait; and at once if too many masters are in a restart guard, or in quarantine after a jump of
// their clocks, that lasts beyond that or beyond the wait.
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

// Check returns what is wrong with the options of a lock of this Locker, or nil: the error that Lock would return for them.
func (l *Locker) Check(opts ...LockOption) error {
	if err := l.usable(context.Background()); err != nil {
		return err
	}
	_, err := l.with(opts)
	return err
}

// MaxHold returns the max hold of locks that set none of their own: see WithMaxHold. 0 is for none.
func (l *Locker) MaxHold() time.Duration { return l.maxHold }

// Logger returns one that writes to that of WithLogger, and holds up nobody if that is slow, or blocks.
func (l *Locker) Logger() *slog.Logger { return l.told.logger }

func (l *Locker) with(opts []LockOption) (lockOptions, error) {
	if len(opts) == 0 {
		return l.lockOptions, nil // New has checked them
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

// Close ends all waits with ErrClosed, frees the locks that are still held, whose contexts end with
// ErrClosed, and closes the masters. It waits for the calls that are running, including those of Unlock. If all
// masters answer, no lock, ticket, goroutine or connection is left when it returns; the fences stay on the
// masters for 5 s, and what was told of processes for up to an hour. It takes at most a few of the masters' timeouts. Further
// calls wait for the first, and return the same error: those of closing the masters.
func (l *Locker) Close() error {
	if err := l.usable(context.Background()); err != nil {
		return err
	}
	return l.close()
}

// end is Close. The order is what leaves no lock behind: no call can win one any more when the keeper ends
// those that are held, and no Unlock has anything to send when the streams end.
func (l *Locker) end() error {
	close(l.closing)
	l.calls.close()
	l.keeper.end()
	l.heart.end()
	l.unlocks.close()
	l.subscriptions.end()
	errs := make([]error, len(l.voters.Streams))
	var streams sync.WaitGroup
	for i, s := range l.voters.Streams {
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

func (l *Locker) lock(ctx context.Context, keys []string, opts []LockOption, try bool) (*Lock, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(keys...); err != nil {
		return nil, err
	}
	switch {
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("redlock: %d keys in one call: at most %d can be locked together", len(keys), MaxKeys)
	case len(keys) > 1 && o.recall:
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

// usable returns what is wrong with a Locker, or a context, that was never made.
func (l *Locker) usable(ctx context.Context) error {
	switch {
	case l == nil || l.closing == nil:
		return errors.New("redlock: the Locker is nil, or none that New or Open has made: did that return an error?")
	case ctx == nil:
		return errors.New("redlock: the context is nil: use context.Background()")
	}
	return nil
}

// take takes the locks on the keys, or returns why it can't.
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
	try = try || o.wait == 0
	wait := waitLimit{ctx: ctx}
	defer func() {
		if wait.cancel != nil {
			wait.cancel()
		}
	}()
	var room [1]*caller // enough for one key, the usual case; saves an allocation
	callers := room[:0]
	began := time.Now()
	if !try && o.wait != untilDone {
		wait.until = began.Add(o.wait)
	}
	for _, key := range keys {
		c := &caller{lockOptions: o, key: protocol.Key(l.prefix, key), try: try, several: len(keys) > 1, began: began}
		c.slots = o.most(key)
		callers = append(callers, c)
	}
	if len(callers) > 1 {
		for _, c := range callers {
			c.call = callers
		}
	}
	if held := innermost(ctx); held != nil {
		for _, c := range callers {
			if held.waitsForItself(&l.shared, c) {
				return nil, &HeldError{Slots: c.slots, Err: ErrHeldByCaller}
			}
		}
	}
	first, err := l.reach(&wait, callers, nil)
	if err != nil {
		return nil, err
	}
	return l.acquire(ctx, &wait, callers, first)
}

// checkKeys returns what is wrong with the keys of a call. Each is in several commands to each master.
func checkKeys(keys ...string) error {
	if len(keys) == 0 || slices.Contains(keys, "") {
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

// reach waits until the call is the head of all its gates. If the lock before it was handed on, it returns the attempt that
// came with that, otherwise nil. refused is nil, or the last attempt at the key for which the call has waited on the masters:
// it is the head there, and has a ticket. If another call is the head for another key now, both are given up, so that nobody
// waits for a call that can't have the key yet. After an error the call is the head of no gate.
func (l *shared) reach(wait *waitLimit, callers []*caller, refused *vote.Attempt) (*vote.Attempt, error) {
	doubts := mostDoubts
	var tried *caller // for which a try-lock has waited, and
	var at *gate      // where
	for {
		blocked, later, err := l.gates.enter(callers, refused == nil, doubts > 0)
		if tried != nil && blocked != nil && (err != nil || blocked.gate != at) {
			l.gates.moveOn(tried, at)
		}
		switch {
		case blocked == nil:
			return nil, nil
		case refused != nil:
			refused.Release(false)
			refused.SendSoon()
			refused = nil
			l.gates.keepOnly(nil, callers)
		case err != nil:
			return nil, err
		case !blocked.try:
			return l.standInLine(wait, callers, blocked)
		default:
			tried, at = blocked, blocked.gate
			switch err := l.awaitFirst(wait.ctx, later, blocked.recall); {
			case err == errDoubtful:
				doubts--
			case err != nil:
				l.gates.moveOn(tried, at)
				return nil, err
			}
		}
	}
}

// mostDoubts is how often a call doubts what others tell it of the masters.
const mostDoubts = 2

// awaitFirst waits until a try-lock should enter again, because the first attempt of the call before it is over, or returns why it
// must not.
func (l *shared) awaitFirst(ctx context.Context, later <-chan error, recall bool) error {
	select {
	case met := <-later:
		if _, done := met.(*DoneError); done && !recall {
			return nil
		}
		return met
	case <-ctx.Done():
		return ended(ctx, nil)
	case <-l.closing:
		return ErrClosed
	}
}

// standInLine waits for the turn of a call. Where its wait is over before the first attempt of the call before it, it waits for that, as a
// try-lock does, to know whether anybody has the lock; so long at most as masters may take to answer.
func (l *shared) standInLine(wait *waitLimit, callers []*caller, blocked *caller) (*vote.Attempt, error) {
	turn, err := blocked.turn, error(nil)
	ctx := wait.context()
	long := time.NewTimer(longWait)
	defer long.Stop()
	over := ctx.Done()
	masters := time.NewTimer(max(l.absentFor(callers).rest(blocked), soonest))
	defer masters.Stop()
	var first <-chan error
	var met error
	var most *time.Timer
	var enough <-chan time.Time
	doubts := mostDoubts
	for err == nil {
		select {
		case a := <-turn:
			if blocked.done != nil {
				return nil, blocked.done
			}
			return a, nil
		case <-long.C:
			l.tellLongWait(blocked)
			continue
		case <-masters.C:
			absent := l.absentFor(callers)
			if rest := absent.rest(blocked); rest > 0 || absent == nil {
				masters.Reset(max(rest, waitMost))
			} else {
				err = absent.err
			}
			continue
		case <-over:
			over = wait.ctx.Done()
			if enough == nil {
				most = time.NewTimer(l.voters.Patience(blocked.key))
				defer most.Stop()
				enough = most.C
			}
		case met = <-first:
			switch {
			case met == errDoubtful:
				met, doubts = nil, doubts-1
			case errors.Is(met, ErrDone): // its turn comes with that, if it asks for results
				met = nil
			}
		case <-enough:
			if rest := l.gates.underWay(callers); rest > 0 {
				most.Reset(rest)
				continue
			}
			if met = l.gates.lastMet(callers); met == nil {
				err = becauseError{ErrBusy, ctx.Err()}
			} else {
				err = ended(ctx, met)
			}
			continue
		case <-l.closing:
			err = ErrClosed
			continue
		}
		var refusal error
		if first, refusal = l.gates.refusalInLine(callers, doubts > 0); refusal == nil {
			refusal = met
		}
		leaves := wait.ctx.Err() != nil
		if refusal == nil && leaves { // as those before it, who have met more
			refusal = l.gates.lastMet(callers)
		}
		if refusal != nil || leaves {
			err = ended(ctx, refusal)
		}
	}
	if !l.gates.giveUp(callers) { // it has just become the head: what it was handed must be given back
		if a := <-turn; a != nil {
			a.Release(false)
		}
		l.gates.keepOnly(nil, callers)
	}
	return nil, err
}

// soonest is for a timer that is due: made so, it would crash Go 1.26 in a bubble, with the race detector.
const soonest = time.Nanosecond

// longWait is how long a call stands in line behind one lock of its own process before that is told: it may be waiting for itself, in a
// way that its context doesn't show. Most that wait for another call are done before.
const longWait = 10 * time.Second

// tellLongWait tells the Observer, and now and then the log, that a call waits for a lock of this process, if that was held before it came.
func (l *shared) tellLongWait(c *caller) {
	holder, due := l.gates.heldSince(c)
	if holder == nil {
		return
	}
	if l.told.traces() {
		l.told.attempted(Attempt{Via: ViaFree, Took: time.Since(c.began), For: fmt.Sprintf("a lock which this very process holds, with fence %d", holder.Fence())})
	}
	if due {
		l.logger.Info("a call has waited for 10 seconds for a lock that this process has held since before. If the holder waits for this call, neither ends",
			"label", c.label, "holder_label", holder.caller.label, "fence", holder.Fence())
	}
}

// stopped returns why a call must leave, or nil.
func (l *shared) stopped(ctx context.Context, failure error) error {
	select {
	case <-l.closing:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx, failure)
	default:
		return nil
	}
}

// waitLimit is how long a call waits for other holders. It makes its timer only when the call begins to wait, which most calls
// never do.
type waitLimit struct {
	ctx    context.Context // of the call
	until  time.Time       // zero: until ctx ends
	wait   context.Context
	cancel context.CancelFunc
}

// context returns a context that ends when the call must not wait any longer.
func (w *waitLimit) context() context.Context {
	switch {
	case w.until.IsZero():
		return w.ctx
	case w.wait == nil:
		w.wait, w.cancel = context.WithDeadline(w.ctx, w.until)
	}
	return w.wait
}

// number gives a call its ticket, the time when it came on the masters' clocks, and returns their time now, from which
// its fence is proposed. While the masters' clocks aren't known there is no ticket (0): one by our own clock would put all
// calls of this process before, or behind, those of the others. A ticket of the future was made by clocks that have been set
// since, and would be behind all others until then: it is made anew.
func (l *shared) number(callers ...*caller) (now int64) {
	now, known := l.voters.Time()
	for _, c := range callers {
		if known && (c.ticket == 0 || c.ticket > now) {
			c.ticket = now - time.Since(c.began).Microseconds()
		}
	}
	return now
}

// acquire is called at the head of all gates of a call. It makes attempts until the call has the locks on
// all keys at once, or must leave. Between its attempts it waits for one of the keys that were refused, and keeps nobody from the
// others, neither here nor on the masters. first is an attempt that the lock before it has already begun, or nil.
// When wait ends, an attempt that is under way is completed; when ctx ends, it is given up.
func (l *shared) acquire(ctx context.Context, wait *waitLimit, callers []*caller, first *vote.Attempt) (*Lock, error) {
	t := &contender{shared: l, callers: callers, pause: waitLeast, via: ViaFree}
	defer func() {
		if t.subscribed {
			l.subscriptions.done()
		}
	}()
	var room [1]*vote.Attempt // enough for one key; saves an allocation
	attempts := room[:0]
	if first != nil {
		t.via = ViaPassed
		attempts = append(attempts, first)
	}
	begun := first != nil
	for {
		if !begun {
			if slices.ContainsFunc(l.voters.Streams, vote.Stream.Subscribed) {
				l.gates.drainWakeUps(callers) // the attempt finds out what earlier wake-ups announced
			}
			if err := t.begin(wait); err != nil {
				if len(attempts) > 0 {
					l.release(attempts) // takes the tickets away
				}
				l.gates.keepOnly(nil, callers)
				return nil, err
			}
			attempts = l.newAttempts(callers, attempts[:0])
		}
		begun = false
		lost := t.win(ctx, attempts)
		t.end(lost != nil && lost.Late)
		if t.tries++; lost == nil {
			for _, a := range attempts {
				t.trace(a, nil, 0, "")
			}
			return t.hold(ctx, attempts), nil
		}
		if result := lost.Recall(ctx); result != nil {
			done := &DoneError{Result: []byte(result.Data), Fence: uint64(result.Fence), Keep: result.Keep}
			t.trace(lost, done, 0, "")
			l.gates.met(callers[0].gate, done)
			l.gates.keepOnly(nil, callers)
			return nil, done
		}
		err := l.stopped(ctx, t.failure)
		if err == nil && t.goesOn(ctx, attempts, lost) {
			begun = true
			continue
		}
		if err == nil && t.insist(wait.context(), attempts, lost) {
			continue
		}
		if err == nil {
			awaited := callers[slices.Index(attempts, lost)]
			l.release(attempts, lost)
			if len(callers) > 1 {
				l.gates.noteSilence(callers, l.failure(lost))
			}
			l.gates.keepOnly(awaited, callers)
			t.insists = time.Time{}
			err = t.awaitRetry(wait.context(), lost, awaited)
		}
		if err != nil {
			l.release(attempts)
			l.gates.keepOnly(nil, callers)
			return nil, err
		}
		if len(callers) > 1 {
			if _, err := l.reach(wait, callers, lost); err != nil {
				return nil, err
			}
		}
	}
}

// release gives back what the attempts of a call have won. If the call waits on, its tickets stay on the keys for which it waits.
func (l *shared) release(attempts []*vote.Attempt, awaited ...*vote.Attempt) {
	for _, a := range attempts {
		a.Release(slices.Contains(awaited, a))
	}
	attempts[0].SendSoon()
}

// newAttempts sends the acquires for all keys of a call to all masters. They share one proposed fence and
// one start, so that the locks of the call share their fence and the end of their validity.
func (l *shared) newAttempts(callers []*caller, into []*vote.Attempt) []*vote.Attempt {
	start := time.Now()
	proposal := l.number(callers...)
	for _, c := range callers {
		into = append(into, l.newAttempt(c, nil, start, proposal))
	}
	into[0].SendSoon()
	return into
}

// newAttempt sends an acquire to all masters. With former, the attempt whose lock is handed on, each of
// these commands first releases that lock.
func (l *shared) newAttempt(c *caller, former *vote.Attempt, start time.Time, proposal int64) *vote.Attempt {
	return l.voters.Ask(l.wanted(c, former, start, proposal))
}

// wanted is what the next attempt of a call asks for.
func (l *shared) wanted(c *caller, former *vote.Attempt, start time.Time, proposal int64) vote.Ask {
	if c.tickets == nil {
		c.tickets = append(c.room[:0], make([]link.TicketState, len(l.voters.Streams))...)
	}
	ask := vote.Ask{
		Key: c.key, TTL: c.ttl, Start: start, Fence: proposal, Process: l.name, Ticket: c.ticket, Tickets: c.tickets,
		Queue: !c.try && c.ticket > 0, Recall: c.recall, Several: c.several, Slots: c.slots, Former: former,
		Fast: !c.recall && !c.tried && c.ahead == 0 && c.slots == 1,
	}
	c.tried = true
	if c.slots > 1 {
		ask.Process = protocol.CallName(l.name, c.order)
		ask.Slot = func() (uint16, bool) { return l.gates.chooseSlot(c, l.firstSlot()+c.unled) }
	}
	return ask
}

// firstSlot is where this process begins to look for a free slot: processes that begin at different ones seldom split votes.
func (l *shared) firstSlot() int {
	var n uint32
	for _, c := range []byte(l.voters.Process) {
		n = 31*n + uint32(c)
	}
	return int(n % protocol.MaxSlots)
}

// Prefix returns that of the Locker's keys: see WithPrefix.
func (l *Locker) Prefix() string { return l.prefix }

// Instance returns the name of this process: see WithInstance.
func (l *Locker) Instance() string { return l.instance }

// idOf returns the ID of the process in its token or the end of its name. Of one that isn't ours it returns a part, too.
func idOf(random string) string { return random[:min(protocol.IDLen, len(random)/2)] }

const maxInstance = 64 // bytes of an instance name

func unprintable(c rune) bool { return c <= ' ' || c > '~' }

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(c rune) rune {
		if unprintable(c) {
			return '-'
		}
		return c
	}, host)
	pid := fmt.Sprint("/", os.Getpid())
	return host[:min(len(host), maxInstance-len(pid))] + pid
}

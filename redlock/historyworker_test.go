package redlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sys/unix"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	historyWorkerEnv = "REDLOCK_TEST_HISTORY_WORKER" // a historyWorker as JSON, in the worker's process

	historyKeys    = 10
	severalFrom    = "d"         // keys before it may have several holders
	historyTTL     = time.Second // and max TTL: short, so that faults cost little time
	historyGuard   = historyTTL + time.Second
	historyTimeout = historyTTL / 5

	// One turn of longTurns is long: it is there to be paused or killed in, and some are renewed.
	longTurns = 150
	longHold  = historyTTL / 4 // at least
)

// historyWorker is one of the processes that compete for the keys.
type historyWorker struct {
	URLs    []string
	Clients int
	Broken  breakage // what is wrong with its lock

	t       *testing.T
	locker  *redlock.Locker
	mu      sync.Mutex
	records *json.Encoder
	turns   int
}

// breakage is a way to break the lock on purpose.
type breakage string

const (
	noQuorum  breakage = "each process asks one master, a different one"
	ownFences breakage = "each process counts its fences by itself"
	neverLost breakage = "a lease that is over isn't noticed"
	noGuard   breakage = "a master that has lost its data votes at once"
)

// historyTurn is what a worker records of one lock that it got. It does so three times, each before
// its next step: when it has the lock, before Unlock, and after. A kill -9 loses what was under way
// and no more. All times are on one clock for all processes, in ns.
type historyTurn struct {
	Number int // of this worker's turns
	Client int
	Key    string
	Fence  uint64
	Hold   time.Duration // how long it means to hold the lock

	Call, Return             int64 // of Lock or TryLock
	Until                    int64 // the latest that Lock.Until has said
	Renewed                  bool  // that was more than at first
	UseCall, UseReturn       int64 // of Lock.Err, if it said that the lock is held
	UnlockCall, UnlockReturn int64 // 0: not yet
	Unlocked, Lost           bool  // what Unlock has said: held until now, or over before
}

// TestHelperHistoryWorker is not a test but a worker's process in TestHistories.
func TestHelperHistoryWorker(t *testing.T) {
	config := os.Getenv(historyWorkerEnv)
	if config == "" {
		t.Skip("run by TestHistories")
	}
	logging.Disable() // go-redis's, of masters that are down
	w := &historyWorker{t: t, records: json.NewEncoder(os.NewFile(3, "records"))}
	if err := json.Unmarshal([]byte(config), w); err != nil {
		t.Fatal(err)
	}
	guard := historyGuard
	if w.Broken == noGuard {
		guard = 0
	}
	w.locker = newLocker(t, w.URLs, redlock.WithTTL(historyTTL), redlock.WithMaxTTL(historyTTL),
		redlock.WithRestartGuard(guard), redlock.WithTimeout(historyTimeout))
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // closed when it is time to stop, or when the parent has died
		stop()
	}()
	var clients sync.WaitGroup
	for client := range w.Clients {
		clients.Go(func() {
			for ctx.Err() == nil {
				w.turn(ctx, client)
			}
		})
	}
	clients.Wait()
}

// turn asks for a lock and, if it gets it, holds it for a while.
func (w *historyWorker) turn(ctx context.Context, client int) {
	r := historyTurn{Client: client, Key: string(rune('a' + rand.N(historyKeys))), Call: monotonic()}
	lock, err := w.lock(ctx, r.Key)
	r.Return = monotonic()
	if err != nil {
		if !errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, ctx.Err()) && !errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("lock: %v", err)
		}
		time.Sleep(rand.N(10 * time.Millisecond))
		return
	}
	r.Key += fmt.Sprint(lock.Slot()) // each slot of a key is a lock, with a history of its own
	r.Fence, r.Until = lock.Fence(), onMonotonic(lock.Until())
	r.Hold = rand.N(20 * time.Millisecond)
	if rand.N(longTurns) == 0 {
		r.Hold = longHold + rand.N(historyTTL)
	}
	w.number(&r)
	w.record(r)

	select {
	case <-time.After(r.Hold):
	case <-lock.Context().Done():
	}
	useCall := monotonic()
	if held := lock.Err() == nil; held || w.Broken == neverLost {
		r.UseCall, r.UseReturn = useCall, monotonic()
	}
	// The validity that was promised counts, even if it should be taken back.
	if until := onMonotonic(lock.Until()); until > r.Until+int64(historyTTL/10) {
		r.Until, r.Renewed = until, true
	}
	r.UnlockCall = monotonic()
	w.record(r)

	err = lock.Unlock()
	r.UnlockReturn = monotonic()
	r.Unlocked = err == nil
	r.Lost = errors.Is(err, redlock.ErrExpired) || errors.Is(err, redlock.ErrNotOwner)
	w.record(r)
}

func (w *historyWorker) lock(ctx context.Context, key string) (*redlock.Lock, error) {
	concurrency := redlock.WithConcurrency(1)
	if w.Broken == "" && key < severalFrom { // as many as each process likes
		concurrency = redlock.WithConcurrency(1 + rand.N(3))
	}
	if rand.N(8) == 0 {
		return w.locker.TryLock(ctx, key, concurrency)
	}
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond+rand.N(2*historyTTL))
	defer cancel()
	return w.locker.Lock(ctx, key, concurrency)
}

// number gives the turn its number, and what the broken locks tell.
func (w *historyWorker) number(r *historyTurn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns++
	r.Number = w.turns
	switch w.Broken {
	case ownFences:
		r.Fence = uint64(w.turns)
	case neverLost:
		r.Until = r.Return + int64(time.Hour)
	}
}

func (w *historyWorker) record(r historyTurn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.records.Encode(r); err != nil { // one write, which a kill doesn't tear
		os.Exit(1) // the test has ended
	}
}

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// onMonotonic is a time on that clock. A process that is stopped between the two looks takes it for
// earlier than it is: a validity never seems longer.
func onMonotonic(t time.Time) int64 {
	now := monotonic()
	return now + int64(time.Until(t))
}

package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const workerEnv = "TORTURE_WORKER" // a worker's settings as JSON, in its process

const (
	// The lease and the guard are short, so that recovering from faults takes little time.
	ttl     = time.Second // and max TTL
	guard   = ttl + time.Second
	timeout = ttl / 5

	hotKeys  = 8
	coldKeys = 1000 // which are hardly ever contended
	longest  = 2 * ttl
)

// worker is one of the processes that compete for the keys.
type worker struct {
	URLs    []string
	Clients int
	Heap    string // the file for a profile of the heap
	Other   bool   // it has other masters than the others

	locker *redlock.Locker
	mu     sync.Mutex
	out    *json.Encoder
	holds  int
}

// runWorker is the main function of a worker's process. It works until its standard input has a line, or ends. The line "close"
// lets it close the Locker while its clients use it.
func runWorker(config string) {
	logging.Disable() // go-redis would log every failed connection
	w := &worker{out: json.NewEncoder(os.NewFile(3, "reports"))}
	check(json.Unmarshal([]byte(config), w))
	var err error
	w.locker, err = redlock.Open(w.URLs, redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithTimeout(timeout),
		redlock.WithRestartGuard(guard), redlock.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	check(err)

	ctx, stop := context.WithCancel(context.Background())
	go w.sample(ctx)
	input := make(chan string)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		input <- strings.TrimSpace(line)
	}()
	counts := make(chan map[string]int)
	for client := range w.Clients {
		go func() { counts <- w.work(ctx, client) }()
	}
	if <-input == "close" {
		check(w.locker.Close()) // while all clients use it
	}
	stop()
	total := make(map[string]int)
	for range w.Clients {
		for name, n := range <-counts {
			total[name] += n
		}
	}
	if heap, err := os.Create(w.Heap); err == nil {
		_ = pprof.WriteHeapProfile(heap)
	}
	check(w.locker.Close())
	if err := goleak.Find(); err != nil {
		w.wrong("after Close: %v", err)
	}
	w.report(report{Counts: total})
	os.Exit(0)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// work takes turns until ctx ends or the Locker is closed, and returns how often there was each outcome.
func (w *worker) work(ctx context.Context, client int) map[string]int {
	counts := make(map[string]int)
	if w.Other {
		w.awaitRefusal(ctx)
	}
	for ctx.Err() == nil {
		op := []string{"Lock", "Lock", "Lock", "TryLock", "LockAll", "Do"}[rand.N(6)]
		keys := []string{hotKey()}
		if rand.N(4) == 0 {
			keys[0] = fmt.Sprint("cold:", rand.N(coldKeys))
		}
		if op == "LockAll" {
			keys = append(keys, hotKey(), hotKey())
		}
		length := rand.N(2 * time.Millisecond)
		if rand.N(100) == 0 {
			length = ttl/4 + rand.N(longest)
		}
		if client == 0 { // some process always has a lock that must be renewed
			keys, length = []string{fmt.Sprint("cold:", rand.N(coldKeys))}, ttl+rand.N(ttl)
		}
		outcome := w.turn(ctx, op, keys, length)
		counts[op+" "+outcome]++
		if outcome == "closed" {
			break
		}
		time.Sleep(rand.N(20 * time.Millisecond))
	}
	return counts
}

// awaitRefusal waits until this process is told that others have other masters. A process that starts while it can't hear of them may
// get locks before that (docs/DESIGN.md), but none from then on.
func (w *worker) awaitRefusal(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		lock, err := w.locker.TryLock(ctx, "other")
		if err == nil {
			_ = lock.Unlock()
		} else if strings.Contains(err.Error(), "another process with other masters") {
			w.report(report{Refused: true})
			return
		}
	}
}

func hotKey() string { return string(rune('a' + rand.N(hotKeys))) }

// turn tries to get locks, and holds them for a while if it does.
func (w *worker) turn(ctx context.Context, op string, keys []string, length time.Duration) (outcome string) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond+rand.N(2*ttl))
	defer cancel()
	if op == "Do" {
		return w.do(ctx, keys[0], length)
	}
	var lock *redlock.Lock
	var err error
	n := 1 << (keys[0][0] % 6) // holders of the key: up to 32
	if rand.N(4) == 0 {
		n = 1 + rand.N(3) // or as many as the call likes
	}
	concurrency := redlock.WithConcurrency(n)
	switch op {
	case "Lock":
		lock, err = w.locker.Lock(ctx, keys[0], concurrency)
	case "TryLock":
		lock, err = w.locker.TryLock(ctx, keys[0], concurrency)
	default:
		lock, err = w.locker.LockAll(ctx, keys)
	}
	if err != nil {
		return w.refusal(err)
	}
	if slot := lock.Slot(); slot > 0 { // it is a lock of its own
		keys = []string{fmt.Sprint(keys[0], " slot ", slot)}
	}
	h := &hold{Op: op, Keys: keys, Fence: lock.Fence(), From: monotonic(), To: onMonotonic(lock.Until())}
	if lock.Err() != nil { // this process was stopped
		_ = lock.Unlock()
		return "got too late"
	}
	w.begin(h)
	select {
	case <-time.After(length):
	case <-lock.Context().Done():
	}
	asked := monotonic()
	held := lock.Err() == nil
	until := onMonotonic(lock.Until())
	unlock := monotonic()
	h.To = min(unlock, until)
	w.report(report{Hold: h}) // this process may be killed during Unlock
	err = lock.Unlock()
	switch {
	case err == nil:
		h.To, h.Ended = unlock, "unlocked"
	case errors.Is(lock.Err(), redlock.ErrClosed): // at an unknown time
		h.To, h.Ended = h.From, "freed by Close"
	case errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner):
		h.To, h.Ended = min(unlock, until), "lost"
	case errors.Is(err, redlock.ErrNoQuorum):
		h.To, h.Ended = min(unlock, until), "unlocked without a reply"
	default:
		w.wrong("%s: unlock: %v", op, err)
	}
	if held { // then, whatever the error says
		h.To = max(h.To, asked)
	}
	w.report(report{Hold: h})
	return h.Ended
}

// do is turn with Locker.Do, which shows neither the fence nor the end of the validity. A process that was stopped may for a
// moment still see a context that has not ended, so a time only counts as held if the context has not ended a little later.
func (w *worker) do(ctx context.Context, key string, length time.Duration) string {
	const later = 20 * time.Millisecond
	var h *hold
	var asked int64
	err := w.locker.Do(ctx, key, func(ctx context.Context, _ *redlock.Lock) error {
		if ctx.Err() != nil {
			return nil
		}
		asked = monotonic()
		h = &hold{Op: "Do", Keys: []string{key}, From: asked, To: asked}
		w.begin(h)
		for end := time.Now().Add(length); ctx.Err() == nil; {
			h.To = asked
			left := time.Until(end)
			asked = monotonic()
			select {
			case <-time.After(min(left, later)):
			case <-ctx.Done():
			}
			if left < later {
				break
			}
		}
		asked = monotonic()
		w.report(report{Hold: h})
		return nil
	})
	if h == nil {
		if err == nil {
			return "got too late"
		}
		return w.refusal(err)
	}
	switch {
	case err == nil:
		h.To, h.Ended = asked, "unlocked"
	case errors.Is(err, redlock.ErrLost), errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner), errors.Is(err, redlock.ErrClosed):
		h.Ended = "lost"
		if h.To == h.From { // it is not certain that the lock was ever held
			h.Keys = nil
		}
	default:
		w.wrong("Do: %v", err)
	}
	w.report(report{Hold: h})
	return h.Ended
}

// refusal returns a name for an error of Lock, and reports an error that Lock must not return.
func (w *worker) refusal(err error) string {
	switch {
	case errors.Is(err, redlock.ErrClosed):
		return "closed"
	case errors.Is(err, redlock.ErrHeld):
		return "held"
	case errors.Is(err, redlock.ErrNoQuorum):
		return "no quorum"
	case errors.Is(err, redlock.ErrLost), errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner): // Do
		return "got too late"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "gave up"
	}
	w.wrong("lock: %v", err)
	return "wrong"
}

func (w *worker) begin(h *hold) {
	w.mu.Lock()
	w.holds++
	h.Number = w.holds
	w.mu.Unlock()
	w.report(report{Hold: h})
}

func (w *worker) wrong(format string, args ...any) {
	w.report(report{Wrong: fmt.Sprintf(format, args...)})
}

func (w *worker) sample(ctx context.Context) {
	for ctx.Err() == nil {
		values := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"}}
		runtime.GC() // so that what lives is known
		metrics.Read(values)
		w.report(report{Sample: &sample{monotonic(), values[0].Value.Uint64(), values[1].Value.Uint64()}})
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

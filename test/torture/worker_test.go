package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/test/witness"
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
	Broken  breakage
	Agent   string // the socket of an agent, or none

	locker *redlock.Locker
	mu     sync.Mutex
	out    *json.Encoder
	holds  int
}

// breakage is what is wrong with a lock on purpose.
type breakage string

const (
	noQuorum  breakage = "each process asks one master, a different one"
	ownFences breakage = "each process counts its fences by itself"
	neverLost breakage = "a lease that is over isn't noticed"
)

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
		op := []string{"Lock", "Lock", "Lock", "TryLock", "LockAll", "Do", "middleware"}[rand.N(7)]
		keys := []string{hotKey()}
		if rand.N(4) == 0 {
			keys[0] = fmt.Sprint("cold:", rand.N(coldKeys))
		}
		if op == "LockAll" {
			keys = append(keys, hotKey(), hotKey())
		}
		if w.Agent != "" && rand.N(8) == 0 {
			op = "agent"
		}
		length := rand.N(2 * time.Millisecond)
		if rand.N(100) == 0 {
			length = ttl/4 + rand.N(longest)
		}
		if op == "agent" && rand.N(32) == 0 { // it may be stopped meanwhile
			length = rand.N(longest)
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
	n := 1 << (keys[0][0] % 6) // holders of the key: up to 32
	if rand.N(4) == 0 {
		n = 1 + rand.N(3) // or as many as the call likes
	}
	if w.Broken != "" {
		n = 1
	}
	concurrency := redlock.WithConcurrency(n)
	var lock *redlock.Lock
	var s *stretch
	var err error
	switch op {
	case "agent":
		return w.askAgent(ctx, keys[0], length)
	case "Do":
		err = w.locker.Do(ctx, keys[0], func(_ context.Context, k *redlock.Lock) error {
			lock, s = k, w.hold(op, keys, k, length)
			return nil
		})
	case "middleware":
		lock, s = w.serve(ctx, keys[0], length)
		if lock == nil {
			return "refused"
		}
		if err = lock.Err(); errors.Is(err, context.Canceled) { // it was held until it was released
			err = nil
		}
	case "Lock":
		lock, err = w.locker.Lock(ctx, keys[0], concurrency)
	case "TryLock":
		lock, err = w.locker.TryLock(ctx, keys[0], concurrency)
	default:
		lock, err = w.locker.LockAll(ctx, keys)
	}
	if lock == nil {
		return w.refusal(err)
	}
	if op != "Do" && op != "middleware" {
		s = w.hold(op, keys, lock, length)
		err = lock.Unlock() // this process may be killed meanwhile
	}
	if s == nil {
		return "got too late"
	}
	w.ended(s, lock, err)
	return s.Ended
}

// serve is turn with a request's handler behind the middleware. It returns no lock if the request was refused.
func (w *worker) serve(ctx context.Context, key string, length time.Duration) (lock *redlock.Lock, s *stretch) {
	handler := middleware.NewFunc(w.locker, func(*http.Request) (string, error) { return key, nil }, middleware.Rule{Wait: ttl, Logger: slog.New(slog.DiscardHandler)})(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			lock, s = turn.Lock, w.hold("middleware", []string{key}, turn.Lock, length)
		}))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	check(err)
	handler.ServeHTTP(httptest.NewRecorder(), request)
	return lock, s
}

// askAgent is turn with a lock of the agent, in which this client believes for exactly as long as the wire says.
func (w *worker) askAgent(ctx context.Context, key string, length time.Duration) (outcome string) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", w.Agent)
	if err != nil {
		return "no agent"
	}
	defer func() { _ = conn.Close() }()
	leave := context.AfterFunc(ctx, func() { _ = conn.Close() })
	sent, line := witness.Now(), fmt.Sprintf("{\"key\":%q}\n", key)
	_, _ = fmt.Fprintf(conn, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		leave()
		return "refused"
	}
	lines := json.NewDecoder(response.Body)
	h, end := witness.Hold{Op: "agent", Keys: []string{key}}, new(atomic.Int64)
	listen := func() (fence uint64) {
		var said struct {
			Fence uint64
			Valid int64 `json:"valid_ms"`
		}
		if lines.Decode(&said) == nil && said.Valid > 0 {
			end.Store(sent + said.Valid*int64(time.Millisecond))
		} else {
			end.Store(0)
		}
		return said.Fence
	}
	h.Fence = listen()
	h.From = witness.Now()
	if !leave() || h.From >= end.Load() {
		return "got too late"
	}
	h.To, h.Number = h.From, w.begin()
	w.report(report{Hold: &h})
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for end.Load() > 0 {
			listen()
		}
	}()
	h.Ended = "unlocked"
	for now := h.From; now < h.From+int64(length); now = witness.Now() {
		if now >= end.Load() {
			h.Ended = "lost"
			break
		}
		h.To = now
		time.Sleep(min(length, 10*time.Millisecond))
	}
	_, _ = io.WriteString(conn, "0\r\n\r\n")
	select {
	case <-heard:
	case <-time.After(ttl): // the agent is stopped
		_ = conn.Close()
		<-heard
	}
	w.report(report{Hold: &h})
	return h.Ended
}

// stretch is a hold, and what the client knew of it at its end.
type stretch struct {
	witness.Hold
	asked, unlocks, until int64
	held                  bool // when it asked
}

// hold uses a lock for a while. It returns nil if that is over before, because this process was stopped.
func (w *worker) hold(op string, keys []string, lock *redlock.Lock, length time.Duration) *stretch {
	if slot := lock.Slot(); slot > 0 { // it is a lock of its own
		keys = []string{fmt.Sprint(keys[0], " slot ", slot)}
	}
	s := &stretch{Hold: witness.Hold{Op: op, Keys: keys, Fence: lock.Fence(), From: witness.Now(), To: witness.At(lock.Until())}}
	if lock.Err() != nil {
		return nil
	}
	s.Number = w.begin()
	if w.Broken == ownFences {
		s.Fence = uint64(s.Number)
	}
	w.report(report{Hold: &s.Hold})
	select {
	case <-time.After(length):
	case <-lock.Context().Done():
	}
	s.asked = witness.Now()
	s.held = lock.Err() == nil || w.Broken == neverLost
	s.until = witness.At(lock.Until())
	s.unlocks = witness.Now()
	s.To = min(s.unlocks, s.until)
	w.report(report{Hold: &s.Hold})
	return s
}

// ended reports the end of a hold, by what its release has said.
func (w *worker) ended(s *stretch, lock *redlock.Lock, err error) {
	switch {
	case err == nil:
		s.To, s.Ended = s.unlocks, "unlocked"
	case errors.Is(lock.Err(), redlock.ErrClosed): // at an unknown time
		s.To, s.Ended = s.From, "freed by Close"
	case errors.Is(err, redlock.ErrLost), errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner):
		s.Ended = "lost"
	case errors.Is(err, redlock.ErrNoQuorum):
		s.Ended = "unlocked without a reply"
	default:
		w.wrong("%s: unlock: %v", s.Op, err)
	}
	if s.held { // then, whatever the error says
		s.To = max(s.To, s.asked)
	}
	w.report(report{Hold: &s.Hold})
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

// begin returns the number of a hold.
func (w *worker) begin() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds++
	return w.holds
}

func (w *worker) wrong(format string, args ...any) {
	w.report(report{Wrong: fmt.Sprintf(format, args...)})
}

func (w *worker) sample(ctx context.Context) {
	for ctx.Err() == nil {
		values := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/sched/goroutines:goroutines"}}
		runtime.GC() // so that what lives is known
		metrics.Read(values)
		w.report(report{Sample: &sample{witness.Now(), values[0].Value.Uint64(), values[1].Value.Uint64()}})
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// witness checks that each key has one holder at a time, and that fences grow.
type witness struct {
	t     testing.TB
	mu    sync.Mutex
	in    map[string]int
	fence map[string]int64
	turns map[string]int // by process
}

func newWitness(t testing.TB) *witness {
	return &witness{t: t, in: make(map[string]int), fence: make(map[string]int64), turns: make(map[string]int)}
}

func (w *witness) work(process, key string, fence int64) {
	w.enter(process, key, fence)
	time.Sleep(time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in[key]--
}

func (w *witness) enter(process, key string, fence int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns[process]++
	if w.in[key]++; w.in[key] > 1 {
		w.t.Errorf("%d hold %s at once", w.in[key], key)
	}
	if fence <= w.fence[key] {
		w.t.Errorf("the fence of %s goes from %d to %d", key, w.fence[key], fence)
	}
	w.fence[key] = fence
}

// handler returns the handler behind a plugin.
func (w *witness) handler(process string) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		fence, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
		if err != nil {
			w.t.Errorf("no fence: %v", err)
		}
		w.work(process, "order:"+strings.Split(r.URL.Path, "/")[2], fence)
	}
}

// testExclusion has two plugins and a Locker take 1,000 locks on 5 keys, with and without waiting.
func testExclusion(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	w := newWitness(t)
	byLocker := func(key string) {
		lock, err := locker.Lock(context.Background(), "order:"+key)
		if err != nil {
			t.Error(err)
			return
		}
		w.work("Locker", "order:"+key, int64(lock.Fence()))
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // which may happen on a busy machine
			t.Error(err)
		}
	}
	ways := []func(key string){byLocker, byLocker}
	for process, timeout := range map[string]string{"first plugin": "200ms", "second plugin": "201ms"} { // different, because compiled plugins with equal settings share a locker
		new := load(t)
		waits := handler(t, new, with(servers, "timeout", timeout, "wait", "2m"), w.handler(process))
		refuses := handler(t, new, with(servers, "timeout", timeout), w.handler(process))
		ways = append(ways, func(key string) { wantStatus(t, pay(waits, key), http.StatusOK) }, func(key string) {
			for pay(refuses, key).Code != http.StatusOK {
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	var group sync.WaitGroup
	for key := range 5 {
		for way, lock := range ways {
			group.Go(func() {
				for n := way; n < 200; n += len(ways) {
					lock(strconv.Itoa(key))
				}
			})
		}
	}
	group.Wait()
	total := 0
	for process, turns := range w.turns {
		t.Logf("%s: %d turns", process, turns)
		total += turns
	}
	if total != 1000 || len(w.turns) != 3 {
		t.Errorf("%d turns of %d processes, want 1,000 of 3", total, len(w.turns))
	}
	redistest.RequireNoKeys(t, servers)
	for i, s := range servers {
		if n := calls(t, s, "evalsha"); n < 900 {
			t.Errorf("master %d has run %d scripts, for 1,000 locks", i, n)
		}
	}
}

// calls returns how often a server has run a command, also in scripts.
func calls(t testing.TB, s *redistest.Server, command string) (n int) {
	info, err := s.Client().Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			_, _ = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
		}
	}
	return n
}

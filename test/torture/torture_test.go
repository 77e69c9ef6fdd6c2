// Package torture lets processes lock and unlock for a long time while everything goes wrong that the README allows to go wrong,
// and an independent witness judges what they held. See docs/testing.md.
package torture

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/witness"
)

// bound is how long to wait for what a healthy system does at once or, if servers have restarted, after their guard.
const bound = 2 * time.Minute

func TestMain(m *testing.M) {
	if config := os.Getenv(workerEnv); config != "" {
		runWorker(config)
	}
	os.Exit(runTests(m))
}

// torture is one run.
type torture struct {
	t       *testing.T
	start   time.Time
	random  *rand.Rand
	witness *witness.Witness
	logs    string         // a directory
	skip    *regexp.Regexp // of faults

	servers []*redistest.Server // one more than masters, and two that only processes with other masters have
	clocks  []*redistest.Clock
	spare   int                    // the server that is behind no address
	behind  []int                  // the server behind each address
	masters []*redistest.Forwarder // the addresses
	sources string                 // of the clients in other languages
	folder  string                 // for what the clients and the agent have
	agent   *agent
	clients []*client      // those that run
	broken  breakage       // of the workers
	workers []*process     // those that run
	other   *process       // that runs with other masters, or nil
	others  []*process     // all that were started with other masters
	started int            // how many workers were started
	all     []*process     // all that were started
	faults  map[string]int // how often each fault was caused
}

// TestTorture runs for $TORTURE_TIME, with random choices by $TORTURE_SEED, and without the faults that match $TORTURE_SKIP.
func TestTorture(t *testing.T) {
	t.Parallel()
	length, seed := tortureTime(t), rand.Uint64()
	if text := os.Getenv("TORTURE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TORTURE_SEED=%d TORTURE_TIME=%v", seed, length)
	r := newTorture(t, seed)
	r.startClients(kinds(t)...)
	r.startWorkers("")
	if skip := os.Getenv("TORTURE_SKIP"); skip != "" {
		r.skip = regexp.MustCompile(skip)
	}
	for round, begun := 0, time.Now(); time.Since(begun) < length; round++ {
		r.round(round)
		if wrong := r.complaints(); len(wrong) > 0 {
			break
		}
	}
	r.finish()
}

// TestWitnessFindsBrokenLocks: the witness complains of workers whose locks are broken, and of nothing else.
func TestWitnessFindsBrokenLocks(t *testing.T) {
	t.Parallel()
	for broken, complaint := range map[breakage]string{noQuorum: "two holders", ownFences: "the fence", neverLost: "two holders"} {
		t.Run(string(broken), func(t *testing.T) {
			t.Parallel()
			r := newTorture(t, rand.Uint64())
			r.startWorkers(broken)
			for start := time.Now(); len(r.complaints()) == 0; time.Sleep(100 * time.Millisecond) {
				if time.Since(start) > bound {
					t.Fatalf("not found in %v", bound)
				}
				if broken == neverLost {
					r.stopWorker(r.workers[0])
				}
			}
			for _, text := range r.complaints() {
				if broken != noQuorum && !strings.HasPrefix(text, complaint) {
					t.Errorf("%s, want only: %s", text, complaint)
				}
			}
			t.Log(r.complaints()[0])
		})
	}
}

// tortureTime is how long TestTorture runs.
func tortureTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TORTURE_TIME")
	if text == "" {
		return 8 * time.Second
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return length
}

func newTorture(t *testing.T, seed uint64) *torture {
	r := &torture{t: t, sources: "../../clients", start: time.Now(), random: rand.New(rand.NewPCG(seed, 0)), witness: witness.New(), faults: make(map[string]int)}
	var err error
	if r.logs, err = os.MkdirTemp("", "redlock-torture-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the workers' logs and profiles are in %s", r.logs)
		} else {
			_ = os.RemoveAll(r.logs)
		}
	})
	for i := range 6 {
		clock := redistest.NewClock(t)
		r.clocks = append(r.clocks, clock)
		r.servers = append(r.servers, redistest.StartWith(t, clock.Env()))
		if i < 3 {
			r.behind = append(r.behind, i)
			r.masters = append(r.masters, redistest.NewForwarder(t, r.servers[i]))
		}
	}
	r.spare = 3
	return r
}

// startWorkers starts the workers, whose locks may be broken, and waits until they get some.
func (r *torture) startWorkers(broken breakage) {
	r.t.Helper()
	r.broken = broken
	for place := range 3 {
		r.workers = append(r.workers, nil)
		r.startWorker(place)
	}
	r.recover()
}

// startWorker starts the worker of this place.
func (r *torture) startWorker(place int) {
	r.t.Helper()
	var urls []string
	for _, m := range r.masters {
		urls = append(urls, "redis://"+m.Addr())
	}
	if r.broken == noQuorum {
		urls = urls[place : place+1]
	}
	r.workers[place] = r.launch(fmt.Sprintf("worker-%d", place), &worker{URLs: urls, Clients: 8, Broken: r.broken, Agent: r.socket()})
	r.all = append(r.all, r.workers[place])
}

// startOther starts a process that has the first master in common with the workers, and two of its own, and waits until it is refused.
func (r *torture) startOther() {
	r.t.Helper()
	urls := append(redistest.URLs(r.servers[4:]), "redis://"+r.masters[0].Addr())
	r.other = r.launch("other", &worker{URLs: urls, Clients: 2, Other: true})
	r.others = append(r.others, r.other)
	r.other.awaitRefusal()
}

// endOther ends the process with other masters, if there is one. It must be gone before something that has it hear nothing of the workers
// for long: then it may lock beside them.
func (r *torture) endOther() {
	r.t.Helper()
	if r.other != nil {
		r.other.end("stop")
	}
	r.other = nil
}

func (r *torture) launch(name string, config *worker) *process {
	r.t.Helper()
	r.started++
	name = fmt.Sprintf("%s.%d", name, r.started)
	log := filepath.Join(r.logs, name+".log")
	config.Heap = log + ".heap"
	return startProcess(r.t, name, log, r.witness, config)
}

// recover waits until all masters have a vote again, whatever happened before, and all workers get locks.
func (r *torture) recover() {
	r.t.Helper()
	time.Sleep(guard + ttl)
	for _, w := range r.workers {
		w.awaitTurn()
	}
}

func (r *torture) log(format string, args ...any) {
	r.t.Logf("%8.3f s, clock %.3f: %s", time.Since(r.start).Seconds(), float64(witness.Now())/1e9, fmt.Sprintf(format, args...))
}

func (r *torture) complaints() []string {
	wrong, _, _ := r.witness.Judge()
	for _, w := range slices.Concat(r.all, r.others) {
		wrong = append(wrong, w.complaints()...)
	}
	return wrong
}

// finish ends the workers, and requires that nothing is left of them.
func (r *torture) finish() {
	r.recover()
	r.endClients()
	for _, w := range r.workers {
		w.end("stop")
	}
	for i, text := range r.complaints() {
		if i < 20 {
			r.t.Error(text)
		}
	}
	redistest.RequireNoKeys(r.t, r.servers)
	for i, s := range r.servers {
		for deadline := time.Now().Add(bound); s.Connections() > 0; time.Sleep(10 * time.Millisecond) { // it may notice their ends late
			if time.Now().After(deadline) {
				r.t.Fatalf("server %d still has %d connections", i, s.Connections())
			}
		}
		r.requireExpiry(i, s)
	}
	requireFlat(r.t, r.workers[0])
	r.summary()
}

// requireExpiry requires that everything left, the fences and what is known of processes, expires.
func (r *torture) requireExpiry(i int, s *redistest.Server) {
	keys := s.Client().Keys(r.t.Context(), "*").Val()
	for _, key := range keys {
		limit := time.Minute
		if strings.HasPrefix(key, "redlock:processes:") {
			limit = time.Hour
		}
		if left := s.Client().PTTL(r.t.Context(), key).Val(); left == -1 || left > limit {
			r.t.Errorf("server %d: %q expires in %v", i, key, left)
		}
	}
	r.t.Logf("server %d: %d keys are left until they expire", i, len(keys))
}

func (r *torture) summary() {
	counts := make(map[string]int)
	for _, w := range r.all {
		for name, n := range w.counts {
			counts[name] += n
		}
	}
	table := func(m map[string]int) (text string) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			text += fmt.Sprintf("\n  %6d %s", m[name], name)
		}
		return text
	}
	wrong, holds, keys := r.witness.Judge()
	r.t.Logf("%v: %d holds judged on %d keys, %d processes, %d complaints", time.Since(r.start).Round(time.Second), holds, keys, len(r.all), len(wrong))
	for _, c := range r.clients {
		r.t.Logf("%d turns of %s", r.witness.Ended(c.name), c.name)
	}
	held := 0
	for _, p := range r.others {
		held += p.turns
	}
	r.t.Logf("%d processes with other masters, which had %d locks after they were refused", len(r.others), held)
	r.t.Logf("faults:%s", table(r.faults))
	r.t.Logf("outcomes, without the processes that were killed:%s", table(counts))
}

// requireFlat requires that the process uses about as much at its end as at its beginning.
func requireFlat(t *testing.T, p *process) {
	third := len(p.samples) / 3
	if third == 0 {
		t.Fatal("no samples")
	}
	median := func(samples []sample, of func(sample) uint64) uint64 {
		values := make([]uint64, len(samples))
		for i, s := range samples {
			values[i] = of(s)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	for what, f := range map[string]struct {
		of    func(sample) uint64
		slack uint64
	}{
		"live bytes": {func(s sample) uint64 { return s.Live }, 2 << 20},
		"goroutines": {func(s sample) uint64 { return s.Goroutines }, 10},
	} {
		first, last := median(p.samples[:third], f.of), median(p.samples[2*third:], f.of)
		t.Logf("%s of %s: %d in the first third, %d in the last", what, p.name, first, last)
		if last > first*3/2+f.slack {
			t.Errorf("%s of %s grow from %d in the first third to %d in the last", what, p.name, first, last)
		}
	}
}

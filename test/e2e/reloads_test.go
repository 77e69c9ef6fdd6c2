package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const (
	reloadKeys = 20
	reloadRate = 100 // requests per second, of both processes together
	reloadTTL  = 2 * calm
	stepDone   = "the next step of a change can be taken"
)

// TestReloads reloads two Caddys in turn while 100 requests per second come for 20 keys, which each hold for 10 to 500 ms: with the
// same configuration, with other masters (as docs/operations.md prescribes, and wrongly), without the handler, and with configurations that
// can't be loaded. No two requests with a key overlap, all are served, and nothing is left. RELOADS sets how many reloads there are.
func TestReloads(t *testing.T) {
	needTime(t)
	t.Parallel()
	reloads, masters := 16, [][]int{{0, 1, 2, 3}, {0, 1, 2}}
	text := os.Getenv("RELOADS")
	if text != "" {
		var err error
		if reloads, err = strconv.Atoi(text); err != nil {
			t.Fatalf("RELOADS: %v", err)
		}
		masters = [][]int{{0, 1, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2}}
	}
	r := newReloading(t)
	r.patient = text != ""
	began := time.Now()
	r.load(time.Second)
	for _, p := range r.processes { // what is made with the first reload, and stays
		r.reload(p, r.config(), http.StatusOK)
	}
	before := r.footprint()
	for _, f := range before {
		if f.goroutines == 0 || len(f.series) == 0 {
			t.Fatalf("an idle process has %d goroutines of the module and %d metrics", f.goroutines, len(f.series))
		}
	}

	stop := r.begin()
	for round := 0; r.reloads < reloads || round%len(masters) != 0; round++ {
		for _, step := range []func(){
			func() { r.changeMasters(masters[round%len(masters)]) },
			func() { r.each(func(p *reloaded) { r.reload(p, r.config(), http.StatusOK) }) },
			func() { r.removeHandler() },
			func() { r.breakConfig(round) },
		} {
			step()
			time.Sleep(200 * time.Millisecond) // so that requests begin and end under each configuration
		}
		if r.patient && round%5 == 4 {
			r.changeTwoMasters()
		}
	}
	time.Sleep(time.Until(began.Add(12 * time.Second))) // of sets that came within 10 s, either may be the first
	r.changeTwoMasters()
	r.completeChange()
	stop()
	t.Logf("%d reloads, %d requests, %d refused by a process with wrong masters, %d connections broken off, %d overtakes that would be overlaps without a lock",
		r.reloads, r.served.Load(), r.refused.Load(), len(r.broken), r.witness.unlockedOverlaps)

	r.requireBrokenOffWithout(len(r.broken))
	redistest.RequireNoKeys(t, r.servers)
	requireLifetimes(t, r.servers)
	r.requireFootprint(before)
}

// reloading is a test with Caddys that are reloaded under load.
type reloading struct {
	t         *testing.T
	servers   []*redistest.Server
	masters   []int // those of the configuration, by their index
	witness   *upstreamWitness
	upstream  *httptest.Server
	client    *http.Client
	processes []*reloaded
	reloads   int
	patient   bool // whether each step of a change waits for the end of the last one; otherwise it takes that back

	served, refused atomic.Int64
	mu              sync.Mutex
	broken          []error // of requests without a response
}

// reloaded is a Caddy that is reloaded.
type reloaded struct {
	*caddyProcess
	wrong     atomic.Int64 // odd while it has wrong masters
	stepsDone int          // lines in the log, before the masters were changed
	changed   bool         // since then
}

func newReloading(t *testing.T) *reloading {
	r := &reloading{t: t, servers: redistest.Start(t, 5), masters: []int{0, 1, 2}, witness: newUpstreamWitness(t)}
	r.upstream = httptest.NewServer(r.witness)
	t.Cleanup(r.upstream.Close)
	r.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 250}}
	t.Cleanup(r.client.CloseIdleConnections)
	for range 2 {
		r.processes = append(r.processes, &reloaded{caddyProcess: runCaddy(t, r.config())})
	}
	return r
}

// config is the configuration with the present masters, in which a request waits until it has its lock.
func (r *reloading) config(lines ...string) string {
	return caddyfile(r.global(r.masters), r.rule(append(lines, "wait 5m")...)+r.proxy())
}

func (r *reloading) global(masters []int) string {
	var servers []*redistest.Server
	for _, i := range masters {
		servers = append(servers, r.servers[i])
	}
	return mastersOption(servers, "timeout "+calm.String(), "max_ttl "+reloadTTL.String())
}

func (r *reloading) rule(lines ...string) string {
	return "redlock order:{path.0} {\nttl " + reloadTTL.String() + "\n" + strings.Join(lines, "\n") + "\n}\n"
}

func (r *reloading) proxy() string {
	return "reverse_proxy " + r.upstream.Listener.Addr().String() + " {\ntransport http {\nkeepalive off\n}\n}\n"
}

// each does something with one process, and then with the other, as in a deployment.
func (r *reloading) each(do func(*reloaded)) {
	for _, p := range r.processes {
		do(p)
		time.Sleep(100 * time.Millisecond)
	}
}

// reload loads a configuration even if it is the present one, and wants this status.
func (r *reloading) reload(p *reloaded, config string, status int) {
	r.t.Helper()
	r.reloads++
	if a := p.load(r.t, config, "Cache-Control", "must-revalidate"); a.status != status {
		r.t.Fatalf("reload %d: status %d, want %d: %s", r.reloads, a.status, status, a.body)
	}
}

// changeMasters adds or removes one server in all processes, after the last such change is complete.
func (r *reloading) changeMasters(masters []int) {
	r.t.Helper()
	r.completeChange()
	for _, p := range r.processes {
		p.changed, p.stepsDone = true, strings.Count(p.log.String(), stepDone)
	}
	r.masters = masters
	r.each(func(p *reloaded) { r.reload(p, r.config(), http.StatusOK) })
}

// completeChange waits until each process has logged that the next step can be taken.
func (r *reloading) completeChange() {
	r.t.Helper()
	if !r.patient {
		return
	}
	for _, p := range r.processes {
		eventually(r.t, "the step of a change is complete", func() bool {
			return !p.changed || strings.Count(p.log.String(), stepDone) > p.stepsDone
		})
		p.changed = false
	}
}

// changeTwoMasters gives a process masters of which two are others: it refuses them while it holds locks, and goes on. Where it holds none, it is
// corrected.
func (r *reloading) changeTwoMasters() {
	r.t.Helper()
	r.completeChange()
	p := r.processes[0]
	wrong := append([]int{4}, r.masters[:1]...)
	for i := range r.servers {
		if !slices.Contains(r.masters, i) && i != 4 {
			wrong = append(wrong, i)
		}
	}
	eventually(r.t, "the masters are refused", func() bool {
		p.wrong.Add(1)
		defer p.wrong.Add(1)
		r.reloads++
		a := p.load(r.t, caddyfile(r.global(wrong), r.rule()+r.proxy()))
		if a.status == http.StatusOK {
			r.reload(p, r.config(), http.StatusOK)
			return false
		}
		return a.status == http.StatusBadRequest && strings.Contains(a.body, "the running configuration holds ")
	})
}

// removeHandler takes away the handler and the app, or only the handler, and restores them.
func (r *reloading) removeHandler() {
	r.t.Helper()
	for _, p := range r.processes {
		for _, global := range []string{r.global(r.masters), ""} {
			if r.patient && p.changed && global == "" {
				continue // a Locker that begins after a change doesn't log its end
			}
			r.reload(p, caddyfile(global, r.proxy()), http.StatusOK)
			time.Sleep(100 * time.Millisecond)
		}
		r.reload(p, r.config(), http.StatusOK)
	}
}

// breakConfig loads configurations that are refused: by the adapter, when they are provisioned, and when they are started.
func (r *reloading) breakConfig(round int) {
	r.t.Helper()
	r.each(func(p *reloaded) {
		good := r.config()
		r.reload(p, []string{
			strings.Replace(good, "wait 5m", "wait forever", 1),
			r.config("verify stripe {env.NOT_SET}"),
			good + "http://127.0.0.1:" + portOf(r.t, r.upstream.Listener.Addr().String()) + " {\nredlock {path}\nrespond ok\n}\n", // in use
		}[round%3], http.StatusBadRequest)
	})
}

// load sends requests for some time.
func (r *reloading) load(d time.Duration) {
	stop := r.begin()
	time.Sleep(d)
	stop()
}

// begin sends requests until stop is called, which waits for their responses.
func (r *reloading) begin() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		ticker := time.NewTicker(time.Second / reloadRate)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ticker.C:
				all.Go(func() { r.request(r.processes[n%len(r.processes)]) })
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// request sends a request for one of the keys, which holds it for 10 to 500 ms; most holds are short, so that the keys suffice for the rate.
func (r *reloading) request(p *reloaded) {
	wrong := p.wrong.Load()
	hold := time.Duration(10 * math.Pow(50, rand.Float64()) * float64(time.Millisecond))
	response, err := r.client.Do(request(fmt.Sprintf("%s/%d?hold=%v", p.url, rand.IntN(reloadKeys), hold)).WithContext(r.t.Context()))
	if err != nil {
		r.mu.Lock()
		r.broken = append(r.broken, err)
		r.mu.Unlock()
		return
	}
	a := read(r.t, response)
	now := p.wrong.Load()
	mayRefuse := wrong%2 == 1 || now%2 == 1 || now != wrong
	switch {
	case a.status == http.StatusOK:
		r.served.Add(1)
	case a.status == http.StatusConflict && a.header.Get("Redlock-Outcome") == "no_quorum" && mayRefuse:
		r.refused.Add(1)
	default:
		r.t.Errorf("status %d, outcome %q, after reload %d: %s", a.status, a.header.Get("Redlock-Outcome"), r.reloads, a.body)
	}
}

// requireBrokenOffWithout requires, if connections were broken off, that plain Caddy breaks off connections too when it is reloaded under the same load.
func (r *reloading) requireBrokenOffWithout(broken int) {
	r.t.Helper()
	if broken == 0 {
		return
	}
	r.t.Logf("broken off: %v", errors.Join(r.broken[:min(len(r.broken), 5)]...))
	r.broken = nil
	plain := caddyfile("", r.proxy())
	stop := r.begin()
	for range 3 * r.reloads {
		r.each(func(p *reloaded) { r.reload(p, plain, http.StatusOK) })
		r.mu.Lock()
		also := len(r.broken)
		r.mu.Unlock()
		if also > 0 {
			break
		}
	}
	stop()
	if len(r.broken) == 0 {
		r.t.Errorf("%d connections were broken off, and none with plain Caddy", broken)
	}
	r.each(func(p *reloaded) { r.reload(p, r.config(), http.StatusOK) })
}

// footprint is what a process has while it is idle.
type footprint struct {
	goroutines  int      // of this module
	all         int      // goroutines
	series      []string // of this module: their names, rules and masters
	connections []int    // of all processes, to each server
}

var (
	goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)
	goroutineStack = regexp.MustCompile(`(?m)^(\d+) @.*\n((?:#.*\n)*)`)
	metricSeries   = regexp.MustCompile(`(?m)^(redlock_\w+)(?:\{(?:.*,)?((?:rule|master)="[^"]*").*\})?`)
)

// footprint waits until each process has one connection to each of its masters: a second one is kept for a while after a wait.
func (r *reloading) footprint() (all []footprint) {
	r.t.Helper()
	r.client.CloseIdleConnections()
	for _, i := range r.masters {
		requireConnections(r.t, r.servers[i:i+1], len(r.processes))
	}
	return r.footprints()
}

func (r *reloading) footprints() (all []footprint) {
	r.t.Helper()
	get := func(url string) string {
		response, err := client.Get(url)
		if err != nil {
			r.t.Fatal(err)
		}
		return read(r.t, response).body
	}
	var connections []int
	for _, s := range r.servers {
		connections = append(connections, s.Connections())
	}
	for _, p := range r.processes {
		f := footprint{connections: connections}
		profile := get(p.admin + "/debug/pprof/goroutine?debug=1")
		if total := goroutineTotal.FindStringSubmatch(profile); total != nil {
			f.all, _ = strconv.Atoi(total[1])
		}
		for _, stack := range goroutineStack.FindAllStringSubmatch(profile, -1) {
			if strings.Contains(stack[2], "caddy-redlock/") || strings.Contains(stack[2], "go-redis") {
				n, _ := strconv.Atoi(stack[1])
				f.goroutines += n
			}
		}
		for _, series := range metricSeries.FindAllStringSubmatch(get(p.admin+"/metrics"), -1) {
			f.series = append(f.series, series[1]+" "+series[2]) // outcomes and reasons come when there is the first
		}
		slices.Sort(f.series)
		f.series = slices.Compact(f.series)
		all = append(all, f)
	}
	return all
}

// requireFootprint requires the processes to become as they were.
func (r *reloading) requireFootprint(before []footprint) {
	r.t.Helper()
	r.client.CloseIdleConnections()
	var now []footprint
	for deadline := time.Now().Add(bound); ; time.Sleep(100 * time.Millisecond) {
		now = r.footprints()
		same := func(a, b footprint) bool {
			// Of others' goroutines one may have begun late; what a reload leaves behind, each of them does.
			return a.goroutines == b.goroutines && b.all < a.all+max(1, r.reloads/4) && slices.Equal(a.series, b.series) && slices.Equal(a.connections, b.connections)
		}
		if slices.EqualFunc(before, now, same) {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	r.t.Errorf("before the reloads: %v\nafter them: %v", before, now)
}

// requireLifetimes requires all keys that are left to have a TTL.
func requireLifetimes(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		scan := s.Client().Scan(t.Context(), 0, "", 1000).Iterator()
		for scan.Next(t.Context()) {
			if ttl := s.Client().TTL(t.Context(), scan.Val()).Val(); ttl == -1 {
				t.Errorf("%s on %s has no TTL", scan.Val(), s.Addr())
			}
		}
	}
}

// upstreamWitness is an upstream that watches who runs for each key.
type upstreamWitness struct {
	t  *testing.T
	mu sync.Mutex

	running          map[string]int    // with a lock
	fences           map[string]uint64 // the last of each key
	unlocked         map[string]int    // running without a lock
	unlockedOverlaps int
}

func newUpstreamWitness(t *testing.T) *upstreamWitness {
	return &upstreamWitness{t: t, running: make(map[string]int), fences: make(map[string]uint64), unlocked: make(map[string]int)}
}

func (u *upstreamWitness) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	key := r.URL.Path
	hold, _ := time.ParseDuration(r.URL.Query().Get("hold"))
	fence, _ := strconv.ParseUint(r.Header.Get("Fencing-Token"), 10, 64)
	in := u.running
	u.mu.Lock()
	switch {
	case fence == 0: // while the handler is removed
		in = u.unlocked
		if u.unlocked[key]+u.running[key] > 0 {
			u.unlockedOverlaps++
		}
	case u.running[key] > 0:
		u.t.Errorf("two requests with key %s run at once", key)
	case fence <= u.fences[key]:
		u.t.Errorf("fence %d of %s comes after %d", fence, key, u.fences[key])
	}
	if fence > 0 {
		u.fences[key] = fence
	}
	in[key]++
	u.mu.Unlock()
	time.Sleep(hold)
	u.mu.Lock()
	defer u.mu.Unlock()
	in[key]--
}

package metrics_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is the time for what should happen at once, even on a busy machine.
const bound = 30 * time.Second

var live = []string{"memory://a", "memory://b", "memory://c"}

func newLocker(t testing.TB, m *metrics.Metrics, urls []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(urls, append([]redlock.Option{redlock.WithTimeout(time.Second), redlock.WithObserver(m.Observer())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	m.Watch(l)
	return l
}

// series returns the values of all series by their names and labels, as in requests_total{rule="pay",outcome="held"}; of histograms
// the numbers of their values. The registry is pedantic: it refuses series that are there twice, or have no description.
func series(t testing.TB, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	all := make(map[string]float64)
	for _, family := range gather(t, m) {
		for _, one := range family.GetMetric() {
			var labels []string
			for _, pair := range one.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
			}
			name := strings.TrimPrefix(family.GetName(), "redlock_") + "{" + strings.Join(labels, ",") + "}"
			all[name] = one.GetCounter().GetValue() + one.GetGauge().GetValue() + float64(one.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func gather(t testing.TB, m *metrics.Metrics) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// with returns the names of the series that contain a text.
func with(all map[string]float64, text string) (names []string) {
	for name := range all {
		if strings.Contains(name, text) {
			names = append(names, name)
		}
	}
	return names
}

// requireSeries waits until these series have these values: a master connects, and a lost lease is reported, in the background.
func requireSeries(t testing.TB, m *metrics.Metrics, want map[string]float64) {
	t.Helper()
	all := series(t, m)
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); all = series(t, m) {
		missing := func(name string) bool { got, ok := all[name]; return !ok || got != want[name] }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(want)), missing) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	for name, value := range want {
		if got, ok := all[name]; !ok || got != value {
			t.Errorf("%s is %v (exists: %v), want %v", name, got, ok, value)
		}
	}
	if t.Failed() {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.Log(name, all[name])
		}
	}
}

// orders serializes requests by the header Order.
func orders(l *redlock.Locker, m *metrics.Metrics, h http.HandlerFunc, rule middleware.Rule) http.Handler {
	rule.Observer, rule.Name = m.Rules(), "pay"
	return middleware.New(l, "order:{header.Order}", rule)(h)
}

func ok(http.ResponseWriter, *http.Request) {}

func request(h http.Handler, order string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Order", order)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Requests are counted by what became of them; who holds a lock or waits for one is seen while it does.
func TestRequests(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, live)
	inside, release := make(chan struct{}), make(chan struct{})
	holds := orders(l, m, func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release }, middleware.Rule{})
	waits := orders(l, m, ok, middleware.Rule{Wait: bound})
	request(waits, "41")
	request(waits, "")
	var done sync.WaitGroup
	done.Go(func() { request(holds, "42") })
	<-inside
	request(holds, "42")
	done.Go(func() { request(waits, "42") })
	for deadline := time.Now().Add(bound); l.Status().Waiting == 0 && time.Now().Before(deadline); { // it stands in line
		time.Sleep(time.Millisecond)
	}
	requireSeries(t, m, map[string]float64{
		`requests_total{outcome="acquired",rule="pay"}`:    1,
		`requests_total{outcome="held",rule="pay"}`:        1,
		`requests_total{outcome="missing_key",rule="pay"}`: 1,
		`requests_total{outcome="lost",rule="pay"}`:        0,
		`wait_seconds{rule="pay"}`:                         2,
		`hold_seconds{rule="pay"}`:                         1,
		`waiting{rule="pay"}`:                              1,
		`holding{rule="pay"}`:                              1,
		`concurrency{rule="pay"}`:                          1,
		`held{}`:                                           1,
		`acquisitions_total{came="free"}`:                  2,
		`acquisitions_total{came="passed"}`:                0,
		`leases_lost_total{}`:                              0,
		`renewals_total{result="ok"}`:                      0,
		`master_up{master="memory://a"}`:                   1,
	})
	close(release)
	done.Wait()
	requireSeries(t, m, map[string]float64{
		`requests_total{outcome="acquired",rule="pay"}`: 3,
		`wait_seconds{rule="pay"}`:                      3,
		`hold_seconds{rule="pay"}`:                      3,
		`waiting{rule="pay"}`:                           0,
		`holding{rule="pay"}`:                           0,
		`held{}`:                                        0,
		`acquisitions_total{came="passed"}`:             1,
	})
}

// Requests that hold slots of a rule are seen beside how many may.
func TestSlots(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, live)
	inside, release := make(chan struct{}), make(chan struct{})
	h := orders(l, m, func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release }, middleware.Rule{Concurrency: middleware.Concurrency{3}})
	requireSeries(t, m, map[string]float64{`concurrency{rule="pay"}`: 3, `holding{rule="pay"}`: 0})
	var done sync.WaitGroup
	for range 2 {
		done.Go(func() { request(h, "42") })
		<-inside
	}
	requireSeries(t, m, map[string]float64{`holding{rule="pay"}`: 2, `held{}`: 2})
	close(release)
	done.Wait()
	requireSeries(t, m, map[string]float64{`concurrency{rule="pay"}`: 3, `holding{rule="pay"}`: 0, `held{}`: 0})
}

// A lease that is lost counts, and so do renewals.
func TestLeases(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, live, redlock.WithTTL(6*time.Second))
	untilLost := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	request(orders(l, m, untilLost, middleware.Rule{MaxHold: 50 * time.Millisecond}), "42")
	requireSeries(t, m, map[string]float64{`requests_total{outcome="lost",rule="pay"}`: 1, `leases_lost_total{}`: 1, `renewals_total{result="ok"}`: 0})
	request(orders(l, m, func(http.ResponseWriter, *http.Request) {
		for deadline := time.Now().Add(bound); series(t, m)[`renewals_total{result="ok"}`] == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("no renewal is counted")
				return
			}
		}
	}, middleware.Rule{}), "43")
	requireSeries(t, m, map[string]float64{`requests_total{outcome="acquired",rule="pay"}`: 1, `leases_lost_total{}`: 1, `renewals_total{result="failed"}`: 0})
}

// A lock of which only the release finds that it was lost is counted as one that was lost before, and so is its request.
func TestLossFoundAtRelease(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		m := metrics.New()
		l := net.Locker(t, redlock.WithObserver(m.Observer()))
		loses := func(http.ResponseWriter, *http.Request) {
			for _, s := range net.Servers {
				s.Give("order:42", "another", time.Hour)
			}
		}
		request(orders(l, m, loses, middleware.Rule{}), "42")
		request(orders(l, m, ok, middleware.Rule{}), "43")
		requireSeries(t, m, map[string]float64{
			"leases_lost_total{}":                           1,
			`requests_total{outcome="lost",rule="pay"}`:     1,
			`requests_total{outcome="acquired",rule="pay"}`: 1,
		})
	})
}

// The metrics have good names and help texts, and no label has anything of a request or a password.
func TestLintAndSecrets(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, []string{"redis://bob:s3cr3t-Zm9v@127.0.0.1:1", "redis://:s3cr3t-Zm9v@127.0.0.1:2", "unix://bob:s3cr3t-Zm9v@/nowhere.sock"})
	_, _ = l.TryLock(t.Context(), "key-Zm9vYmFy")
	request(orders(l, m, ok, middleware.Rule{}), "key-Zm9vYmFy")
	problems, err := testutil.CollectAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, family := range gather(t, m) {
		if text := family.String(); strings.Contains(text, "Zm9v") || strings.Contains(text, "bob") {
			t.Error(text)
		}
	}
	if ups := with(series(t, m), "master_up{"); len(ups) != 3 {
		t.Error(ups)
	}
}

// Histograms have classic buckets, and are native histograms too.
func TestHistograms(t *testing.T) {
	m := metrics.New()
	request(orders(newLocker(t, m, live), m, ok, middleware.Rule{}), "42")
	found := 0
	for _, family := range gather(t, m) {
		if family.GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		found++
		h := family.GetMetric()[0].GetHistogram()
		if len(h.GetBucket()) < 10 || len(h.GetPositiveSpan()) == 0 {
			t.Errorf("%s: %d classic buckets, native: %v", family.GetName(), len(h.GetBucket()), h.GetPositiveSpan())
		}
	}
	if found != 2 {
		t.Errorf("%d histograms", found)
	}
}

// During a reload two Lockers have the same masters. Each master is there once, and those that no Locker has any more disappear.
func TestLockersThatComeAndGo(t *testing.T) {
	m := metrics.New()
	down := func(name string) {
		m.Observer().MasterDown(redlock.MasterStatus{Name: name, State: redlock.MasterHung})
	}
	before := newLocker(t, m, live)
	down("memory://a")
	down("memory://b")
	after := newLocker(t, m, []string{"memory://b", "memory://d"})
	other := newLocker(t, m, []string{"redis://127.0.0.1:1"})
	held, err := before.TryLock(t.Context(), "42")
	if err != nil {
		t.Fatal(err)
	}
	down("memory://b")
	requireSeries(t, m, map[string]float64{
		`master_up{master="memory://a"}`:                              1,
		`master_up{master="memory://b"}`:                              1,
		`master_up{master="memory://d"}`:                              1,
		`master_up{master="redis://127.0.0.1:1"}`:                     0,
		`master_failures_total{master="memory://a",reason="hung"}`:    1,
		`master_failures_total{master="memory://b",reason="hung"}`:    2,
		`master_failures_total{master="memory://b",reason="refuses"}`: 0,
		`held{}`: 1,
	})
	_ = held.Unlock()
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	down("memory://a") // late
	all := series(t, m)
	if gone := append(with(all, "memory://a"), with(all, "memory://c")...); len(gone) > 0 {
		t.Errorf("of masters that are gone: %v", gone)
	}
	requireSeries(t, m, map[string]float64{`master_failures_total{master="memory://b",reason="hung"}`: 2})
	_ = after.Close()
	_ = other.Close()
	if left := with(series(t, m), "master="); len(left) > 0 {
		t.Errorf("of masters that are gone: %v", left)
	}
}

// Of two Lockers that see a master differently, the one that gets no locks from it is shown.
func TestMasterThatIsDownForOne(t *testing.T) {
	m := metrics.New()
	for range 2 {
		newLocker(t, m, []string{"redis://127.0.0.1:1"})
	}
	requireSeries(t, m, map[string]float64{`master_up{master="redis://127.0.0.1:1"}`: 0})
	if names := with(series(t, m), "master_rtt"); len(names) > 0 {
		t.Errorf("the round trip of a master that has never answered: %v", names)
	}
}

// The series of a rule exist while somebody uses them, and begin at 0 again after that; a request that is late spoils nothing.
func TestRulesThatComeAndGo(t *testing.T) {
	m := metrics.New()
	before := len(series(t, m))
	first, releaseFirst := m.Rule("pay")
	_, releaseSecond := m.Rule("pay")
	first.Waits("pay", 1)
	first.Done("pay", middleware.OutcomeAcquired, time.Second)
	releaseFirst()
	releaseFirst()
	requireSeries(t, m, map[string]float64{`requests_total{outcome="acquired",rule="pay"}`: 1, `waiting{rule="pay"}`: 1, `hold_seconds{rule="pay"}`: 1})
	releaseSecond()
	if all := series(t, m); len(all) != before {
		t.Errorf("series of a rule that is gone: %v", with(all, "pay"))
	}
	again, release := m.Rule("pay")
	again.Begin("pay", middleware.Possible{Concurrency: 1, Waits: true, Outcomes: []middleware.Outcome{middleware.OutcomeAcquired}})
	first.Waits("pay", -1)
	first.Done("pay", middleware.OutcomeAcquired, time.Second)
	again.Acquired("pay", time.Second)
	requireSeries(t, m, map[string]float64{`requests_total{outcome="acquired",rule="pay"}`: 0, `waiting{rule="pay"}`: 0, `wait_seconds{rule="pay"}`: 1})
	release()
	if all := series(t, m); len(all) != before {
		t.Errorf("series of a rule that is gone: %v", with(all, "pay"))
	}
}

// A rule has series for what its requests can do, and for nothing else.
func TestSeriesOfWhatARuleCanDo(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, live)
	of := func(rule middleware.Rule) map[string]bool {
		t.Helper()
		rule.Name = "rule"
		observer, release := m.Rule(rule.Name)
		defer release()
		rule.Observer = observer
		middleware.New(l, "order:{header.Order}", rule)
		found := make(map[string]bool)
		for _, name := range with(series(t, m), `rule="rule"`) {
			found[name] = true
		}
		return found
	}
	plain := of(middleware.Rule{})
	for _, name := range []string{"requests_total{outcome=\"acquired\"", "requests_total{outcome=\"held\"", "requests_total{outcome=\"missing_key\"", "hold_seconds{", "holding{"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(plain)), func(has string) bool { return strings.HasPrefix(has, name) }) {
			t.Errorf("a plain rule lacks %s", name)
		}
	}
	if len(plain) > 16 { // two of them are histograms
		t.Errorf("%d series of a plain rule: %v", len(plain), slices.Sorted(maps.Keys(plain)))
	}
	for series, rule := range map[string]middleware.Rule{
		`waiting{rule="rule"}`:                                 {Wait: time.Second},
		`requests_total{outcome="stopping",rule="rule"}`:       {Wait: time.Second},
		`requests_total{outcome="duplicate",rule="rule"}`:      {Dedupe: "{header.Delivery}"},
		`requests_total{outcome="replayed",rule="rule"}`:       {Dedupe: "{header.Delivery}", Remember: time.Minute, Scope: "off"},
		`remembered_total{rule="rule"}`:                        {Dedupe: "{header.Delivery}", Remember: time.Minute, Scope: "off"},
		`remember_quota_bytes{responses="final",rule="rule"}`:  {Dedupe: "{header.Delivery}", Remember: time.Minute, Scope: "off"},
		`not_remembered_total{reason="quota",rule="rule"}`:     {Dedupe: "{header.Delivery}", Remember: time.Minute, Scope: "off"},
		`requests_total{outcome="missing_id",rule="rule"}`:     {IdempotencyKey: "required"},
		`requests_total{outcome="body_too_large",rule="rule"}`: {BufferBody: new(true)},
		`requests_total{outcome="dry_run",rule="rule"}`:        {DryRun: true},
		`passed_total{outcome="no_quorum",rule="rule"}`:        {OnNoQuorum: middleware.Pass},
		`requests_total{outcome="bad_signature",rule="rule"}`:  {Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"0123456789abcdef0123456789abcdef"}}}},
	} {
		if got := of(rule); !got[series] || plain[series] {
			t.Errorf("%s: it is there with its setting: %t; without: %t", series, got[series], plain[series])
		}
	}
	if dry := of(middleware.Rule{DryRun: true}); dry[`hold_seconds{rule="rule"}`] || dry[`requests_total{outcome="acquired",rule="rule"}`] {
		t.Error("a dry run takes locks")
	}
	if left := with(series(t, m), `rule="rule"`); len(left) > 0 {
		t.Errorf("of a rule that is gone: %v", left)
	}
}

// A body takes room in the budget while its request runs.
func TestBodyBudget(t *testing.T) {
	m := metrics.New()
	l := newLocker(t, m, live)
	requireSeries(t, m, map[string]float64{`body_budget_bytes{}`: middleware.DefaultBodyBudget, `body_budget_used_bytes{}`: 0})
	budget := middleware.NewBudget(8 << 20)
	stop, stopAgain := m.WatchBudget(budget), m.WatchBudget(budget)
	stop()
	stop()
	h := orders(l, m, func(http.ResponseWriter, *http.Request) {
		if used := series(t, m)[`body_budget_used_bytes{}`]; used < 100_000 {
			t.Errorf("%v bytes while a body is in memory", used)
		}
	}, middleware.Rule{BodyBudget: budget, BufferBody: new(true)})
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 100_000)))
	r.Header.Set("Order", "42")
	h.ServeHTTP(httptest.NewRecorder(), r)
	requireSeries(t, m, map[string]float64{`body_budget_bytes{}`: 8 << 20, `body_budget_used_bytes{}`: 0, `requests_total{outcome="acquired",rule="pay"}`: 1})
	stopAgain()
	requireSeries(t, m, map[string]float64{`body_budget_bytes{}`: middleware.DefaultBodyBudget})
}

// Scrapes, requests, rules and Lockers that come and go don't get into each other's way.
func TestScrapesAtAnyTime(t *testing.T) {
	m := metrics.New()
	h := orders(newLocker(t, m, live), m, ok, middleware.Rule{Wait: bound})
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, work := range []func(){
		func() { request(h, "42") },
		func() { request(h, "42") },
		func() { _ = newLocker(t, m, live).Close() },
		func() {
			o, release := m.Rule("others")
			o.Done("others", middleware.OutcomeHeld, 0)
			release()
		},
	} {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					work()
				}
			}
		})
	}
	for range 50 {
		series(t, m)
	}
	close(stop)
	all.Wait()
}

// What a request costs is in BenchmarkRequest; the calls themselves allocate nothing.
func TestNoAllocation(t *testing.T) {
	m := metrics.New()
	one, release := m.Rule("pay")
	defer release()
	for name, o := range map[string]middleware.Observer{"all rules": m.Rules(), "one rule": one} {
		if n := testing.AllocsPerRun(1000, func() {
			o.Waits("pay", 1)
			o.Waits("pay", -1)
			o.Acquired("pay", time.Millisecond)
			o.Done("pay", middleware.OutcomeAcquired, time.Millisecond)
			m.Observer().Acquired(0, inside.ViaFree)
			m.Observer().Renewed(nil)
		}); n > 0 {
			t.Errorf("%s: %v allocations for a request", name, n)
		}
	}
}

// BenchmarkRequest is that of package middleware, without and with metrics.
func BenchmarkRequest(b *testing.B) {
	for _, name := range []string{"without", "with"} {
		b.Run(name, func(b *testing.B) {
			var opts []redlock.Option
			var rule middleware.Rule
			m := metrics.New()
			if name == "with" {
				opts = append(opts, redlock.WithObserver(m.Observer()))
				rule.Observer = m.Rules()
			}
			l, err := redlock.Open(live[:1], opts...)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			h := middleware.New(l, "order:{path.1:int}", rule)(http.HandlerFunc(ok))
			r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)
			w := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

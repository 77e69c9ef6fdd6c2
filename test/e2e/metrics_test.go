package e2e

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// scrape returns the values of the series whose names begin with redlock_, without that, from the admin endpoint.
func (c *caddyProcess) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	return parseSeries(t, get(t, c.admin+"/metrics"))
}

func get(t *testing.T, url string) received {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return send(t, r)
}

func parseSeries(t *testing.T, a received) map[string]float64 {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("scrape: status %d: %s", a.status, a.body)
	}
	all := make(map[string]float64)
	for line := range strings.Lines(a.body) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "redlock_"); ok {
			end := strings.LastIndexByte(name, ' ')
			value, err := strconv.ParseFloat(name[end+1:], 64)
			if _, again := all[name[:end]]; err != nil || again {
				t.Fatalf("scrape: %q: %v", line, err)
			}
			all[name[:end]] = value
		}
	}
	return all
}

// requireSeries compares some series with their values.
func requireSeries(t *testing.T, all, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if got, ok := all[name]; !ok || got != value {
			t.Errorf("%s is %v (exists: %v), want %v", name, got, ok, value)
		}
	}
	if t.Failed() {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.Log(name, all[name])
		}
		t.FailNow()
	}
}

// requireNoSeries fails if any series is about one of these.
func requireNoSeries(t *testing.T, all map[string]float64, about ...string) {
	t.Helper()
	for name := range all {
		for _, text := range about {
			if strings.Contains(name, text) {
				t.Errorf("there is %s", name)
			}
		}
	}
}

// allShown waits until all masters have answered, so that all of their series are there.
func allShown(t *testing.T, c *caddyProcess, servers []*redistest.Server) {
	t.Helper()
	eventually(t, "all masters are up", func() bool {
		all := c.scrape(t)
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return all[`master_up{master="`+s.URL()+`"}`] == 0 })
	})
}

const (
	payMetrics = `
		redlock /orders/* order:{path.1} {
			name pay
		}
		redlock /refunds/* order:{path.1} {
			name pay
		}
		metrics /metrics
	`
	jobMetrics = "redlock /jobs/* job:{path.1}\n"
)

// Counters go on after a reload, and nothing counts twice. Series of rules and masters that are gone disappear, and a
// configuration that can't be loaded leaves none.
func TestMetricsAcrossReloads(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 4)
	former, added := servers[:3], servers[3]
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(former, "timeout 2s"), payMetrics+jobMetrics+b.proxy()))
	requireConnections(t, former, 1)
	load := func(config string, status int) {
		t.Helper()
		if a := c.load(t, config); a.status != status {
			t.Fatalf("POST /load: status %d: %s", a.status, a.body)
		}
	}
	paid := func(n float64) map[string]float64 {
		return map[string]float64{
			`requests_total{outcome="acquired",rule="pay"}`: n,
			`requests_total{outcome="held",rule="pay"}`:     n,
			`wait_seconds_count{rule="pay"}`:                n,
			`wait_seconds_bucket{rule="pay",le="+Inf"}`:     n,
			`hold_seconds_count{rule="pay"}`:                n,
			`held`:                                          0,
			`body_budget_bytes`:                             64 << 20,
		}
	}
	wait := b.hold(t, c.url+"/orders/1/pay") // two handlers count together
	requireStatus(t, post(t, c.url+"/refunds/1/pay"), http.StatusLocked)
	requireSeries(t, c.scrape(t), map[string]float64{`held`: 1, `requests_total{outcome="acquired",rule="pay"}`: 0})

	// This request goes on with the former masters, which the new configuration has with other settings.
	load(caddyfile(mastersOption(former, "timeout 3s"), payMetrics+jobMetrics+b.proxy()), http.StatusOK)
	requireConnections(t, former, 2)
	requireSeries(t, c.scrape(t), map[string]float64{`held`: 1, `master_up{master="` + former[0].URL() + `"}`: 1})
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireSeries(t, c.scrape(t), paid(1))
	requireSeries(t, parseSeries(t, get(t, c.url+"/metrics")), paid(1))
	requireStatus(t, post(t, c.url+"/jobs/1"), http.StatusOK)
	requireConnections(t, former, 1)
	allShown(t, c, former)
	before := c.scrape(t)
	requireSeries(t, before, map[string]float64{`requests_total{outcome="acquired",rule="job:{http.request.uri.path.1}"}`: 1})

	// The handler with the new name is provisioned before the one whose ttl is too long.
	load(caddyfile(mastersOption(former, "timeout 4s"), "redlock /new/* {path.1} {\nname new\n}\nredlock order:{path.1} {\nttl 31s\n}\n"+payMetrics+b.proxy()), http.StatusBadRequest)
	requireConnections(t, former, 1)
	requireSeries(t, c.scrape(t), paid(1))
	requireNoSeries(t, c.scrape(t), `"new"`)

	load(caddyfile(mastersOption(servers, "timeout 3s"), payMetrics+b.proxy()), http.StatusOK)
	requireConnections(t, servers, 1)
	eventually(t, "the new master is shown", func() bool { return c.scrape(t)[`master_up{master="`+added.URL()+`"}`] == 1 })
	all := c.scrape(t)
	requireSeries(t, all, paid(1))
	requireNoSeries(t, all, "job:")

	load(caddyfile(mastersOption(former, "timeout 3s"), payMetrics+jobMetrics+b.proxy()), http.StatusOK)
	requireConnections(t, former, 1)
	requireConnections(t, servers[3:], 0)
	allShown(t, c, former)
	requireStatus(t, post(t, c.url+"/refunds/1/pay"), http.StatusOK)
	all = c.scrape(t)
	requireSeries(t, all, map[string]float64{
		`requests_total{outcome="acquired",rule="pay"}`:                           2,
		`requests_total{outcome="acquired",rule="job:{http.request.uri.path.1}"}`: 0,
	})
	if got, want := slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(before)); !slices.Equal(got, want) {
		t.Errorf("series after the reloads: %v, before: %v", got, want)
	}

	// Without redlock there is nothing to show.
	load(caddyfile("", "metrics /metrics\nrespond reloaded"), http.StatusOK)
	if all := c.scrape(t); len(all) > 0 {
		t.Errorf("without redlock: %v", all)
	}
}

// No series has a key, or a password of the masters.
func TestMetricsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, "--requirepass", secret)[0]
	c := runCaddy(t, caddyfile("redlock {\nmasters redis://:"+secret+"@"+server.Addr()+"\nrestart_guard off\ntimeout 2s\n}", payMetrics+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/key-Zm9vYmFy/pay"), http.StatusOK)
	a := get(t, c.admin+"/metrics")
	requireSeries(t, parseSeries(t, a), map[string]float64{`requests_total{outcome="acquired",rule="pay"}`: 1, `master_up{master="` + server.URL() + `"}`: 1})
	for _, text := range []string{secret, "Zm9v"} {
		if strings.Contains(a.body, text) {
			t.Errorf("the metrics have %s", text)
		}
	}
}

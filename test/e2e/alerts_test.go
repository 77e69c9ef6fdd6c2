package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const prometheusFiles = "../../deploy/prometheus/"

// prometheus is a running Prometheus that scrapes Caddys.
type prometheus struct {
	url string

	mu    sync.Mutex
	fired map[string]bool // the alerts that have fired, as in "RedlockRefusals rule=pay"
}

// runPrometheus runs it until the end of the test, with the alert rules that are delivered, whose times are shortened.
func runPrometheus(t *testing.T, targets []string, flags ...string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	rules := readText(t, prometheusFiles+"redlock.rules.yml")
	rules = regexp.MustCompile(`\[[25]m\]`).ReplaceAllString(rules, "[60s]") // of rates; what has happened in longer times is counted
	rules = regexp.MustCompile(`for: \d+m`).ReplaceAllString(rules, "for: 1s")
	for long, short := range map[string]string{" > 240": " > 1", "seconds) > 0.1": "seconds) > 0.0000001"} { // so long no test lasts, and no master of it takes
		if strings.Count(rules, long) != 1 {
			t.Fatalf("no rule, or several, with %q", long)
		}
		rules = strings.Replace(rules, long, short, 1)
	}
	config := "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n" +
		"scrape_configs: [{job_name: caddy, static_configs: [{targets: ['" + strings.Join(targets, "','") + "']}]}]\n"
	for name, text := range map[string]string{"rules.yml": rules, "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := freeAddr(t)
	cmd := exec.Command("prometheus", append(flags, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", addr, "--log.level", "warn")...)
	log := new(safeBuffer)
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{url: "http://" + addr, fired: make(map[string]bool)}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-stopped
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("alerts that have fired: %v\nPrometheus's log: %s", p.fired, log)
		}
	})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				p.note()
			}
		}
	}()
	return p
}

// note remembers the alerts that fire now: some do so only for a moment.
func (p *prometheus) note() {
	var decoded struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	response, err := http.Get(p.url + "/api/v1/alerts")
	if err != nil {
		return // it has not started yet
	}
	defer response.Body.Close()
	if json.NewDecoder(response.Body).Decode(&decoded) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, alert := range decoded.Data.Alerts {
		if alert.State == "firing" {
			for name, value := range alert.Labels {
				p.fired[alert.Labels["alertname"]+" "+name+"="+value] = true
			}
		}
	}
}

// requireFired waits until an alert has fired that has a label. Meanwhile it posts to a URL, if that is not empty.
func (p *prometheus) requireFired(t *testing.T, name, label, url string) {
	t.Helper()
	for deadline, fired := time.Now().Add(3*bound), false; !fired; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s of %s does not fire", name, label)
		}
		if url != "" {
			post(t, url)
		}
		p.mu.Lock()
		fired = p.fired[name+" "+label]
		p.mu.Unlock()
	}
}

// query returns how many series a query has, or fails the test.
func (p *prometheus) query(t *testing.T, expr string) int {
	t.Helper()
	a := get(t, p.url+"/api/v1/query?query="+url.QueryEscape(expr))
	var decoded struct {
		Data struct{ Result []any }
	}
	if err := json.Unmarshal([]byte(a.body), &decoded); err != nil || a.status != http.StatusOK {
		t.Errorf("%s: status %d: %s", expr, a.status, a.body)
	}
	return len(decoded.Data.Result)
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// needPrometheus skips the test unless make test-programs runs it.
func needPrometheus(t *testing.T) {
	t.Helper()
	if os.Getenv("ALERTS") != "required" {
		t.Skip("make test-programs runs it: it needs Prometheus")
	}
}

// promtool accepts the rules, and its tests of them succeed.
func TestAlertRules(t *testing.T) {
	needPrometheus(t)
	t.Parallel()
	run := func(dir string, command ...string) {
		t.Helper()
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = dir
		if text, code := output(t, cmd); code != 0 {
			t.Errorf("%v: %s", command, text)
		}
	}
	run(prometheusFiles, "promtool", "check", "rules", "redlock.rules.yml")
	run(prometheusFiles, "promtool", "check", "config", "prometheus.yml")
	run(prometheusFiles, "promtool", "test", "rules", "redlock.test.yml")
}

// Each alert fires when it should: a real Prometheus scrapes a real Caddy, to whose masters and requests it happens.
func TestAlerts(t *testing.T) {
	needPrometheus(t)
	t.Parallel()
	wrong := redistest.NewClock(t)
	wrong.Set(700*time.Millisecond, 0)
	servers := append(redistest.Start(t, 2), redistest.StartWith(t, wrong.Env()))
	b, _ := newHeldBackend(t)
	events, answer := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout 2s", "body_budget 16777216"), `
		redlock /orders/* order:{path.1} {
			name pay
			ttl 5s
		}
		redlock /bodies/* body:{path.1} {
			name bodies
			buffer_body
			body_timeout 10m
		}
		redlock /nokey/* key:{header.Key} {
			name nokey
		}
		redlock /line/* line:{path.1} {
			name line
			wait 1h
		}
		respond /free/* "free"
		redlock /free/* free:{path.1} {
			concurrency 5
		}
		respond /full/* 404
		redlock /full/* full:{path.1} {
			name full
			dedupe {path.1}
			remember 1h
			remember_quota 64KiB
		}
		handle /events/* {
			redlock event:{path.1} {
				name events
				dedupe {path.1}
				remember 1h
			}
			`+events.proxy()+`
		}
		`+b.proxy()))
	authority := redistest.NewAuthority(t)
	authority.Life = 24 * time.Hour
	ill, urls := authority.Start(1)
	certificate, key := authority.Issue("client")
	network := redistest.NewForwarder(t, address(strings.TrimPrefix(urls[0], "rediss://")))
	far := runCaddy(t, caddyfile("redlock {\nmasters rediss://"+network.Addr()+"\ntimeout 50ms\ntls {\ntrust_pool file "+authority.File+"\nclient_auth "+certificate+" "+key+"\n}\n}", "redlock /locked key\nredlock_require\nrespond hello"))
	targets := []string{strings.TrimPrefix(c.admin, "http://"), strings.TrimPrefix(far.admin, "http://")}
	p := runPrometheus(t, targets)
	native := runPrometheus(t, targets, "--enable-feature", "native-histograms") // in place of the classic ones

	instance := "instance=" + strings.TrimPrefix(c.admin, "http://")
	p.requireFired(t, "RedlockClockOffset", "master="+servers[2].URL(), c.url+"/free/1")

	runCaddy(t, caddyfile(mastersOption(servers, "timeout 2s", "max_ttl 25s"), "redlock key\nrespond hello"))
	p.requireFired(t, "RedlockDisagreement", "about=max_ttl", "")

	p.requireFired(t, "RedlockRefusals", "rule=nokey", c.url+"/nokey/1")
	p.requireFired(t, "RedlockUnlocked", "job=caddy", far.url+"/forgotten")
	p.requireFired(t, "RedlockMastersFar", instance, "")

	for range 4 { // each time it must work for longer before it is up again
		servers[0].Kill()
		eventually(t, "a master is away", func() bool { return c.scrape(t)[`master_up{master="`+servers[0].URL()+`"}`] == 0 })
		servers[0].Restart()
		eventually(t, "it is back", func() bool { return c.scrape(t)[`master_up{master="`+servers[0].URL()+`"}`] == 1 })
	}
	p.requireFired(t, "RedlockMasterRestarts", "master="+servers[0].URL(), "")

	b.hold(t, c.url+"/orders/1/pay")
	p.requireFired(t, "RedlockLongHold", instance, "")
	p.requireFired(t, "RedlockRefusals", "rule=pay", c.url+"/orders/1/pay")

	line := make([]string, 60)
	for i := range line {
		line[i] = c.url + "/line/1"
	}
	sendAll(t, requests(line)...)
	p.requireFired(t, "RedlockLongLine", "rule=line", "")

	network.Set(redistest.Weather{Delay: 150 * time.Millisecond})
	p.requireFired(t, "RedlockMasterSlow", "master=rediss://"+network.Addr(), "")
	p.requireFired(t, "RedlockCertificateEnds", "master=rediss://"+network.Addr(), "")
	if err := ill[0].Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	p.requireFired(t, "RedlockMasterEvicts", "master=rediss://"+network.Addr(), "")

	sendPartOfBodies(t, c, 14)
	p.requireFired(t, "RedlockBodyBudget", instance, "")

	for i := range 20 {
		post(t, fmt.Sprint(c.url, "/full/", i))
	}
	p.requireFired(t, "RedlockRememberQuota", "rule=full", "")

	servers[0].Kill()
	p.requireFired(t, "RedlockMasterAway", "master="+servers[0].URL(), "")

	events.hold(t, c.url+"/events/1")
	servers[1].Kill() // the requests for order 1 and event 1 still hold their locks
	answer()
	p.requireFired(t, "RedlockNotRemembered", "rule=events", "")
	p.requireFired(t, "RedlockNoQuorum", instance, c.url+"/orders/2/pay")
	p.requireFired(t, "RedlockRenewalsFail", instance, "")
	p.requireFired(t, "RedlockLeaseLost", instance, "")

	for _, match := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(readText(t, prometheusFiles+"redlock.rules.yml"), -1) {
		p.requireFired(t, match[1], "job=caddy", "")
	}
	requireDashboard(t, p)
	requireDashboard(t, native)
}

// address is that of a server.
type address string

func (a address) Addr() string { return string(a) }

// sendPartOfBodies sends as many requests of 1 MiB, each from another address, that all stop shortly before their end.
func sendPartOfBodies(t *testing.T, c *caddyProcess, n int) {
	t.Helper()
	for i := range n {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}}
		conn, err := dialer.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		head := fmt.Sprintf("POST /bodies/%d HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", i, strings.TrimPrefix(c.url, "http://"), 1<<20)
		go func() { _, _ = io.WriteString(conn, head+strings.Repeat("x", 1<<20-1)) }() // it blocks when there is no room
	}
}

// requireDashboard asks Prometheus what the dashboard asks it, and fails where it never has anything to show.
func requireDashboard(t *testing.T, p *prometheus) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readText(t, "../../deploy/grafana/redlock.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$job", ".*", "$instance", ".*", "$rule", ".*", "$__rate_interval", "5m")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expr := strings.TrimSuffix(target.Expr, " > 0") // what only shows where something is wrong
			// Where a scrape has failed, which has a second, there is nothing to show until the next.
			eventually(t, panel.Title+" shows "+target.Expr, func() bool { return p.query(t, variables.Replace(expr)) > 0 })
		}
	}
}

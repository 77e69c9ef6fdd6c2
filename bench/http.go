package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// The second benchmark: whole web servers in front of one backend, under wrk.

const backendChild = "backend"

// runBackend is the life of the backend's process.
func runBackend(addr string) error {
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("paid\n"))
	}))
}

// httpLoad is what wrk sends.
type httpLoad struct {
	title, about, script string
}

var httpLoads = []httpLoad{
	{"Every request has a key of its own", "`POST`s to `/orders/N/pay`, each with another N, so no request has to wait.",
		"local n = 0\nwrk.method = 'POST'\nfunction request()\n\tn = n + 1\n\treturn wrk.format(nil, '/orders/' .. n .. '/pay')\nend\n"},
	{"All requests have one key", "A request that finds the order locked is refused at once: Caddy answers 423, nginx 503.",
		"wrk.method = 'POST'\nwrk.path = '/orders/1/pay'\n"},
}

// httpSample is what one slice of load did.
type httpSample struct {
	requests, refused float64
	perSecond         float64
	cpu, mastersCPU   time.Duration
	p50, p99          string
}

func (s httpSample) cpuPerRequest() float64 { return micros(s.cpu+s.mastersCPU) / s.requests }

const connections = 32

func runHTTP(quick bool, dir string) error {
	start := time.Now()
	rounds, length := 5, 3*time.Second
	if quick {
		rounds, length = 1, time.Second
	}
	tmp, err := os.MkdirTemp("", "bench-http-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o755); err != nil { // for nginx's workers
		return err
	}
	binary, unobserved := filepath.Join(tmp, "caddy"), filepath.Join(tmp, "unobserved")
	if err := errors.Join(buildCaddy(binary, true), buildCaddy(unobserved, false)); err != nil {
		return err
	}
	backend, stop, err := startBackend()
	if err != nil {
		return err
	}
	defer stop()
	list := proxies()
	for _, p := range list {
		caddy := binary
		if p.unobserved {
			caddy = unobserved
		}
		if err := p.start(tmp, caddy, backend); err != nil {
			return err
		}
		defer p.stop()
	}

	var b bytes.Buffer
	b.WriteString("# Results: HTTP\n\nWritten by `make bench-http`.\n[README.md](README.md) explains what the figures mean.\n")
	fmt.Fprintf(&b, "`wrk` uses %d connections, and each server gets %d rounds of %v.\n", connections, rounds, length)
	for i, load := range httpLoads {
		script := filepath.Join(tmp, fmt.Sprintf("load%d.lua", i))
		if err := os.WriteFile(script, []byte(load.script), 0o644); err != nil {
			return err
		}
		samples := make([][]httpSample, len(list))
		order := make([]int, len(list))
		for k := range order {
			order[k] = k
		}
		for range rounds {
			for _, k := range order {
				s, err := list[k].measure(script, length)
				if err != nil {
					return fmt.Errorf("%s: %w", list[k].name, err)
				}
				samples[k] = append(samples[k], s)
			}
			slices.Reverse(order)
			fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(start).Seconds(), load.title)
		}
		load.write(&b, list, samples)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "HTTP.md"), b.Bytes(), 0o644)
}

func startBackend() (addr string, stop func(), err error) {
	if addr, err = freeAddr(); err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "-child", backendChild, "-masters", addr)
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	startedServers.Store(cmd.Process, nil)
	stop = func() {
		startedServers.Delete(cmd.Process)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if err := answers("http://" + addr); err != nil {
		stop()
		return "", nil, err
	}
	return addr, stop, nil
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in `)
	wrkRefused  = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkRate     = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	wrkP50      = regexp.MustCompile(`(?m)^ +50% +(\S+)`)
	wrkP99      = regexp.MustCompile(`(?m)^ +99% +(\S+)`)
)

func (p *proxy) measure(script string, length time.Duration) (httpSample, error) {
	var s httpSample
	own, masters, err := p.cpu()
	if err != nil {
		return s, err
	}
	out, err := exec.Command("wrk", "-t1", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", int(length.Seconds())),
		"--latency", "-s", script, "http://"+p.addr).CombinedOutput()
	if err != nil {
		return s, fmt.Errorf("%w\n%s", err, out)
	}
	ownAfter, mastersAfter, err := p.cpu()
	s.cpu, s.mastersCPU = ownAfter-own, mastersAfter-masters
	number := func(r *regexp.Regexp) float64 {
		if m := r.FindSubmatch(out); m != nil {
			n, _ := strconv.ParseFloat(string(m[1]), 64)
			return n
		}
		return 0
	}
	text := func(r *regexp.Regexp) string {
		if m := r.FindSubmatch(out); m != nil {
			return string(m[1])
		}
		return "–"
	}
	s.requests, s.refused, s.perSecond = number(wrkRequests), number(wrkRefused), number(wrkRate)
	s.p50, s.p99 = text(wrkP50), text(wrkP99)
	if s.requests == 0 {
		return s, fmt.Errorf("wrk says\n%s", out)
	}
	return s, err
}

func (l httpLoad) write(b *bytes.Buffer, list []*proxy, samples [][]httpSample) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", l.title, l.about)
	b.WriteString("| | requests/s ÷ without lock | CPU ÷ without lock | requests/s ÷ nginx, limit_conn | CPU ÷ nginx, limit_conn | requests/s | CPU µs server | CPU µs masters | p50 | p99 | refused |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	rate := func(s httpSample) float64 { return s.perSecond }
	cpu := httpSample.cpuPerRequest
	of := make(map[string][]httpSample)
	for i, p := range list {
		of[p.name] = samples[i]
	}
	limit := of[nginxLimit]
	for _, p := range list {
		mine, alone := of[p.name], of[caddyAlone]
		if p.nginx {
			alone = of[nginxAlone]
		}
		last := mine[len(mine)-1]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %.0f %% |\n", p.name,
			times(ratioOf(mine, alone, rate)), times(ratioOf(mine, alone, cpu)),
			times(ratioOf(mine, limit, rate)), times(ratioOf(mine, limit, cpu)),
			whole(math.Round(medianOf(mine, rate))),
			whole(medianOf(mine, func(s httpSample) float64 { return micros(s.cpu) / s.requests })),
			whole(medianOf(mine, func(s httpSample) float64 { return micros(s.mastersCPU) / s.requests })),
			last.p50, last.p99,
			100*medianOf(mine, func(s httpSample) float64 { return s.refused / s.requests }))
	}
	if of[caddyLocks][0].refused > 0 {
		return // then it isn't a lock that a request costs
	}
	var added []float64
	for i, alone := range of[caddyAlone] {
		added = append(added, (cpu(of[caddyLocks][i])-cpu(alone))/(cpu(of[caddyBare][i])-cpu(alone)))
	}
	fmt.Fprintf(b, "\nMetrics cost a request with its lock %s times the CPU that it needs without them, and %s times with locks in memory.\n",
		times(ratioOf(of[caddyLocks], of[caddyUnobserved], cpu)), times(ratioOf(of[caddyMemory], of[caddyUnobservedMemory], cpu)))
	fmt.Fprintf(b, "\nredlock adds %s times as much CPU to a request as a bare lock on three masters does (goal: at most 1.1).\n", times(median(added)))
}

func medianOf(list []httpSample, v func(httpSample) float64) float64 {
	var values []float64
	for _, s := range list {
		values = append(values, v(s))
	}
	return median(values)
}

// ratioOf is the median of the rounds' ratios.
func ratioOf(mine, theirs []httpSample, v func(httpSample) float64) float64 {
	var ratios []float64
	for i := range mine {
		ratios = append(ratios, v(mine[i])/v(theirs[i]))
	}
	return median(ratios)
}

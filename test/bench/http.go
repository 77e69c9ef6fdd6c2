package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// The second benchmark: Caddy in front of one backend, under wrk.

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
	about, script string
	free          bool // no request meets another one
}

var httpLoads = []httpLoad{
	{"Every request has a key, and an ID, of its own", "local n = 0\nwrk.method = 'POST'\nfunction request()\n\tn = n + 1\n\treturn wrk.format(nil, '/orders/ROUND' .. n .. '/pay')\nend\n", true},
	{"All requests have one key: one that finds it locked is refused, one that repeats an answered delivery gets the response", "wrk.method = 'POST'\nwrk.path = '/orders/one/pay'\n", false},
}

// httpSample is what one slice of load did, by request.
type httpSample struct {
	perSecond, refused float64
	cpu, mastersCPU    float64 // in µs
	commands           float64 // for each master
	p50, p99           string
}

const connections = 32

func runHTTP(quick bool, dir string) error {
	rounds, length := 5, 3*time.Second
	if quick {
		rounds, length = 1, time.Second
	}
	tmp, err := os.MkdirTemp("", "bench-http-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary := filepath.Join(tmp, "caddy")
	build := exec.Command("go", "build", "-o", binary, "./barelock")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build of Caddy: %w", err)
	}
	backend, stop, err := startBackend()
	if err != nil {
		return err
	}
	defer stop()
	list := proxies()
	for _, p := range list {
		if err := p.start(tmp, binary, backend); err != nil {
			return err
		}
		defer p.stop()
	}

	var b bytes.Buffer
	fmt.Fprintf(&b, "\nWritten by `make bench-http`: `wrk` with %d connections, %d rounds of %v for each server.\n", connections, rounds, length)
	for _, load := range httpLoads {
		samples := make([][]httpSample, len(list))
		order := make([]int, len(list))
		for k := range order {
			order[k] = k
		}
		for round := range rounds {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, load.about)
			script := filepath.Join(tmp, "load.lua")
			if err := os.WriteFile(script, bytes.ReplaceAll([]byte(load.script), []byte("ROUND"), fmt.Append(nil, round, "-")), 0o644); err != nil {
				return err
			}
			for _, k := range order {
				s, err := list[k].measure(script, length)
				if err != nil {
					return fmt.Errorf("%s: %w", list[k].name, err)
				}
				samples[k] = append(samples[k], s)
			}
			slices.Reverse(order)
		}
		load.write(&b, list, samples)
	}
	return writeResults(dir, "", b.String())
}

func startBackend() (addr string, stop func(), err error) {
	if addr, err = freeAddr(); err != nil {
		return "", nil, err
	}
	p, err := startProcess(backendChild, []string{addr})
	if err != nil {
		return "", nil, err
	}
	startedServers.Store(p.cmd.Process, nil)
	stop = func() {
		startedServers.Delete(p.cmd.Process)
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	if err = answers("http://" + addr); err != nil {
		stop()
	}
	return addr, stop, err
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in `)
	wrkRefused  = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkRate     = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	wrkP50      = regexp.MustCompile(`(?m)^ +50% +(\S+)`)
	wrkP99      = regexp.MustCompile(`(?m)^ +99% +(\S+)`)
)

func (p *proxy) measure(script string, length time.Duration) (httpSample, error) {
	own, masters, err := p.used()
	if err != nil {
		return httpSample{}, err
	}
	out, err := exec.Command("wrk", "-t1", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", int(length.Seconds())),
		"--latency", "-s", script, "http://"+p.addr).CombinedOutput()
	if err != nil {
		return httpSample{}, fmt.Errorf("%w\n%s", err, out)
	}
	ownAfter, mastersAfter, err := p.used()
	text := func(r *regexp.Regexp) string {
		if m := r.FindSubmatch(out); m != nil {
			return string(m[1])
		}
		return "0"
	}
	number := func(r *regexp.Regexp) float64 {
		n, parseErr := strconv.ParseFloat(text(r), 64)
		err = errors.Join(err, parseErr)
		return n
	}
	requests := number(wrkRequests)
	if requests == 0 {
		return httpSample{}, fmt.Errorf("wrk says\n%s", out)
	}
	return httpSample{
		perSecond: number(wrkRate), refused: number(wrkRefused) / requests,
		cpu: micros(ownAfter-own) / requests, mastersCPU: micros(mastersAfter.cpu-masters.cpu) / requests,
		commands: float64(mastersAfter.commands-masters.commands) / requests / float64(max(1, p.masters)),
		p50:      text(wrkP50), p99: text(wrkP99),
	}, err
}

func (l httpLoad) write(b *bytes.Buffer, list []*proxy, samples [][]httpSample) {
	fmt.Fprintf(b, "\n%s:\n\n", l.about)
	b.WriteString("| | CPU ÷ without lock | requests/s ÷ without lock | requests/s | CPU µs server | CPU µs masters | commands per master | p50 | p99 | refused |\n")
	b.WriteString("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	of := make(map[string][]httpSample)
	for i, p := range list {
		of[p.name] = samples[i]
	}
	cpu := func(s httpSample) float64 { return s.cpu + s.mastersCPU }
	for _, p := range list {
		mine, bare := of[p.name], of[caddyAlone]
		last := mine[len(mine)-1]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %.0f %% |\n", p.name,
			exact(ratioOf(mine, bare, cpu)), exact(ratioOf(mine, bare, func(s httpSample) float64 { return s.perSecond })),
			whole(medianOf(mine, func(s httpSample) float64 { return s.perSecond })),
			whole(medianOf(mine, func(s httpSample) float64 { return s.cpu })), whole(medianOf(mine, func(s httpSample) float64 { return s.mastersCPU })),
			exact(medianOf(mine, func(s httpSample) float64 { return s.commands })), last.p50, last.p99,
			100*medianOf(mine, func(s httpSample) float64 { return s.refused }))
	}
	if !l.free {
		return // then it isn't a lock that a request costs
	}
	var added []float64
	for i, alone := range of[caddyAlone] {
		added = append(added, (cpu(of[caddyLocks][i])-cpu(alone))/(cpu(of[caddyBare][i])-cpu(alone)))
	}
	fmt.Fprintf(b, "\nredlock adds %s times as much CPU to a request as a bare lock on three masters does (goal: at most 1.1).\n", exact(median(added)))
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

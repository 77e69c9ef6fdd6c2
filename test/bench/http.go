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
	part := bytes.Repeat([]byte("paid\n"), 32<<10/5)
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		parts, _ := strconv.Atoi(r.URL.Query().Get("parts"))
		for range parts {
			_, _ = w.Write(part)
		}
		_, _ = w.Write(part[:5])
	}))
}

// httpLoad is what wrk sends.
type httpLoad struct {
	name, script string
}

const (
	ownKeys    = "own keys" // no request meets another one
	sameKey    = "one key"
	repeats    = "replay" // all but the first requests with one of 1,000 IDs
	longBody   = "1 MiB"
	longerBody = "10 MiB"
)

var httpLoads = []httpLoad{
	{ownKeys, ownRequest("n", "")},
	{sameKey, "wrk.method = 'POST'\nwrk.path = '/orders/one/pay'\n"},
	{repeats, ownRequest("n % 1000", "")},
	{longBody, ownRequest("n", "?parts=32")},
	{longerBody, ownRequest("n", "?parts=320")},
}

// ownRequest returns a script whose requests have the IDs that an expression makes of their number.
func ownRequest(id, query string) (script string) {
	return "local n = 0\nwrk.method = 'POST'\nfunction request()\n\tn = n + 1\n\tlocal id = 'ROUND' .. " + id + "\n\twrk.headers['Idempotency-Key'] = id\n\treturn wrk.format(nil, '/orders/' .. id .. '/pay" + query + "')\nend\n"
}

// httpSample is what one slice of load did, by request.
type httpSample struct {
	perSecond, refused float64
	cpu, mastersCPU    float64 // in µs
	commands           float64
	p50, p99           float64 // in µs
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

	results := make(map[string][]httpSample) // by load and proxy
	var rows []row
	for _, load := range httpLoads {
		samples := make([][]httpSample, len(list))
		order := make([]int, len(list))
		for k := range order {
			order[k] = k
		}
		for round := range rounds {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, rounds, load.name)
			script := filepath.Join(tmp, "load.lua")
			if err := os.WriteFile(script, bytes.ReplaceAll([]byte(load.script), []byte("ROUND"), fmt.Append(nil, round, "-")), 0o644); err != nil {
				return err
			}
			for _, k := range order {
				if !slices.Contains(list[k].loads, load.name) {
					continue
				}
				s, err := list[k].measure(script, length)
				if err != nil {
					return fmt.Errorf("%s: %w", list[k].name, err)
				}
				samples[k] = append(samples[k], s)
			}
			slices.Reverse(order)
		}
		for i, p := range list {
			if samples[i] == nil {
				continue
			}
			results[load.name+p.name] = samples[i]
			rows = append(rows, httpRow(load.name, p, samples[i]))
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "\nWritten by `make bench-http`: Caddy under `wrk` with %d connections, %s of %v for each server. Each request has a key of its own, but those that are replayed. \"÷\" divides by Caddy without a lock under the same load, with the lowest and highest round in brackets.\n", connections, count(rounds, "round"), length)
	writeHTTP(&b, list, results)
	return errors.Join(writeResults(dir, "", b.String()), writeFigures(dir, rows, func(group string) bool { return group != groupHTTP }))
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
	took := func(r *regexp.Regexp) float64 {
		d, parseErr := time.ParseDuration(text(r))
		err = errors.Join(err, parseErr)
		return micros(d)
	}
	requests := number(wrkRequests)
	if requests == 0 {
		return httpSample{}, fmt.Errorf("wrk says\n%s", out)
	}
	return httpSample{
		perSecond: number(wrkRate), refused: number(wrkRefused) / requests,
		cpu: micros(ownAfter-own) / requests, mastersCPU: micros(mastersAfter.cpu-masters.cpu) / requests,
		commands: float64(mastersAfter.commands-masters.commands) / requests,
		p50:      took(wrkP50), p99: took(wrkP99),
	}, err
}

var httpColumns = []string{"p99 µs", "refused"}

func httpRow(load string, p *proxy, samples []httpSample) row {
	one := newRow(groupHTTP, load, p.name)
	one.set("operations per second", medianOf(samples, perSecond))
	one.set(cpuColumn, medianOf(samples, httpSample.allCPU))
	one.set(mastersColumn, medianOf(samples, func(s httpSample) float64 { return s.mastersCPU }))
	one.set(commandsColumn, medianOf(samples, func(s httpSample) float64 { return s.commands }))
	one.set(p50Column, medianOf(samples, func(s httpSample) float64 { return s.p50 }))
	one.set("p99 µs", medianOf(samples, func(s httpSample) float64 { return s.p99 }))
	one.set("refused", medianOf(samples, func(s httpSample) float64 { return s.refused }))
	return one
}

func (s httpSample) allCPU() float64 { return s.cpu + s.mastersCPU }

func perSecond(s httpSample) float64 { return s.perSecond }

func writeHTTP(b *bytes.Buffer, list []*proxy, results map[string][]httpSample) {
	b.WriteString("\n| | CPU ÷ | requests/s ÷ | commands |\n| --- | ---: | ---: | ---: |\n")
	for _, load := range []string{ownKeys, repeats, longBody, longerBody} {
		alone := results[load+caddyAlone]
		for _, p := range list {
			mine := results[load+p.name]
			if mine == nil {
				continue
			}
			name := p.name
			if load != ownKeys {
				name += ": " + load
			}
			cpu := ratios(mine, alone, httpSample.allCPU)
			fmt.Fprintf(b, "| %s | %s (%s–%s) | %s | %s |\n", name, exact(median(cpu)), exact(slices.Min(cpu)), exact(slices.Max(cpu)),
				exact(median(ratios(mine, alone, perSecond))), exact(medianOf(mine, func(s httpSample) float64 { return s.commands })))
		}
	}
	var added []float64
	for i, alone := range results[ownKeys+caddyAlone] {
		added = append(added, (results[ownKeys+caddyLocks][i].allCPU()-alone.allCPU())/(results[ownKeys+caddyBare][i].allCPU()-alone.allCPU()))
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

// ratios are those of the rounds.
func ratios(mine, theirs []httpSample, v func(httpSample) float64) (list []float64) {
	for i := range mine {
		list = append(list, v(mine[i])/v(theirs[i]))
	}
	return list
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The third benchmark: what it costs to remember answers, and what it costs a rule that doesn't.

// step is a request's way through a Caddy.
type step struct {
	*proxy
	script  string
	results int // bytes that an answer takes on a master

	samples []stepSample
}

type stepSample struct {
	httpSample
	commands, in, out float64 // of all masters
}

const (
	stepFormer = "lock alone, former commit"
	stepLock   = "lock alone"
	stepDedupe = "lock and `dedupe`"
	stepStored = "lock and `dedupe`, answer stored"
	stepReplay = "replay"
)

const (
	ownOrder   = "local n = 0\nwrk.method = 'POST'\nfunction request()\n\tn = n + 1\n\treturn wrk.format(nil, '/orders/ROUND' .. n .. '/pay')\nend\n"
	oneOrder   = "wrk.method = 'POST'\nwrk.path = '/orders/replayed/pay'\n"
	rememberIt = "redlock /orders/*/pay order:{path.1} {\n\t\tdedupe {path.1}\n\t\tremember 2m\n\t\tscope off\n\t}"
)

func steps(former bool) []*step {
	with := func(name, lock, script string) *step {
		return &step{proxy: &proxy{name: name, masters: 3, config: caddyWith(threeMasters, lock), command: runCaddyfile}, script: script}
	}
	list := []*step{
		with(stepLock, orderRule, ownOrder),
		with(stepDedupe, orderRule+" {\n\t\tdedupe {path.1}\n\t}", ownOrder),
		with(stepStored, rememberIt, ownOrder),
		with(stepReplay, rememberIt, oneOrder),
	}
	if former {
		list = append([]*step{with(stepFormer, orderRule, ownOrder)}, list...)
	}
	return list
}

// runRemember measures all steps in turn. former is a checkout of a former commit; it may be empty.
func runRemember(quick bool, former, dir string) error {
	rounds, length := 7, 3*time.Second
	if quick {
		rounds, length = 1, time.Second
	}
	tmp, err := os.MkdirTemp("", "bench-remember-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary, formerBinary := filepath.Join(tmp, "caddy"), filepath.Join(tmp, "former")
	if err := buildCaddy(binary, true); err != nil {
		return err
	}
	if former != "" {
		build := exec.Command("go", "build", "-o", formerBinary, "./barelock")
		build.Dir, build.Stderr = filepath.Join(former, "bench"), os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build of the former Caddy: %w", err)
		}
	}
	backend, stop, err := startBackend()
	if err != nil {
		return err
	}
	defer stop()
	list := steps(former != "")
	for _, s := range list {
		caddy := binary
		if s.name == stepFormer {
			caddy = formerBinary
		}
		if err := s.start(tmp, caddy, backend); err != nil {
			return err
		}
		defer s.stop()
	}
	order := slices.Clone(list)
	for round := range rounds {
		for _, s := range order {
			if err := s.run(tmp, round, length); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		slices.Reverse(order)
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
	}
	return os.WriteFile(filepath.Join(dir, "REMEMBER.md"), table(list, rounds, length), 0o644)
}

func (s *step) run(tmp string, round int, length time.Duration) error {
	script := filepath.Join(tmp, "load.lua")
	if err := os.WriteFile(script, []byte(strings.ReplaceAll(s.script, "ROUND", fmt.Sprint(round, "-"))), 0o644); err != nil {
		return err
	}
	before, err := s.traffic()
	if err != nil {
		return err
	}
	measured, err := s.measure(script, length)
	if err != nil {
		return err
	}
	after, err := s.traffic()
	if err != nil {
		return err
	}
	s.samples = append(s.samples, stepSample{measured, after.commands - before.commands, after.in - before.in, after.out - before.out})
	return s.sizeResult()
}

// traffic is what the masters were sent and have answered so far.
func (s *step) traffic() (sum stepSample, err error) {
	own, err := read(s.servers, kindOf(nameOwn).sends)
	if err != nil {
		return sum, err
	}
	sum.commands = float64(own.commands)
	for _, server := range s.servers {
		info, err := server.info("stats")
		if err != nil {
			return sum, err
		}
		in, errIn := strconv.ParseFloat(info["total_net_input_bytes"], 64)
		out, errOut := strconv.ParseFloat(info["total_net_output_bytes"], 64)
		if err := errors.Join(errIn, errOut); err != nil {
			return sum, err
		}
		sum.in, sum.out = sum.in+in, sum.out+out
	}
	return sum, nil
}

// sizeResult looks up how much memory a stored answer takes on a master.
func (s *step) sizeResult() error {
	ctx := context.Background()
	client := s.servers[0].client
	keys, _, err := client.Scan(ctx, 0, "*:result", 10000).Result()
	if err != nil || len(keys) == 0 {
		return err
	}
	size, err := client.MemoryUsage(ctx, keys[0]).Result()
	s.results = int(size)
	return err
}

func table(list []*step, rounds int, length time.Duration) []byte {
	var b bytes.Buffer
	b.WriteString("# Results: remembered answers\n\nWritten by `make bench-remember`.\n[README.md](README.md) explains what the figures mean.\n")
	fmt.Fprintf(&b, "`wrk` uses %d connections and `POST`s to `/orders/N/pay`, for replays always to the same one; each step gets %d rounds of %v.\n", connections, rounds, length)
	b.WriteString("Commands and bytes are of one request, for each of the three masters.\n\n")
	b.WriteString("| | CPU ÷ lock alone | requests/s ÷ lock alone | CPU µs server | CPU µs masters | commands | bytes to a master | bytes from it | bytes of an answer on a master |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	var lock []httpSample
	of := make([][]httpSample, len(list))
	for i, s := range list {
		for _, sample := range s.samples {
			of[i] = append(of[i], sample.httpSample)
		}
		if s.name == stepLock {
			lock = of[i]
		}
	}
	for i, s := range list {
		perMaster := func(v func(stepSample) float64) string {
			var values []float64
			for _, sample := range s.samples {
				values = append(values, v(sample)/sample.requests/float64(s.masters))
			}
			return times(median(values))
		}
		size := "–"
		if s.results > 0 {
			size = strconv.Itoa(s.results)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", s.name,
			times(ratioOf(of[i], lock, httpSample.cpuPerRequest)), times(ratioOf(of[i], lock, func(h httpSample) float64 { return h.perSecond })),
			whole(medianOf(of[i], func(h httpSample) float64 { return micros(h.cpu) / h.requests })),
			whole(medianOf(of[i], func(h httpSample) float64 { return micros(h.mastersCPU) / h.requests })),
			perMaster(func(v stepSample) float64 { return v.commands }), perMaster(func(v stepSample) float64 { return v.in }), perMaster(func(v stepSample) float64 { return v.out }), size)
	}
	return b.Bytes()
}

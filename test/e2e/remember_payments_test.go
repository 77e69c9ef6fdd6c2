package e2e

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const idempotent = "idempotency_key required\nscope {header.Authorization}\n"

// TestRememberedPayments: each payment is made once, however often its clients repeat it, at once and late, through two Caddys of which each may
// be killed or reloaded, and a net/http server, on three masters of which each may be killed, hang, or do so again and again. All clients get
// the response of that one run. It is made again only if its response could not be stored, which the log of the host that served it must
// show for each such run.
func TestRememberedPayments(t *testing.T) {
	needTime(t)
	t.Parallel()
	payments, rounds := 500, 2
	if text := os.Getenv("STORM_TIME"); text != "" { // at a thousand payments a minute
		storm, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		payments, rounds = int(1000*storm.Minutes()), int(4*storm.Minutes())
	}
	servers := redistest.Start(t, 3, "--appendonly", "yes", "--appendfsync", "always")
	p := newPaying(t, servers, idempotent+"remember 1h", "")
	p.addNetHTTP()
	var faults, ofMasters []func()
	for range rounds {
		faults = append(faults, func() { p.kill(0) }, func() { p.kill(1) }, func() { p.reload(0) }, func() { p.reload(1) })
		for _, i := range rand.Perm(len(servers)) {
			ofMasters = append(ofMasters, servers[i].Kill, servers[i].Restart, servers[i].Pause, servers[i].Resume, func() { flap(servers[i]) })
		}
	}
	rand.Shuffle(len(faults), func(i, k int) { faults[i], faults[k] = faults[k], faults[i] })
	p.payAll(payments, interleaved(faults, ofMasters)...)

	replayed := p.payAllAgain(payments)
	p.requireOnce(payments)
	if replayed < payments-payments/20 { // one whose response was not stored runs again, which is explained above
		t.Errorf("of %d payments that are made, %d were answered as replayed", payments, replayed)
	}
	requireLifetimes(t, servers)
}

// TestPaymentsThatAreForgotten: the same check finds that rules which only lock make payments more than once.
func TestPaymentsThatAreForgotten(t *testing.T) {
	needTime(t)
	t.Parallel()
	p := newPaying(t, nil, "dedupe {header.Authorization}-{header.Idempotency-Key}", "{header.Idempotency-Key}")
	p.payAll(20)
	if wrong, _ := p.bank.judge(p.got, p.explainer()); len(wrong) == 0 {
		t.Error("nothing is wrong without remember")
	}
}

// flap has a master hang and answer by turns.
func flap(s *redistest.Server) {
	for range 10 {
		s.Pause()
		time.Sleep(rand.N(100 * time.Millisecond))
		s.Resume()
		time.Sleep(rand.N(100 * time.Millisecond))
	}
}

// interleaved returns the steps of both in a random order that keeps the order of each.
func interleaved(a, b []func()) (all []func()) {
	for len(a)+len(b) > 0 {
		from := &a
		if rand.IntN(len(a)+len(b)) >= len(a) {
			from = &b
		}
		all, *from = append(all, (*from)[0]), (*from)[1:]
	}
	return all
}

// payAllAgain asks for each payment once more, and returns how many of the responses were marked as replayed.
func (p *paying) payAllAgain(payments int) (replayed int) {
	next := make(chan *payment, payments)
	for i := range payments {
		next <- paymentNumber(i)
	}
	close(next)
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for m := range next {
				a := p.pay(m)
				mu.Lock()
				if a.header.Get("Idempotency-Replayed") == "true" {
					replayed++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return replayed
}

// requireOnce requires that each payment was made once, and reports why others were made again.
func (p *paying) requireOnce(payments int) {
	p.t.Helper()
	if len(p.got) != payments {
		p.t.Errorf("%d of %d payments have a response", len(p.got), payments)
	}
	wrong, again := p.bank.judge(p.got, p.explainer())
	for _, text := range wrong {
		p.t.Error(text)
	}
	responses := 0
	for _, of := range p.got {
		responses += len(of)
	}
	p.t.Logf("%d payments, %d responses to %d tries, %d Caddys killed; %d runs were made again", payments, responses, p.tries.Load(), len(p.started)-p.hosts, len(again))
	for run, why := range again {
		p.t.Logf("try %s, by %s, was made again: %s", run.try, run.caddy, why)
	}
	if len(wrong) == 0 {
		return
	}
	for _, b := range p.started {
		for line := range strings.Lines(b.log.String()) {
			if strings.Contains(line, `"logger":"redlock"`) || strings.Contains(line, `"http.handlers.redlock"`) {
				p.t.Log(b.name, line)
			}
		}
	}
}

// explainer returns a function that says why the response of a run was not remembered when the payment was made again, from the log of the
// Caddy that had served the first. Each line that is about no certain request explains one run.
func (p *paying) explainer() func(run *bankRun, answered bool) string {
	ended, unstored, killed := make(map[string]map[string]ending), make(map[string][]time.Time), make(map[string]bool)
	for _, b := range p.started {
		log := b.log.String()
		ended[b.name], unstored[b.name], killed[b.name] = endings(log), unstoredAt(log), b.killed
	}
	return func(run *bankRun, answered bool) string {
		end, done := ended[run.caddy][run.try]
		if !done && killed[run.caddy] && !answered {
			return "its Caddy was killed before it had ended the request"
		}
		if end.outcome == "lost" {
			return "it had lost its lock"
		}
		for i, at := range unstored[run.caddy] {
			if at.After(run.begun) && !at.After(end.at) {
				unstored[run.caddy] = slices.Delete(unstored[run.caddy], i, i+1)
				return "its response was not stored by a quorum"
			}
		}
		return ""
	}
}

// unstoredAt returns when a Caddy has logged that it could not store a response.
func unstoredAt(log string) (times []time.Time) {
	for line := range strings.Lines(log) {
		var entry struct{ TS float64 }
		if strings.Contains(line, `"response is not remembered`) && json.Unmarshal([]byte(line), &entry) == nil {
			times = append(times, logged(entry.TS))
		}
	}
	return times
}

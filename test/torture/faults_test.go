package torture

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// remembered is how long masters remember a set after a process has registered it last.
const remembered = ttl + 5*time.Second

// round causes faults, and mends them. Rounds of two kinds alternate: any number of faults of the network and of servers, in which no
// server forgets anything; and, beside a process with other masters, what happens to a worker, and then the loss of one server's
// memory or clock, before and after which everything recovers.
func (r *torture) round(round int) {
	if round%2 == 0 {
		defer r.strikeClients()()
		for range 1 + r.random.IntN(3) {
			r.trouble()
		}
		return
	}
	// It is not there while masters are in trouble: where it hears nothing of the workers for longer than the masters remember
	// their set, it may lock.
	r.startOther()
	r.strikeWorker()
	// Masters tell of the eldest worker alone. If that is gone, the other process must hear of the next one before it hears of none: it
	// forgets the eldest when the masters do, and may lock then if the one that they share is away (docs/DESIGN.md).
	time.Sleep(remembered)
	r.recover() // all locks are on all masters again
	r.loss()
	r.recover()
	r.endOther()
}

// pick chooses one of the faults and logs it.
func pick[F any](r *torture, faults []fault[F]) F {
	f := faults[r.random.IntN(len(faults))]
	for r.skip != nil && r.skip.MatchString(f.name) {
		f = faults[r.random.IntN(len(faults))]
	}
	r.faults[f.name]++
	r.log("%s", f.name)
	return f.start
}

type fault[F any] struct {
	name  string
	start F
}

// trouble causes a fault that may strike any number of masters at once, and must cost nothing but availability. It strikes one,
// two or all of them for up to two seconds.
func (r *torture) trouble() {
	start := pick(r, []fault[func(m int) (mend func())]{
		{"SCRIPT FLUSH", func(m int) func() {
			r.ask(m, func(c *redis.Client) error { return c.ScriptFlush(r.t.Context()).Err() })
			return nil
		}},
		{"CLIENT KILL of all connections", func(m int) func() { r.command(m, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"); return nil }},
		{"CLIENT KILL of subscriptions", func(m int) func() { r.command(m, "CLIENT", "KILL", "TYPE", "pubsub"); return nil }},
		{"CLIENT PAUSE", func(m int) func() { r.command(m, "CLIENT", "PAUSE", fmt.Sprint(r.upTo(2000))); return nil }},
		{"CLIENT PAUSE of writes", func(m int) func() { r.command(m, "CLIENT", "PAUSE", fmt.Sprint(r.upTo(2000)), "WRITE"); return nil }},
		{"SIGSTOP of a server", func(m int) func() {
			s := r.servers[r.behind[m]]
			s.Pause()
			return s.Resume
		}},
		{"SIGSTOP, and the clients' connections break", func(m int) func() {
			s := r.servers[r.behind[m]]
			s.Pause()
			r.sleep(300)
			r.masters[m].Cut()
			return s.Resume
		}},
		{"maxmemory is reached", func(m int) func() {
			r.command(m, "CONFIG", "SET", "maxmemory", "1")
			return func() { r.command(m, "CONFIG", "SET", "maxmemory", "0") }
		}},
		{"connections break", func(m int) func() { r.masters[m].Cut(); return nil }},
		{"the network is slow", func(m int) func() {
			r.masters[m].Set(redistest.Weather{Delay: time.Duration(r.upTo(300)) * time.Millisecond})
			return func() { r.masters[m].Set(redistest.Weather{}) }
		}},
		{"requests are kept back", func(m int) func() {
			r.masters[m].Set(redistest.Weather{Requests: true})
			return func() { r.masters[m].Set(redistest.Weather{}) }
		}},
		{"replies are kept back", func(m int) func() {
			r.masters[m].Set(redistest.Weather{Replies: true})
			return func() { r.masters[m].Set(redistest.Weather{}) }
		}},
		{"replies are lost", func(m int) func() {
			r.masters[m].Set(redistest.Weather{Replies: true})
			return func() { r.masters[m].Cut(); r.masters[m].Set(redistest.Weather{}) }
		}},
		{"requests come after their connection has broken", func(m int) func() {
			r.masters[m].Set(redistest.Weather{Requests: true})
			r.sleep(300)
			r.masters[m].LoseClients()
			return func() { r.masters[m].Set(redistest.Weather{}) }
		}},
	})
	var mend []func()
	for _, m := range r.some() {
		if f := start(m); f != nil {
			mend = append(mend, f)
		}
	}
	r.sleep(2000)
	for _, f := range mend {
		f()
		r.sleep(50)
	}
}

// strikeClients strikes the agent or one of its clients until mend is called.
func (r *torture) strikeClients() (mend func()) {
	if len(r.clients) == 0 {
		return func() {}
	}
	place := r.random.IntN(len(r.clients))
	c, a := r.clients[place], r.agent
	return pick(r, []fault[func() func()]{
		{"a client is killed", func() func() {
			c.kill()
			r.clients[place] = r.startClient(c.kind)
			return func() {}
		}},
		{"a client is stopped", func() func() { return stop(c.cmd) }},
		{"the agent is killed", func() func() { a.kill(); r.startAgent(); return func() {} }},
		{"the agent is stopped", func() func() { return stop(a.cmd) }},
		{"the agent ends", func() func() { // its clients don't
			_ = a.cmd.Process.Signal(syscall.SIGTERM)
			r.sleep(1000)
			a.kill()
			r.startAgent()
			return func() {}
		}},
		{"the agent is replaced", func() func() { r.startAgent("--replace"); return func() {} }},
	})()
}

func stop(cmd *exec.Cmd) (resume func()) {
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	return func() { _ = cmd.Process.Signal(syscall.SIGCONT) }
}

// loss takes the memory or the clock of one master away. A majority may only lose its memory by a restart, which the restart
// guard notices.
func (r *torture) loss() {
	m := r.random.IntN(len(r.masters))
	// What a process with other masters hears over the first one must be there: a clock that steps has it forgotten, a server that was
	// spare hears of it late, and one that is away, or has just restarted, says nothing. In these cases both may lock for a while
	// (docs/DESIGN.md), on a busy machine at the latest.
	own := 1 + r.random.IntN(len(r.masters)-1)
	clock := r.clocks[r.behind[own]]
	restart := func(m int) {
		if m == 0 {
			r.endOther()
		}
		s := r.servers[r.behind[m]]
		s.Kill()
		r.sleep(1000)
		s.Restart()
	}
	step := []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second, 20 * time.Second}[r.random.IntN(4)]
	pick(r, []fault[func()]{
		{"a master restarts", func() { restart(m) }},
		{fmt.Sprintf("a master restarts, and its clock steps %v forward and back", step), func() {
			restart(own)
			clock.Set(step, 0)
			r.sleep(2000)
			clock.Set(0, 0)
		}},
		{"all masters restart", func() {
			r.endOther()
			for _, i := range r.behind {
				r.servers[i].Kill()
			}
			r.sleep(1000)
			for _, i := range r.behind {
				r.servers[i].Restart()
			}
		}},
		{fmt.Sprintf("a clock steps %v forward, and back", step), func() {
			clock.Set(step, 0)
			r.sleep(2000)
			r.recover()
			clock.Set(0, 0)
		}},
		{fmt.Sprintf("a clock steps %v back, and forward", step), func() {
			clock.Set(-step, 0)
			r.sleep(2000)
			r.recover()
			clock.Set(0, 0)
		}},
		{"another server is behind an address", func() {
			r.masters[own].MoveTo(r.servers[r.spare])
			r.behind[own], r.spare = r.spare, r.behind[own]
		}},
		{"two masters swap addresses", func() {
			n := (m + 1) % len(r.masters)
			if m == 0 || n == 0 {
				r.endOther()
			}
			r.behind[m], r.behind[n] = r.behind[n], r.behind[m]
			r.masters[m].MoveTo(r.servers[r.behind[m]])
			r.masters[n].MoveTo(r.servers[r.behind[n]])
		}},
		{"a master is away twice", func() {
			before := r.logged("other data")
			for range 2 {
				r.masters[own].Set(redistest.Weather{Away: true})
				r.masters[own].Cut()
				time.Sleep(2500 * time.Millisecond) // the processes register their masters without this one
				for _, w := range r.workers {
					w.awaitTurn()
					w.awaitRenewal()
				}
				r.masters[own].Set(redistest.Weather{})
				time.Sleep(time.Duration(r.upTo(int(remembered)))) // the set without this master may be forgotten, or not
			}
			if n := r.logged("other data") - before; n > 0 {
				r.t.Errorf("a master was away twice, and workers have logged %d times that one has lost its data", n)
			}
		}},
		{"the workers are stopped while a master restarts", func() {
			r.endOther()
			for _, w := range r.workers {
				w.signal(syscall.SIGSTOP)
			}
			restart(m)
			r.sleep(2000)
			for _, w := range r.workers {
				w.signal(syscall.SIGCONT)
			}
		}},
		{"a worker is stopped while a master restarts", func() {
			w := r.workers[r.random.IntN(len(r.workers))]
			w.signal(syscall.SIGSTOP)
			restart(m)
			r.sleep(2000)
			w.signal(syscall.SIGCONT)
		}},
	})()
}

// strikeWorker stops a worker for longer than its leases last, kills it, lets it close, or blocks its log. The first worker never ends,
// because its use of memory is watched for leaks.
func (r *torture) strikeWorker() {
	place := r.random.IntN(len(r.workers))
	w := r.workers[place]
	faults := []fault[func()]{{"nobody reads a worker's log", func() { r.blockLog(w) }}}
	if place == 0 {
		faults = append(faults, fault[func()]{"a worker is stopped", func() { r.stopWorker(w) }})
	} else {
		faults = append(faults, fault[func()]{"a worker is killed", func() {
			w.kill()
			r.startWorker(place)
		}}, fault[func()]{"a worker closes its Locker", func() {
			w.end("close")
			r.startWorker(place)
		}})
	}
	r.log("%s is struck", w.name)
	pick(r, faults)()
	r.workers[place].awaitTurn()
}

// stopWorker stops a worker for longer than its leases last.
func (r *torture) stopWorker(w *process) {
	w.signal(syscall.SIGSTOP)
	time.Sleep(ttl + time.Duration(r.upTo(2000))*time.Millisecond)
	w.signal(syscall.SIGCONT)
}

// blockLog has nobody read a worker's log while its leases end and its masters go and come, which it logs: the worker must go on.
func (r *torture) blockLog(w *process) {
	r.endOther()
	release := w.log.block()
	defer release()
	for range 2 {
		for _, i := range r.behind {
			r.servers[i].Pause()
		}
		time.Sleep(2 * ttl)
		for _, i := range r.behind {
			r.servers[i].Resume()
		}
		w.awaitTurn()
		w.awaitRenewal()
	}
}

// logged returns how many lines of the workers' logs contain a text.
func (r *torture) logged(text string) (n int) {
	for _, w := range r.all {
		log, err := os.ReadFile(w.log.file)
		check(err)
		n += strings.Count(string(log), text)
	}
	return n
}

// some returns one, two or all masters.
func (r *torture) some() []int {
	return r.random.Perm(len(r.masters))[:1+r.random.IntN(len(r.masters))]
}

func (r *torture) upTo(n int) int { return 1 + r.random.IntN(n) }

func (r *torture) sleep(upToMilliseconds int) {
	time.Sleep(time.Duration(r.upTo(upToMilliseconds)) * time.Millisecond)
}

// command sends a command to the server of a master.
func (r *torture) command(m int, args ...string) {
	r.ask(m, func(c *redis.Client) error {
		list := make([]any, len(args))
		for i, a := range args {
			list[i] = a
		}
		return c.Do(r.t.Context(), list...).Err()
	})
}

func (r *torture) ask(m int, f func(*redis.Client) error) {
	if err := f(r.servers[r.behind[m]].Client()); err != nil && !strings.Contains(err.Error(), "paus") {
		r.log("master %d: %v", m, err)
	}
}

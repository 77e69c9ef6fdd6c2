package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// fleet is two processes that lock the same keys all the time, and a witness of what they have.
type fleet struct {
	t     *testing.T
	nodes [2]*node

	mu      sync.Mutex
	holders map[string]*redlock.Lock
	fences  map[string]uint64
	turns   map[*node]int
	errs    []error // of calls that did not get their lock
}

// node is a process, with a Locker until it is deployed anew.
type node struct {
	log    logBook
	locker *redlock.Locker
	end    func() // ends the turns
}

func newFleet(t *testing.T, masters []redlock.Master, opts ...redlock.Option) *fleet {
	t.Helper()
	f := &fleet{t: t, holders: make(map[string]*redlock.Lock), fences: make(map[string]uint64), turns: make(map[*node]int)}
	for i := range f.nodes {
		f.nodes[i] = new(node)
		f.deploy(i, masters, opts...)
	}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			f.undeploy(n.locker, n.end)
		}
	})
	f.goesOn("before")
	return f
}

// deploy gives a process new settings, as a reload of Caddy does: what runs ends before the former Locker closes.
func (f *fleet) deploy(i int, masters []redlock.Master, opts ...redlock.Option) {
	f.t.Helper()
	n := f.nodes[i]
	former, end := n.locker, n.end
	l, err := redlock.New(masters, slices.Concat(simLife, []redlock.Option{redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithRestartGuard(0), n.log.option()}, opts)...)
	if err != nil {
		f.t.Fatal(err)
	}
	n.locker = l
	f.work(n)
	f.undeploy(former, end)
}

func (f *fleet) undeploy(l *redlock.Locker, end func()) {
	if l != nil {
		end()
		mustClose(f.t, l)
	}
}

// work begins the turns of a process.
func (f *fleet) work(n *node) {
	stop := make(chan struct{})
	var working sync.WaitGroup
	n.end = sync.OnceFunc(func() { close(stop); working.Wait() })
	l := n.locker
	for range 2 {
		working.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f.turn(n, l, fmt.Sprint(i%3))
				}
			}
		})
	}
}

// turn takes a lock, and looks that nobody else has it and that its fence is larger than all before.
func (f *fleet) turn(n *node, l *redlock.Locker, key string) {
	lock, err := l.Lock(context.Background(), key, redlock.WithWait(bound))
	if err != nil {
		f.failed(err)
		time.Sleep(5 * time.Millisecond)
		return
	}
	f.mu.Lock()
	f.turns[n]++
	if other := f.holders[key]; other != nil && other.Err() == nil || lock.Fence() <= f.fences[key] {
		f.t.Errorf("two hold %s, or fence %d after %d", key, lock.Fence(), f.fences[key])
	}
	f.holders[key], f.fences[key] = lock, lock.Fence()
	f.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	f.mu.Lock()
	if f.holders[key] == lock {
		delete(f.holders, key)
	}
	f.mu.Unlock()
	if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // which a server that was killed can't confirm
		f.failed(err)
	}
}

func (f *fleet) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// newTurns waits for the turns that have begun: what they lack, the past has done.
func (f *fleet) newTurns() {
	for _, n := range f.nodes {
		n.end()
	}
	f.errors()
	for _, n := range f.nodes {
		f.work(n)
	}
}

// errors gives those since the last time.
func (f *fleet) errors() (errs []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs, f.errs = f.errs, nil
	return errs
}

// goesOn waits until both have had turns, without an error.
func (f *fleet) goesOn(when string) {
	f.t.Helper()
	if errs := f.bothTurn(when); len(errs) > 0 {
		f.t.Errorf("%s: %d errors, such as %v", when, len(errs), errs[0])
	}
}

// bothTurn waits until both have had turns, or one an error, and gives the errors.
func (f *fleet) bothTurn(when string) (errs []error) {
	f.t.Helper()
	f.mu.Lock()
	from := maps.Clone(f.turns)
	f.mu.Unlock()
	eventually(f.t, 2*bound, "locks "+when, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		errs = f.errs
		return len(errs) > 0 || f.turns[f.nodes[0]] > from[f.nodes[0]]+20 && f.turns[f.nodes[1]] > from[f.nodes[1]]+20
	})
	return errs
}

// refused waits until calls have no quorum for other masters, which the log of this process tells.
func (f *fleet) refused(i int, words ...string) {
	f.t.Helper()
	f.nodes[i].log.expect(f.t, append([]string{"level=ERROR", "other masters"}, words...)...)
	eventually(f.t, 3*bound, "calls are refused", func() bool { // those that wait give up after bound
		errs := f.errors()
		for _, err := range errs {
			if !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, context.DeadlineExceeded) { // of who waited already
				f.t.Errorf("refused with %v", err)
			}
		}
		return len(errs) > 0
	})
}

const stepDone = "the next step of a change can be taken"

// TestChangeOfMasters exchanges one server for another as docs/operations.md tells: one is added everywhere, then one taken
// away everywhere.
func TestChangeOfMasters(t *testing.T) {
	simnet.Run(t, 4, func(t *testing.T, net *simnet.Net) {
		f := newFleet(t, net.Pick(0, 1, 2))
		for step, servers := range [][]int{{0, 1, 2, 3}, {0, 1, 3}} {
			for i, n := range f.nodes {
				f.deploy(i, net.Pick(servers...))
				f.goesOn(fmt.Sprintf("in step %d, process %d", step, i))
				if early := n.log.lines(stepDone); len(early) > step {
					t.Errorf("step %d is told to be done before the last process has taken it: %q", step, early)
				}
			}
			for _, n := range f.nodes {
				eventually(t, bound, "the step is done", func() bool { return len(n.log.lines(stepDone)) > step })
			}
			f.goesOn("after a step")
		}
		f.requireOrder()
	})
}

// TestTwoStepsAtOnce takes a server away in a process while another lacks the one that was added; and then in all, without
// waiting: that is noticed, and nobody locks who must not, until the first set is forgotten.
func TestTwoStepsAtOnce(t *testing.T) {
	simnet.Run(t, 4, func(t *testing.T, net *simnet.Net) {
		f := newFleet(t, net.Pick(0, 1, 2))
		f.deploy(0, net.Pick(0, 1, 2, 3))
		f.goesOn("after the first step")
		f.deploy(0, net.Pick(0, 1, 3))
		f.refused(0, "sim://2", "sim://3")
		f.nodes[1].log.expect(t, "level=ERROR", "other masters", "sim://3")
		f.deploy(1, net.Pick(0, 1, 2, 3))
		f.refused(0)
		eventually(t, bound, "the first set is forgotten", func() bool {
			f.errors()
			return len(f.bothTurn("or is refused")) == 0
		})
		f.goesOn("when the first set is forgotten")
	})
}

// TestChangeOfMaxTTL raises it and lowers it again: the guard is changed first, and last.
func TestChangeOfMaxTTL(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const longer, guard = 2 * time.Second, 3 * time.Second
		f := newFleet(t, net.Masters(), redlock.WithRestartGuard(2*time.Second))
		for step, opts := range [][]redlock.Option{
			{redlock.WithRestartGuard(guard)},
			{redlock.WithRestartGuard(guard), redlock.WithMaxTTL(longer)},
			{redlock.WithRestartGuard(guard)},
			{redlock.WithRestartGuard(2 * time.Second)},
		} {
			if step == 3 { // no lock of the longer TTL is left, nor known
				time.Sleep(longer + 6*time.Second)
			}
			for i := range f.nodes {
				f.deploy(i, net.Masters(), opts...)
				f.goesOn(fmt.Sprintf("in step %d, process %d", step, i))
			}
		}
		f.requireOrder()
		f.deploy(0, net.Masters(), redlock.WithMaxTTL(longer)) // at once
		for _, n := range f.nodes {
			n.log.expect(t, "level=ERROR", "longer max ttl")
		}
	})
}

// requireOrder fails the test if a process has told of others that it must not lock beside.
func (f *fleet) requireOrder() {
	f.t.Helper()
	for _, n := range f.nodes {
		if lines := n.log.lines("level=ERROR", "another process"); len(lines) > 0 {
			f.t.Errorf("what is done in order is told to be wrong: %q", lines)
		}
	}
}

// TestServerReplacedUnderItsName puts an empty server in the place of each of two, one after the other; and then two at once.
func TestServerReplacedUnderItsName(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		f := newFleet(t, net.Masters(), redlock.WithRestartGuard(2*time.Second))
		lines := func(n *node, server int, words ...string) int {
			return len(n.log.lines(append(words, net.Addresses[server].String())...))
		}
		// replace returns what waits until all have noticed the new servers, and count their votes.
		replace := func(which ...int) (noticed func()) {
			var happened []func() bool
			for _, n := range f.nodes {
				for _, server := range which {
					noticed, voted := lines(n, server, "master unavailable", "just started"), lines(n, server, "master available again")
					happened = append(happened, func() bool {
						return lines(n, server, "master unavailable", "just started") > noticed && lines(n, server, "master available again") > voted
					})
				}
			}
			for _, server := range which {
				net.Servers[server].Kill()
			}
			for _, server := range which {
				net.Servers[server].Restart()
			}
			return func() {
				t.Helper()
				for _, one := range happened {
					eventually(t, bound, "the new servers are noticed, and vote", one)
				}
			}
		}
		for server := range 2 {
			noticed := replace(server)
			f.goesOn("with one server replaced")
			noticed()
			f.goesOn(fmt.Sprintf("after server %d", server))
		}
		f.requireOrder()
		replace(0, 1)()
		f.newTurns()
		f.goesOn("after both")
	})
}

// TestChangeOfPrefix stops all processes, waits for the max TTL, and starts them anew: fences grow.
func TestChangeOfPrefix(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		f := newFleet(t, net.Masters())
		for _, n := range f.nodes {
			f.undeploy(n.locker, n.end)
			n.locker = nil
		}
		time.Sleep(time.Second)
		for i := range f.nodes {
			f.deploy(i, net.Masters(), redlock.WithPrefix("shop"))
		}
		f.goesOn("with the other prefix")
	})
}

package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// fleet is two processes that lock the same keys all the time, and a witness of what they have.
type fleet struct {
	t       *testing.T
	nodes   [2]*node
	stop    context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	holders map[string]*redlock.Lock
	fences  map[string]uint64
	turns   map[*node]int
	errs    []error // of calls that did not get their lock
}

// node is a process, with a Locker until it is deployed anew.
type node struct {
	log logBook

	mu     sync.RWMutex // held for reading by those that use the Locker
	locker *redlock.Locker
}

func newFleet(t *testing.T, urls []string, opts ...redlock.Option) *fleet {
	t.Helper()
	f := &fleet{t: t, holders: make(map[string]*redlock.Lock), fences: make(map[string]uint64), turns: make(map[*node]int)}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	for i := range f.nodes {
		f.nodes[i] = &node{}
		f.deploy(i, urls, opts...)
		for range 2 {
			f.working.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					f.turn(f.nodes[i], fmt.Sprint(n%3))
				}
			})
		}
	}
	t.Cleanup(func() {
		f.stop()
		f.working.Wait()
		for _, n := range f.nodes {
			_ = n.locker.Close()
		}
	})
	return f
}

// deploy gives a process new settings, as a reload of Caddy does: what runs ends before the former Locker closes.
func (f *fleet) deploy(i int, urls []string, opts ...redlock.Option) {
	f.t.Helper()
	n := f.nodes[i]
	l, err := redlock.Open(urls, append([]redlock.Option{redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second / 2),
		redlock.WithRestartGuard(0), n.log.option()}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	n.mu.Lock()
	former := n.locker
	n.locker = l
	n.mu.Unlock()
	if former != nil {
		if err := former.Close(); err != nil {
			f.t.Error(err)
		}
	}
}

// turn takes a lock, and looks that nobody else has it and that its fence is larger than all before.
func (f *fleet) turn(n *node, key string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.locker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	lock, err := n.locker.Lock(ctx, key)
	if err != nil {
		f.mu.Lock()
		f.errs = append(f.errs, err)
		f.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		return
	}
	f.mu.Lock()
	f.turns[n]++
	if other := f.holders[key]; other != nil && other.Err() == nil {
		f.t.Errorf("two hold %s", key)
	}
	f.holders[key] = lock
	if lock.Fence() <= f.fences[key] {
		f.t.Errorf("fence %d of %s after %d", lock.Fence(), key, f.fences[key])
	}
	f.fences[key] = lock.Fence()
	f.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	f.mu.Lock()
	if f.holders[key] == lock {
		f.holders[key] = nil
	}
	f.mu.Unlock()
	err = lock.Unlock()
	late := time.Now().After(lock.Until())                           // the machine is busy; a lock that is lost before that is an error
	if err != nil && !errors.Is(err, redlock.ErrNoQuorum) && !late { // which a server that was killed can't confirm
		f.mu.Lock()
		f.errs = append(f.errs, err)
		f.mu.Unlock()
	}
}

// endTurns waits for the turns that have begun: what they lack, the past has done.
func (f *fleet) endTurns() {
	for _, n := range f.nodes {
		n.mu.Lock()
		n.mu.Unlock() //lint:ignore SA2001 turns hold it
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
	t.Parallel()
	servers := redistest.Start(t, 4)
	f := newFleet(t, pick(servers, 0, 1, 2))
	f.goesOn("before")
	for step, urls := range [][]string{pick(servers, 0, 1, 2, 3), pick(servers, 0, 1, 3)} {
		for i, n := range f.nodes {
			f.deploy(i, urls)
			f.goesOn(fmt.Sprintf("in step %d, process %d", step, i))
			if early := n.log.lines(stepDone); len(early) > step {
				t.Errorf("step %d is told to be done before the last process has taken it: %q", step, early)
			}
		}
		for _, n := range f.nodes {
			eventually(t, 3*bound, "the step is done", func() bool { return len(n.log.lines(stepDone)) > step })
		}
		f.goesOn("after a step")
	}
	for _, n := range f.nodes {
		if lines := n.log.lines("level=ERROR", "another process"); len(lines) > 0 {
			t.Errorf("a change one at a time is told to be wrong: %q", lines)
		}
	}
}

// TestTwoStepsAtOnce takes a server away in a process while another lacks the one that was added; and then in all, without
// waiting: that is noticed, and nobody locks who must not, until the first set is forgotten.
func TestTwoStepsAtOnce(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 4)
	f := newFleet(t, pick(servers, 0, 1, 2))
	f.deploy(0, pick(servers, 0, 1, 2, 3))
	f.goesOn("after the first step")
	f.deploy(0, pick(servers, 0, 1, 3))
	f.refused(0, servers[2].Addr(), servers[3].Addr())
	f.nodes[1].log.expect(t, "level=ERROR", "other masters", servers[3].Addr())
	f.deploy(1, pick(servers, 0, 1, 2, 3))
	f.refused(0)
	eventually(t, 3*bound, "the first set is forgotten", func() bool {
		f.errors()
		return len(f.bothTurn("or is refused")) == 0
	})
	f.goesOn("when the first set is forgotten")
}

// TestChangeOfMaxTTL raises it and lowers it again: the guard is changed first, and last.
func TestChangeOfMaxTTL(t *testing.T) {
	t.Parallel()
	const longer, guard = 2 * time.Second, 3 * time.Second
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, guard)
	urls := redistest.URLs(servers)
	f := newFleet(t, urls, redlock.WithRestartGuard(2*time.Second))
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
			f.deploy(i, urls, opts...)
			f.goesOn(fmt.Sprintf("in step %d, process %d", step, i))
		}
	}
	for _, n := range f.nodes {
		if lines := n.log.lines("level=ERROR", "another process"); len(lines) > 0 {
			t.Errorf("a change in order is told to be wrong: %q", lines)
		}
	}
	f.deploy(0, urls, redlock.WithMaxTTL(longer)) // at once
	for _, n := range f.nodes {
		eventually(t, 3*bound, "both tell of it", func() bool { return len(n.log.lines("level=ERROR", "longer max ttl")) > 0 })
	}
}

// TestServerReplacedUnderItsName puts an empty server in the place of each of two, one after the other; and then two at once.
func TestServerReplacedUnderItsName(t *testing.T) {
	t.Parallel()
	const guard = 2 * time.Second
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, guard)
	f := newFleet(t, redistest.URLs(servers), redlock.WithRestartGuard(guard))
	f.goesOn("before")
	lines := func(n *node, s *redistest.Server, words ...string) int {
		return len(n.log.lines(append(words, s.Addr())...))
	}
	// replace returns what waits until all have noticed the new servers, and count their votes.
	replace := func(which ...*redistest.Server) (noticed func()) {
		var happened []func() bool
		for _, n := range f.nodes {
			eventually(t, 4*bound, "all servers vote", func() bool { return n.locker.Status().Available == len(servers) }) // a busy machine may have them come and go
			for _, s := range which {
				noticed, voted := lines(n, s, "master unavailable", "restarted"), lines(n, s, "master available again")
				happened = append(happened, func() bool {
					return lines(n, s, "master unavailable", "restarted") > noticed && lines(n, s, "master available again") > voted
				})
			}
		}
		for _, s := range which {
			s.Kill()
		}
		for _, s := range which {
			s.Restart()
		}
		return func() {
			t.Helper()
			for _, one := range happened {
				eventually(t, 4*bound, "the new servers are noticed, and vote", one)
			}
		}
	}
	for nth, s := range servers[:2] {
		noticed := replace(s)
		f.goesOn("with one server replaced")
		noticed()
		f.goesOn(fmt.Sprintf("after server %d", nth))
	}
	for _, n := range f.nodes {
		if lines := n.log.lines("level=ERROR", "another process"); len(lines) > 0 {
			t.Errorf("one server at a time is told to be wrong: %q", lines)
		}
	}
	replace(servers[:2]...)()
	f.endTurns()
	f.errors()
	f.goesOn("after both")
}

// TestChangeOfPrefix stops all processes, waits for the max TTL, and starts them anew: fences grow.
func TestChangeOfPrefix(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	f := newFleet(t, redistest.URLs(servers))
	f.goesOn("before")
	for _, n := range f.nodes {
		n.mu.Lock()
		if err := n.locker.Close(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(time.Second)
	for i, n := range f.nodes {
		n.locker = nil
		n.mu.Unlock()
		f.deploy(i, redistest.URLs(servers), redlock.WithPrefix("shop"))
	}
	f.goesOn("with the other prefix")
}

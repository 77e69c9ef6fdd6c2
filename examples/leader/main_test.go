package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

const (
	candidateEnv = "LEADER_TEST_CANDIDATE" // a candidate's settings as JSON, in its process

	bound = time.Minute // for what comes at once, or after the TTL, however busy the machine is
)

// settings are those of one process of the election.
type settings struct {
	Masters []string
	Store   string
	TTL     time.Duration
}

func TestMain(m *testing.M) {
	if config := os.Getenv(candidateEnv); config != "" {
		takePart(config)
		return
	}
	os.Exit(m.Run())
}

// takePart does what main does, with other settings.
func takePart(config string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var s settings
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, s.Masters, s.Store, 10*time.Millisecond, redlock.WithTTL(s.TTL), redlock.WithMaxTTL(s.TTL), redlock.WithTimeout(min(2*time.Second, s.TTL/5)), redlock.WithRestartGuard(0)); err != nil {
		log.Fatal(err)
	}
}

// election is a number of processes, three masters and a store.
type election struct {
	t          *testing.T
	masters    []*redistest.Server
	store      *redistest.Server
	candidates []*candidate
	observer   *redlock.Locker // takes no part
}

type candidate struct {
	*exec.Cmd
	exited <-chan struct{}
	store  *redistest.Forwarder
	log    string // a file
}

func newElection(t *testing.T, candidates int, ttl time.Duration) *election {
	t.Helper()
	e := &election{t: t, masters: redistest.Start(t, 3), store: redistest.Start(t, 1)[0]}
	var err error
	if e.observer, err = redlock.Open(redistest.URLs(e.masters), redlock.WithRestartGuard(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.observer.Close() })
	for i := range candidates {
		c := &candidate{Cmd: exec.Command(os.Args[0]), store: redistest.NewForwarder(t, e.store), log: filepath.Join(t.TempDir(), fmt.Sprint(i))}
		config, err := json.Marshal(settings{redistest.URLs(e.masters), "redis://" + c.store.Addr(), ttl})
		if err != nil {
			t.Fatal(err)
		}
		c.Env = append(os.Environ(), candidateEnv+"="+string(config))
		output, err := os.Create(c.log)
		if err != nil {
			t.Fatal(err)
		}
		c.Stderr = output
		if c.exited, err = redistest.StartProcess(c.Cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			<-c.exited
			_ = output.Close()
			if t.Failed() {
				t.Logf("candidate %d:\n%s", c.Process.Pid, c.said())
			}
		})
		e.candidates = append(e.candidates, c)
	}
	return e
}

func (e *election) eventually(what string, condition func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(bound); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

func (e *election) reports() []string {
	e.t.Helper()
	reports, err := e.store.Client().LRange(e.t.Context(), "{reports}", 0, -1).Result()
	if err != nil {
		e.t.Fatal(err)
	}
	return reports
}

// leader returns the process that has written the last report, as soon as that is none of the former ones.
func (e *election) leader(former ...*candidate) (leader *candidate) {
	e.t.Helper()
	e.eventually("another leader's report", func() bool {
		reports := e.reports()
		for _, c := range e.candidates {
			if len(reports) > 0 && c.isNamed(reports[len(reports)-1]) && !slices.Contains(former, c) {
				leader = c
			}
		}
		return leader != nil
	})
	return leader
}

// awaitLine waits until each of these processes stands in line on a quorum of the masters, so that the leader's exit wakes the first of
// them.
func (e *election) awaitLine(waiting ...*candidate) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("%d processes wait", len(waiting)), func() bool {
		seen, err := inspect.Key(e.t.Context(), e.observer, key)
		if err != nil {
			return false
		}
		places := make(map[*candidate]int)
		for _, master := range seen.Masters {
			for _, place := range master.Queue {
				for _, c := range waiting {
					if c.isNamed(place.Process) {
						places[c]++
					}
				}
			}
		}
		return !slices.ContainsFunc(waiting, func(c *candidate) bool { return places[c] <= len(e.masters)/2 })
	})
}

// exit has a process exit, and requires it to do so without an error.
func (e *election) exit(c *candidate) {
	e.t.Helper()
	c.signal(e.t, syscall.SIGTERM)
	<-c.exited
	if !c.ProcessState.Success() {
		e.t.Errorf("SIGTERM: %v", c.ProcessState)
	}
}

// isNamed reports whether this text ends with the name of the process.
func (c *candidate) isNamed(text string) bool {
	return strings.HasSuffix(text, fmt.Sprintf("/%d", c.Process.Pid))
}

func (c *candidate) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := c.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (c *candidate) said() string {
	text, _ := os.ReadFile(c.log)
	return string(text)
}

// refused returns how many writes the store has refused.
func (e *election) refused() int {
	e.t.Helper()
	stats, err := e.store.Client().Info(e.t.Context(), "errorstats").Result()
	if err != nil {
		e.t.Fatal(err)
	}
	count := 0
	if match := regexp.MustCompile(`errorstat_FENCED:count=(\d+)`).FindStringSubmatch(stats); match != nil {
		_, _ = fmt.Sscan(match[1], &count)
	}
	return count
}

// terms returns who led, in that order, and fails the test unless each has a larger fencing token than the one before.
func (e *election) terms() (leaders []string) {
	e.t.Helper()
	last := 0
	for _, report := range slices.Compact(e.reports()) {
		var fence int
		var name string
		if _, err := fmt.Sscan(report, &fence, &name); err != nil || fence <= last {
			e.t.Errorf("report %q after fencing token %d: %v", report, last, err)
		}
		last, leaders = fence, append(leaders, name[strings.LastIndex(name, "/")+1:])
	}
	return leaders
}

// TestLeaderExits ends one leader after the other: the next in line is woken, and nobody else writes.
func TestLeaderExits(t *testing.T) {
	t.Parallel()
	e := newElection(t, 4, 30*time.Second)
	var leaders []*candidate
	var want []string
	woken := 0
	for range e.candidates {
		leader := e.leader(leaders...)
		leaders, want = append(leaders, leader), append(want, fmt.Sprint(leader.Process.Pid))
		e.awaitLine(slices.DeleteFunc(slices.Clone(e.candidates), func(c *candidate) bool { return slices.Contains(leaders, c) })...)
		e.exit(leader)
		woken += strings.Count(leader.said(), ": woken")
	}
	if terms := e.terms(); !slices.Equal(terms, want) {
		t.Errorf("leaders %v, want %v", terms, want)
	}
	if refused := e.refused(); refused != 0 {
		t.Errorf("the store has refused %d writes: two led at the same time", refused)
	}
	if woken == 0 {
		t.Error("nobody was woken by the exit of the one before")
	}
	redistest.RequireNoKeys(t, e.masters)
}

// TestLeaderDies kills the leader, and then the next one.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	e := newElection(t, 3, 2*time.Second)
	var leaders []*candidate
	for range e.candidates {
		leader := e.leader(leaders...)
		leaders = append(leaders, leader)
		leader.signal(t, syscall.SIGKILL)
		<-leader.exited
	}
	e.terms()
}

// TestLeaderIsPaused stops the leader while a write of it is on its way. The write arrives when the next one leads, and is refused;
// when the process wakes, it waits in line again.
func TestLeaderIsPaused(t *testing.T) {
	t.Parallel()
	e := newElection(t, 2, 4*time.Second)
	paused := e.leader()
	deliver := paused.store.Hold()
	t.Cleanup(deliver)
	e.eventually("a write on its way", paused.store.Holds)
	paused.signal(t, syscall.SIGSTOP)
	next := e.leader(paused)
	deliver()
	e.eventually("the late write refused", func() bool { return e.refused() > 0 })

	paused.signal(t, syscall.SIGCONT)
	e.awaitLine(paused)
	if !strings.Contains(paused.said(), "lost the lead") {
		t.Error("the process that was paused has not noticed that it has lost the lead")
	}
	e.exit(next)
	e.leader(next)
	e.exit(paused)
	e.terms()
}

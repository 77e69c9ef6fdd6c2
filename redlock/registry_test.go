package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// shortLife makes the masters forget a set early.
var shortLife = []redlock.Option{redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second / 2)}

// pick returns the URLs of some of the servers.
func pick(servers []*redistest.Server, which ...int) (urls []string) {
	for _, i := range which {
		urls = append(urls, servers[i].URL())
	}
	return urls
}

// TestMastersThatMayNotMeet has one process on {0,1,2} and a later one on {0,1,3}, whose majorities need not share
// a master. The later one gets no locks until the first is gone.
func TestMastersThatMayNotMeet(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 4)
	var logA, logB logBook
	var d diary
	a, err := redlock.Open(pick(servers, 0, 1, 2), append(shortLife, redlock.WithRestartGuard(0), logA.option())...)
	if err != nil {
		t.Fatal(err)
	}
	lockUnlock(t, a, "a")
	b := newLocker(t, pick(servers, 0, 1, 3), append(shortLife, logB.option(), d.option())...)
	refused := func() (err error) {
		lock, err := b.TryLock(t.Context(), "b")
		if err == nil {
			unlocked(t, lock)
		}
		return err
	}
	// Until the process has reached its third server, it locks on the two that both have.
	eventually(t, bound, "the later process is refused", func() bool { return errors.Is(refused(), redlock.ErrNoQuorum) })
	for range 20 {
		if err := refused(); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatalf("the later process: %v, want ErrNoQuorum", err)
		}
		lockUnlock(t, a, "a")
	}
	err = refused()
	for _, s := range servers {
		if err == nil || !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("the error %v does not name %s", err, s.Addr())
		}
	}
	logB.expect(t, "level=ERROR", servers[2].Addr(), servers[3].Addr())
	logA.expect(t, "level=ERROR", servers[2].Addr(), servers[3].Addr())
	d.expect(t, "down", servers[0].URL(), nil)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*bound, "the first process's masters are forgotten", func() bool {
		lock := tryLock(t, b, "b")
		if lock != nil {
			unlocked(t, lock)
		}
		return lock != nil
	})
	eventually(t, bound, "the observer is told that the masters vote", func() bool { return len(d.find("up", servers[0].URL(), nil)) > 0 })
}

// TestOtherMaxTTLIsReported: a process whose locks may last longer than another process's guard is logged.
func TestOtherMaxTTLIsReported(t *testing.T) {
	t.Parallel()
	const maxTTL = 2 * time.Second
	for name, other := range map[string]struct {
		maxTTL, guard time.Duration
		want          int
	}{
		"shorter":                      {maxTTL / 2, 0, 1},
		"the same":                     {maxTTL, 0, 0},
		"longer":                       {2 * maxTTL, 0, 1},
		"shorter, with a longer guard": {maxTTL / 2, maxTTL + time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			waitForUptime(t, servers, other.guard)
			var first, log logBook
			l := newLocker(t, redistest.URLs(servers), append(shortLife, redlock.WithMaxTTL(maxTTL), first.option())...)
			lockUnlock(t, l, name)
			l = newLocker(t, redistest.URLs(servers), append(shortLife, redlock.WithMaxTTL(other.maxTTL), redlock.WithRestartGuard(other.guard), log.option())...)
			for range 3 {
				lockUnlock(t, l, name)
			}
			if other.want > 0 {
				for _, log := range []*logBook{&first, &log} {
					eventually(t, 3*bound, "both tell of it", func() bool { return len(log.lines("level=ERROR", "max ttl")) > 0 })
				}
			}
			if lines := log.lines("level=ERROR", "max ttl"); len(lines) != other.want {
				t.Errorf("%d lines of the log tell of another max ttl, want %d: %q", len(lines), other.want, lines)
			}
		})
	}
}

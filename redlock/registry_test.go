package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestMastersThatMayNotMeet has one process on {0,1,2} and a later one on {0,1,3}, whose majorities need not share
// a master. The later one gets no locks until the first is gone.
func TestMastersThatMayNotMeet(t *testing.T) {
	simnet.Run(t, 4, func(t *testing.T, net *simnet.Net) {
		var logA, logB logBook
		var d diary
		a, err := redlock.New(net.Pick(0, 1, 2), append(simLife, redlock.WithRestartGuard(0), logA.option())...)
		if err != nil {
			t.Fatal(err)
		}
		lockUnlock(t, a, "a")
		b := simLocker(t, net.Pick(0, 1, 3), logB.option(), d.option())
		stays(t, simTTL, "the later process is refused", func() bool {
			lock, err := b.TryLock(t.Context(), "b")
			for _, address := range net.Addresses {
				if lock != nil || !errors.Is(err, redlock.ErrNoQuorum) || !strings.Contains(err.Error(), address.String()) {
					t.Fatalf("the later process: %v, want ErrNoQuorum and %s", err, address)
				}
			}
			lockUnlock(t, a, "a")
			return true
		})
		logB.expect(t, "level=ERROR", "sim://2", "sim://3")
		logA.expect(t, "level=ERROR", "sim://2", "sim://3")
		d.expect(t, "down", "sim://0", nil)
		mustClose(t, a)
		eventually(t, 2*simTTL, "the first process's masters are forgotten", func() bool {
			lock := tryLock(t, b, "b")
			if lock != nil {
				mustUnlock(t, lock)
			}
			return lock != nil
		})
		d.expect(t, "up", "sim://0", nil)
	})
}

// TestOtherMaxTTLIsReported: a process whose locks may last longer than another process's guard is logged.
func TestOtherMaxTTLIsReported(t *testing.T) {
	for name, other := range map[string]struct {
		maxTTL, guard time.Duration
		want          int
	}{
		"shorter":                      {simTTL / 2, 0, 1},
		"the same":                     {simTTL, 0, 0},
		"longer":                       {2 * simTTL, 0, 1},
		"shorter, with a longer guard": {simTTL / 2, simTTL + time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var first, log logBook
				short := redlock.WithTTL(time.Second)
				lockUnlock(t, simLocker(t, net.Masters(), short, first.option()), name)
				lockUnlock(t, simLocker(t, net.Masters(), short, redlock.WithMaxTTL(other.maxTTL), redlock.WithRestartGuard(other.guard), log.option()), name)
				time.Sleep(simTTL)
				for _, log := range []*logBook{&first, &log} {
					if lines := log.lines("level=ERROR", "max ttl"); len(lines) != other.want {
						t.Errorf("%d lines of the log tell of another max ttl, want %d: %q", len(lines), other.want, lines)
					}
				}
			})
		})
	}
}

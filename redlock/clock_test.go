package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const clockMaxTTL = 1500 * time.Millisecond

// withFakedClock returns three masters. The clock of the first is ahead by as much as it is set to, and gains that
// many thousandths from now on.
func withFakedClock(t *testing.T) (servers []*redistest.Server, set func(ahead time.Duration, gain int64)) {
	t.Helper()
	clock := redistest.NewClock(t)
	faked := redistest.StartWith(t, clock.Env())
	return append([]*redistest.Server{faked}, redistest.Start(t, 2)...), clock.Set
}

func onFakedClock(t *testing.T, d *diary) (*redlock.Locker, []*redistest.Server, func(time.Duration, int64)) {
	t.Helper()
	servers, set := withFakedClock(t)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(clockMaxTTL), redlock.WithMaxTTL(clockMaxTTL),
		redlock.WithTimeout(clockMaxTTL/4), redlock.WithMaxSkew(0), d.option())
	return l, servers, set
}

// clocksDown returns the reports that one of these masters is down because of its clock. A busy machine has other reasons.
func clocksDown(d *diary, servers []*redistest.Server) (found []event) {
	for _, s := range servers {
		for _, e := range d.find("down", s.URL(), nil) {
			if strings.Contains(e.err.Error(), "clock") {
				found = append(found, e)
			}
		}
	}
	return found
}

func TestClockJump(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{5 * time.Second, -5 * time.Second} {
		t.Run(jump.String(), func(t *testing.T) {
			t.Parallel()
			var d diary
			l, servers, set := onFakedClock(t, &d)
			for range 50 {
				lockUnlock(t, l, "key")
			}
			if down := clocksDown(&d, servers); len(down) > 0 {
				t.Fatalf("down before the jump: %v", down)
			}
			jumped := time.Now()
			set(jump, 0)
			eventually(t, bound, "the jump is noticed", func() bool {
				lockUnlock(t, l, "key")
				return len(clocksDown(&d, servers[:1])) > 0
			})
			noticed := clocksDown(&d, servers[:1])[0].at // or later: the observer may be told late
			before := servers[0].Calls("rpush")
			for time.Since(jumped) < clockMaxTTL*9/10 { // locking goes on, without that master
				lockUnlock(t, l, "key")
				time.Sleep(time.Millisecond)
			}
			if n := servers[0].Calls("rpush") - before; n > 0 && time.Since(jumped) < clockMaxTTL {
				t.Errorf("the master was asked for %d locks after its clock had jumped", n)
			}
			var up time.Time
			eventually(t, bound, "the master votes again", func() bool {
				lockUnlock(t, l, "key")
				for _, e := range d.find("up", servers[0].URL(), nil) {
					if e.at.After(noticed) {
						up = e.at
						return true
					}
				}
				return false
			})
			if up.Sub(jumped) < clockMaxTTL {
				t.Errorf("voted again %v after the jump, want not before the max TTL of %v", up.Sub(jumped), clockMaxTTL)
			}
			eventually(t, bound, "the master is asked again", func() bool {
				lockUnlock(t, l, "key")
				return servers[0].Calls("rpush") > before
			})
			if down := clocksDown(&d, servers); len(down) != 1 {
				t.Errorf("down: %v, want once", down)
			}
		})
	}
}

// TestFastClock: leases end early on a master whose clock runs 50 % too fast.
func TestFastClock(t *testing.T) {
	t.Parallel()
	var d diary
	l, servers, set := onFakedClock(t, &d)
	lockUnlock(t, l, "key")
	set(0, 500)
	eventually(t, bound, "the fast clock is noticed", func() bool {
		lockUnlock(t, l, "key")
		return len(clocksDown(&d, servers[:1])) > 0
	})
	var lock *redlock.Lock
	eventually(t, bound, "a lock lasts on the other masters", func() bool { // though a busy machine may lose one
		lock = mustLock(t, l, "held")
		select {
		case <-lock.Context().Done():
			return false
		case <-time.After(2 * clockMaxTTL): // longer than the first quarantine: it is noticed again at its end
			return true
		}
	})
	if up := d.find("up", servers[0].URL(), nil); len(up) > 0 {
		t.Errorf("the master votes with its fast clock: %v", up)
	}
	unlocked(t, lock)
}

package redlock_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// linesAMinute is how many lines a process may log of a master that comes and goes.
const linesAMinute = 10

// requireFewLines fails the test if the log has more than linesAMinute lines with a text for each minute since the test began.
func requireFewLines(t *testing.T, log *logBook, began time.Time, of string) {
	t.Helper()
	minutes := 1 + int(time.Since(began)/time.Minute)
	if lines := log.lines(of); len(lines) > linesAMinute*minutes {
		t.Errorf("%d lines within %d minutes: %q", len(lines), minutes, lines)
	}
}

// turn takes and releases a lock, and returns why it didn't get it.
func turn(t *testing.T, l *redlock.Locker) error {
	t.Helper()
	lock, err := l.TryLock(t.Context(), "key")
	if err == nil {
		_ = lock.Unlock() // a slow master may miss it
	}
	return err
}

// TestSlowMaster: a master most of whose replies come too late is slow, however many calls ask it, and the log says so once. The
// timeout that its error advises makes it a master that is well, and so does a better network.
func TestSlowMaster(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		l := simLocker(t, net.Masters(), redlock.WithTimeout(150*time.Millisecond), log.option())
		requireState(t, l, 2, redlock.MasterAvailable)
		net.Addresses[2].Set(simnet.Weather{Delay: 350 * time.Millisecond})
		requireState(t, l, 2, redlock.MasterSlow)
		for range 100 {
			_ = turn(t, l)
			if m := l.Status().Masters[2]; m.State != redlock.MasterSlow || m.Late < 0.25 {
				t.Fatalf("a slow master is %+v", m)
			}
			time.Sleep(20 * time.Millisecond)
		}
		log.expect(t, "master unavailable", "sim://2", "slow: ")
		advised := regexp.MustCompile(`set the timeout to at least (\S+)$`).FindStringSubmatch(requireState(t, l, 2, redlock.MasterSlow).Err.Error())
		timeout, err := time.ParseDuration(advised[1])
		if err != nil {
			t.Fatal(err)
		}
		patient := simLocker(t, net.Masters(), redlock.WithTimeout(timeout))
		requireState(t, patient, 2, redlock.MasterAvailable)
		for range 10 {
			_ = turn(t, patient)
		}
		if m := patient.Status().Masters[2]; m.State == redlock.MasterSlow {
			t.Errorf("with the timeout %v that was advised: %+v", timeout, m)
		}
		net.Addresses[2].Set(simnet.Weather{})
		requireState(t, l, 2, redlock.MasterAvailable)
		if lines := log.lines("sim://2"); len(lines) != 2 {
			t.Errorf("%q", lines)
		}
	})
}

// TestMasterThatComesAndGoes: what one command shows of a master, and the next one denies, floods no log. Its state goes on to say what
// is wrong.
func TestMasterThatComesAndGoes(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		var log logBook
		began := time.Now()
		l := simLocker(t, net.Masters(), log.option())
		requireState(t, l, 0, redlock.MasterAvailable)
		for range linesAMinute/2 + 1 { // each would make two lines
			net.Servers[0].Refuse("NOPERM User default has no permissions to run the 'rpush' command", simnet.Acquire)
			eventually(t, bound, "locks are refused", func() bool {
				err := turn(t, l)
				return err != nil && strings.Contains(err.Error(), "grant this user the rights")
			})
			net.Servers[0].Refuse("")
			eventually(t, bound, "locks are granted", func() bool { return turn(t, l) == nil })
		}
		if s := l.Status(); !s.Ready() || s.Masters[0].State == redlock.MasterRefuses && s.Masters[0].Until.IsZero() {
			t.Errorf("one that works again: %+v", s)
		}
		requireState(t, l, 0, redlock.MasterAvailable)
		requireFewLines(t, &log, began, "")
	})
}

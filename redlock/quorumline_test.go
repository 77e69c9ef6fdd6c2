package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

const mastersLine = "masters available"

// TestQuorumIsLogged: a process without any traffic logs the end of the quorum and its return, each in one line, and little else in an outage of
// ten minutes.
func TestQuorumIsLogged(t *testing.T) {
	for _, test := range []struct {
		name       string
		fail, heal func(net *simnet.Net)
		lost, back string
	}{
		{
			"two die", func(net *simnet.Net) { net.Servers[1].Kill(); net.Servers[2].Kill() }, func(net *simnet.Net) { net.Servers[1].Restart(); net.Servers[2].Restart() },
			"1 of 3 masters available", "3 of 3 masters available",
		},
		{
			"all die, and one stays away", func(net *simnet.Net) {
				for _, s := range net.Servers {
					s.Kill()
				}
			}, func(net *simnet.Net) { net.Servers[0].Restart(); net.Servers[1].Restart() },
			"0 of 3 masters available", "2 of 3 masters available",
		},
		{
			"two hang", func(net *simnet.Net) { net.Servers[1].Hang(); net.Servers[2].Hang() }, func(net *simnet.Net) { net.Servers[1].Resume(); net.Servers[2].Resume() },
			"1 of 3 masters available", "3 of 3 masters available",
		},
		{
			"two become replicas", func(net *simnet.Net) { net.Servers[1].Demote(); net.Servers[2].Demote() }, func(net *simnet.Net) { net.Servers[1].Promote(); net.Servers[2].Promote() },
			"1 of 3 masters available", "3 of 3 masters available",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var log logBook
				simLocker(t, net.Masters(), log.option(), redlock.WithRestartGuard(simTTL+time.Second))
				log.expect(t, "level=INFO", "3 of 3 masters available")
				time.Sleep(time.Minute)
				before := len(log.lines(""))
				test.fail(net)
				time.Sleep(7 * time.Second)
				if lines := log.lines("level=ERROR", test.lost, "needed=2", "unavailable="); len(lines) != 1 {
					t.Errorf("no line says that there is no quorum any more:\n%s", log.String())
				}
				time.Sleep(time.Minute)
				first := len(log.lines(""))
				time.Sleep(10 * time.Minute)
				if lines := log.lines(""); len(lines) != first || first-before > 5 {
					t.Errorf("%d lines in the first minute, and %d in the next ten:\n%s", first-before, len(lines)-first, log.String())
				}
				test.heal(net)
				time.Sleep(time.Minute)
				if lines := log.lines(mastersLine); len(lines) != 3 || !strings.Contains(lines[2], "level=INFO") || !strings.Contains(lines[2], test.back) {
					t.Errorf("%q, want the start, the end of the quorum and its return", lines)
				}
			})
		})
	}
}

// TestShortLossOfQuorum: no line tells of a loss of the quorum that lasts for a moment, however often.
func TestShortLossOfQuorum(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		simLocker(t, net.Masters(), log.option())
		log.expect(t, mastersLine)
		for _, pause := range []time.Duration{time.Minute, 10 * time.Second, time.Second} {
			for range 20 {
				time.Sleep(pause)
				for _, a := range net.Addresses {
					a.Set(simnet.Weather{Away: true})
					a.Cut()
				}
				time.Sleep(50 * time.Millisecond)
				for _, a := range net.Addresses {
					a.Set(simnet.Weather{})
				}
			}
		}
		if lines := log.lines(mastersLine); len(lines) != 1 {
			t.Errorf("%q", lines)
		}
	})
}

// TestQuorumThatComesAndGoes doesn't fill the log, and the last line tells the truth.
func TestQuorumThatComesAndGoes(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		l := simLocker(t, net.Masters(), log.option(), redlock.WithRestartGuard(0))
		log.expect(t, mastersLine)
		began := time.Now()
		for range 60 {
			net.Servers[1].Kill()
			net.Servers[2].Kill()
			time.Sleep(10 * time.Second)
			net.Servers[1].Restart()
			net.Servers[2].Restart()
			time.Sleep(10 * time.Second)
		}
		requireFewLines(t, &log, began, mastersLine)
		if last := log.lines(mastersLine); !strings.Contains(last[len(last)-1], "level=ERROR") {
			t.Errorf("while it comes and goes: %q", last)
		}
		time.Sleep(2 * time.Minute)
		if last := log.lines(mastersLine); !strings.Contains(last[len(last)-1], "level=INFO") || !l.Status().Ready() {
			t.Errorf("at last: %q", last)
		}
	})
}

// TestHungMasterWithoutTraffic: a process that takes no locks logs soon that a master hangs.
func TestHungMasterWithoutTraffic(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		simLocker(t, net.Masters(), log.option())
		time.Sleep(time.Minute)
		net.Servers[0].Hang()
		time.Sleep(5 * time.Second)
		if lines := log.lines("master unavailable", "no reply for "); len(lines) != 1 {
			t.Errorf("logged %q, want one line that says that the master doesn't answer", lines)
		}
		net.Servers[0].Resume()
	})
}

package redlock

import (
	"testing"
	"time"
)

// TestClockSpeed reads a master's clock at various intervals. One that gains more than the drift allowance is
// noticed however often it is read; one that gains less, such as a clock that NTP corrects, isn't; nor are
// answers that are slow, or slower one way than the other.
func TestClockSpeed(t *testing.T) {
	const (
		length    = 20 * time.Second
		roundTrip = 300 * time.Microsecond
		slow      = 30 * time.Millisecond
	)
	for _, every := range []time.Duration{500 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second} {
		for gain, wrong := range map[float64]bool{0: false, 0.005: false, -0.005: false, 0.05: true, 0.5: true, -0.05: true, -0.5: true} {
			clock := masterClock{quarantine: time.Hour}
			start := time.Now()
			noticed := time.Duration(-1)
			for i, at := 0, time.Duration(0); noticed < 0 && at <= length; i++ {
				there, back := roundTrip/2, roundTrip/2
				switch i % 7 {
				case 3:
					there = slow
				case 5:
					back = slow
				}
				read := start.Add(at + there)
				shown := read.Add(time.Duration(gain * float64(read.Sub(start))))
				clock.observe(shown.UnixMicro(), start.Add(at), read.Add(back))
				if !clock.trusted(read.Add(back)) {
					noticed = at
				}
				at += max(every, there+back)
			}
			if wrong != (noticed >= 0) {
				t.Errorf("asked every %v, a clock that gains %v: noticed %v (at %v), want %v", every, gain, noticed >= 0, noticed, wrong)
			}
			if limit := max(2*every, length/10); noticed > limit {
				t.Errorf("asked every %v, a clock that gains %v: noticed after %v", every, gain, noticed)
			}
		}
	}
}

// TestClockJumpUnseen: the longer a master's clock was not seen, the more a jump could hide.
func TestClockJumpUnseen(t *testing.T) {
	for away, jump := range map[time.Duration]time.Duration{30 * time.Second: 200 * time.Millisecond, time.Hour: time.Second} {
		for _, sign := range []time.Duration{0, -1, 1} {
			clock := masterClock{quarantine: time.Hour}
			now := time.Now()
			clock.observe(now.UnixMicro(), now, now)
			now = now.Add(away)
			clock.observe(now.Add(sign*jump).UnixMicro(), now, now)
			if clock.trusted(now) != (sign == 0) {
				t.Errorf("after %v, a jump of %v: trusted %v", away, sign*jump, clock.trusted(now))
			}
		}
	}
}

// TestSlowAnswersAreNoSetBack: answers that take long, as on a busy machine, and those to commands that were sent
// meanwhile, don't look as if the clock had been set back.
func TestSlowAnswersAreNoSetBack(t *testing.T) {
	const slow = 4 * time.Second
	for _, there := range []time.Duration{0, slow / 2, slow} { // spent on the way to the server
		all := newClocks(3, options{maxSkew: 2 * slow, maxTTL: time.Second})
		start := time.Now()
		for i, sent := range []time.Time{start, start, start, start.Add(slow / 2), start.Add(slow - 1)} {
			c := all.all[i%3]
			read := start.Add(max(there, sent.Sub(start)))
			c.observe(read.UnixMicro(), sent, start.Add(slow))
			if err := c.fault(sent); err != nil {
				t.Errorf("answer %d, read after %v of %v: %v", i, there, slow, err)
			}
		}
	}
}

// TestNoClockIsKnown: answers of the only server come when it has left its cluster, or when another one has just taken its
// place.
func TestNoClockIsKnown(t *testing.T) {
	now := time.Now()
	all := newClocks(1, options{maxSkew: time.Second, maxTTL: time.Second})
	all.began = now.Add(-2 * clockGrace)
	node := all.addNode(options{})
	node.observe(now.UnixMicro(), now, now)
	all.dropNode(node)
	if err := node.fault(now); err != nil {
		t.Errorf("a node that has left: %v", err)
	}
	replaced := all.all[0]
	replaced.observe(now.UnixMicro(), now, now)
	replaced.forget()
	if err := all.check(replaced); err != nil { // after fault has found that it is known
		t.Errorf("a server that was replaced: %v", err)
	}
}

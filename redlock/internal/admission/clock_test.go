package admission

import (
	"testing"
	"time"
)

// TestClockSpeed reads a master's clock at various intervals. One that gains more than the drift allowance is
// noticed however often it is read; one that gains less, such as a clock that NTP corrects, isn't; nor are
// replies that are slow, or slower one way than the other.
func TestClockSpeed(t *testing.T) {
	const (
		length    = 20 * time.Second
		roundTrip = 300 * time.Microsecond
		slow      = 30 * time.Millisecond
	)
	for _, every := range []time.Duration{500 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second} {
		for gain, wrong := range map[float64]bool{0: false, 0.005: false, -0.005: false, 0.05: true, 0.5: true, -0.05: true, -0.5: true} {
			start := time.Now()
			clock := Clock{quarantine: time.Hour, zero: start}
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
				clock.Observe(shown.UnixMicro(), start.Add(at), read.Add(back))
				if !clock.Trusted(read.Add(back)) {
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
			now := time.Now()
			clock := Clock{quarantine: time.Hour, zero: now}
			clock.Observe(now.UnixMicro(), now, now)
			now = now.Add(away)
			clock.Observe(now.Add(sign*jump).UnixMicro(), now, now)
			if clock.Trusted(now) != (sign == 0) {
				t.Errorf("after %v, a jump of %v: trusted %v", away, sign*jump, clock.Trusted(now))
			}
		}
	}
}

// TestSlowRepliesAreNoSetBack: replies that take long, as on a busy machine, and those to commands that were sent
// meanwhile, don't look as if the clock had been set back.
func TestSlowRepliesAreNoSetBack(t *testing.T) {
	const slow = 4 * time.Second
	for _, there := range []time.Duration{0, slow / 2, slow} { // spent on the way to the server
		all := newClocks(3, Settings{MaxSkew: 2 * slow, MaxTTL: time.Second})
		start := time.Now()
		for i, sent := range []time.Time{start, start, start, start.Add(slow / 2), start.Add(slow - 1)} {
			c := all.all[i%3]
			read := start.Add(max(there, sent.Sub(start)))
			c.Observe(read.UnixMicro(), sent, start.Add(slow))
			if err := c.Fault(sent); err != nil {
				t.Errorf("reply %d, read after %v of %v: %v", i, there, slow, err)
			}
		}
	}
}

// TestNoClockIsKnown: replies of the only server come when it has left its cluster, or when another one has just taken its
// place.
func TestNoClockIsKnown(t *testing.T) {
	now := time.Now()
	all := newClocks(1, Settings{MaxSkew: time.Second, MaxTTL: time.Second})
	all.began = now.Add(-2 * clockGrace)
	node := all.addNode(all.all[0], 0)
	node.Observe(now.UnixMicro(), now, now)
	all.dropNode(node)
	if err := node.Fault(now); err != nil {
		t.Errorf("a node that has left: %v", err)
	}
	replaced := all.all[0]
	replaced.Observe(now.UnixMicro(), now, now)
	replaced.forget()
	if err := all.check(replaced); err != nil { // after fault has found that it is known
		t.Errorf("a server that was replaced: %v", err)
	}
}

// TestClusterHasOneClock: the nodes of a Redis Cluster, whose clocks are all wrong, don't outvote two other masters.
func TestClusterHasOneClock(t *testing.T) {
	now := time.Now()
	all := newClocks(3, Settings{MaxSkew: time.Second, MaxTTL: time.Second})
	var nodes []*Clock
	for range 6 {
		n := all.addNode(all.all[2], 0)
		n.Observe(now.Add(time.Minute).UnixMicro(), now, now)
		nodes = append(nodes, n)
	}
	for _, c := range all.all[:2] {
		c.Observe(now.UnixMicro(), now, now)
	}
	for i, c := range append(nodes, all.all[:2]...) {
		if err := c.Fault(now); (err != nil) != (i < len(nodes)) {
			t.Errorf("clock %d: %v", i, err)
		}
	}
}

// TestSlowRepliesHideNoJump: a reply that took long is compatible with many clocks, so the narrower bounds from
// before still count after it.
func TestSlowRepliesHideNoJump(t *testing.T) {
	const jump = time.Second
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	reads := func(d time.Duration) int64 { return at(d).UnixMicro() }
	c := &Clock{quarantine: time.Minute, zero: start}
	c.Observe(reads(0), at(0), at(time.Millisecond))
	c.Observe(reads(100*time.Millisecond+jump), at(100*time.Millisecond), at(2*time.Second)) // may still be the old clock
	if !c.Trusted(at(2 * time.Second)) {
		t.Fatal("a slow reply that fits the clock as it was counts as a jump")
	}
	c.Observe(reads(3*time.Second+jump), at(3*time.Second), at(3*time.Second+time.Millisecond))
	if c.Trusted(at(4 * time.Second)) {
		t.Error("the jump isn't seen after a slow reply")
	}
	if !c.Trusted(at(4*time.Second + time.Minute)) {
		t.Error("the quarantine doesn't end")
	}
}

// TestRefillDeadlineIsEarly: the earliest time that a master's clock may show is never later than what it shows.
func TestRefillDeadlineIsEarly(t *testing.T) {
	start := time.Now()
	c := &Clock{zero: start}
	if got := c.Earliest(start); got != 0 {
		t.Errorf("%d without any reply, want 0", got)
	}
	// read when the request was sent, answered a second later
	c.Observe(start.UnixMicro(), start, start.Add(time.Second))
	for _, read := range []time.Duration{0, time.Second} {
		clock := start.Add(2*time.Second - read).UnixMicro() // as it shows then, if it was read so late
		if got := c.Earliest(start.Add(2 * time.Second)); got > clock {
			t.Errorf("%d µs after what the clock shows", got-clock)
		}
	}
}

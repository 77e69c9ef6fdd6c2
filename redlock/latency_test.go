package redlock

import (
	"testing"
	"time"
)

// TestSlowAnswersHideNoJump: an answer that took long is compatible with many clocks, so the narrower bounds from
// before still count after it.
func TestSlowAnswersHideNoJump(t *testing.T) {
	const jump = time.Second
	start := processStart.Add(time.Hour)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	reads := func(d time.Duration) int64 { return at(d).UnixMicro() }
	c := &masterClock{quarantine: time.Minute}
	c.observe(reads(0), at(0), at(time.Millisecond))
	c.observe(reads(100*time.Millisecond+jump), at(100*time.Millisecond), at(2*time.Second)) // may still be the old clock
	if !c.trusted(at(2 * time.Second)) {
		t.Fatal("a slow answer that fits the clock as it was counts as a jump")
	}
	c.observe(reads(3*time.Second+jump), at(3*time.Second), at(3*time.Second+time.Millisecond))
	if c.trusted(at(4 * time.Second)) {
		t.Error("the jump isn't seen after a slow answer")
	}
	if !c.trusted(at(4*time.Second + time.Minute)) {
		t.Error("the quarantine doesn't end")
	}
}

// TestRefillDeadlineIsEarly: the earliest time that a master's clock may show is never later than what it shows.
func TestRefillDeadlineIsEarly(t *testing.T) {
	start := processStart.Add(time.Hour)
	c := &masterClock{}
	if got := c.earliest(start); got != 0 {
		t.Errorf("%d without any answer, want 0", got)
	}
	// read when the request was sent, answered a second later
	c.observe(start.UnixMicro(), start, start.Add(time.Second))
	for _, read := range []time.Duration{0, time.Second} {
		clock := start.Add(2*time.Second - read).UnixMicro() // as it shows then, if it was read so late
		if got := c.earliest(start.Add(2 * time.Second)); got > clock {
			t.Errorf("%d µs after what the clock shows", got-clock)
		}
	}
}

package redlock

import (
	"testing"
	"time"
)

// TestClockSpeed asks a master's clock for the time every so often. One that gains more than the drift
// allowance is noticed however often it is asked; one that gains less, as a clock that is being set
// right by NTP, isn't; nor are answers that are slow, or slower one way than the other.
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

package main

import "math"

// Values of cells with a network, in round trips.

// inTrips is a time in round trips; NaN where none was measured.
func inTrips(v value) value {
	return func(c cell, s sample) float64 {
		if of := v(c, s); of > 0 && s.Trip > 0 {
			return of / micros(s.Trip)
		}
		return math.NaN()
	}
}

var (
	// share is the throughput as a share of what callers have that wait for two round trips, and nothing else.
	share value = func(c cell, s sample) float64 {
		ideal := float64(c.load.Callers*c.processes) / (2 * s.Trip.Seconds())
		return throughput(c, s) / ideal
	}
	busy       value = func(_ cell, s sample) float64 { return s.Busy }
	handOff    value = func(_ cell, s sample) float64 { return micros(s.HandOffs.P50) }
	pass       value = func(_ cell, s sample) float64 { return micros(s.Passes.P50) }
	badUnlocks value = func(_ cell, s sample) float64 { return float64(s.BadUnlocks) }
	badLocks   value = func(_ cell, s sample) float64 { return float64(s.Errors - s.BadUnlocks) }
	errorsSeen value = func(_ cell, s sample) float64 { return float64(s.Errors) }
)

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

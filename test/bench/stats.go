package main

import (
	"math"
	"slices"
	"time"
)

// value is one figure of a sample; NaN where there is none.
type value func(c cell, s sample) float64

func median(values []float64) float64 {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

// all gives the value of each round.
func (r result) all(c cell, v value) []float64 {
	var list []float64
	for _, s := range r.samples {
		list = append(list, v(c, s))
	}
	return list
}

// of finds a contestant's result.
func (m measuredCell) of(name string) (result, bool) {
	i := slices.IndexFunc(m.results, func(r result) bool { return r.name == name })
	if i < 0 {
		return result{}, false
	}
	return m.results[i], true
}

// ratio is the median of the rounds' ratios, not the ratio of the medians: what disturbs the machine
// for a while disturbs both sides of a round.
func (m measuredCell) ratio(r result, base string, v value) float64 {
	b, ok := m.of(base)
	if !ok {
		return math.NaN()
	}
	mine, theirs := r.all(m.cell, v), b.all(m.cell, v)
	ratios := make([]float64, len(mine))
	for i := range mine {
		ratios[i] = mine[i] / theirs[i]
	}
	return median(ratios)
}

func perTurn(what func(s sample) float64) value {
	return func(_ cell, s sample) float64 {
		if s.turns() == 0 {
			return math.NaN()
		}
		return what(s) / float64(s.turns())
	}
}

var (
	throughput value = func(_ cell, s sample) float64 { return float64(s.turns()) / s.Elapsed.Seconds() }

	serverCPU       = perTurn(func(s sample) float64 { return micros(s.ServerCPU) })
	totalCPU        = perTurn(func(s sample) float64 { return micros(s.CPU + s.ServerCPU) })
	masterCPU value = func(c cell, s sample) float64 { return serverCPU(c, s) / float64(c.masters) }
	allocs          = perTurn(func(s sample) float64 { return float64(s.Mallocs) })

	allCommands = perTurn(func(s sample) float64 { return float64(s.Commands) })

	most  value = func(_ cell, s sample) float64 { return float64(s.Most) }
	atEnd value = func(_ cell, s sample) float64 { return s.AtEnd }

	commands value = func(c cell, s sample) float64 { return allCommands(c, s) / float64(c.masters) } // to each of the masters

	lockP99   value = func(_ cell, s sample) float64 { return micros(s.Lock.P99) }
	unlockP99 value = func(_ cell, s sample) float64 { return micros(s.Unlock.P99) }
	bothP50   value = func(_ cell, s sample) float64 { return micros(s.Lock.P50 + s.Unlock.P50) }

	slowestLock value = func(_ cell, s sample) float64 { return micros(s.Lock.Max) }
	longestWait value = func(_ cell, s sample) float64 { return micros(s.LongestWait) }
	handOff     value = func(_ cell, s sample) float64 { return micros(s.HandOffs.P50) }
	// inTrips is the p50 of a lock and its unlock, in round trips to the masters; the least is 2.
	inTrips value = func(c cell, s sample) float64 {
		if s.Trip == 0 {
			return math.NaN()
		}
		return bothP50(c, s) / micros(s.Trip)
	}
	// inUse is the part of the slots that were held, in percent.
	inUse value = func(c cell, s sample) float64 {
		return 100 * float64(s.turns()) * c.load.Hold.Seconds() / (s.Elapsed.Seconds() * float64(max(c.load.AtOnce, 1)))
	}
	failed   value = func(_ cell, s sample) float64 { return float64(s.Errors) }
	overlaps value = func(_ cell, s sample) float64 { return float64(s.Overlaps) }
)

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// healthy is a value before the fault, hurt is how many times as much it is with the fault.
func healthy(v value) value {
	return func(c cell, s sample) float64 { return v(c, *s.Healthy) }
}

func hurt(v value) value {
	return func(c cell, s sample) float64 { return v(c, s) / v(c, *s.Healthy) }
}

// jain is Jain's fairness index of the callers' turns: 1 if all have as many, 1/n if one has them all.
func jain(_ cell, s sample) float64 {
	var sum, squares float64
	for _, t := range s.Turns {
		sum += float64(t)
		squares += float64(t) * float64(t)
	}
	return sum * sum / (float64(len(s.Turns)) * squares)
}

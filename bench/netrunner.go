package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"time"
)

// networkRound measures with a delay line, and how long a round trip through it is just before.
func (c cell) networkRound(e *entrant, profile string) (s sample, err error) {
	trip, err := e.line.trip()
	if err != nil {
		return s, err
	}
	if c.fresh {
		defer func() { err = errors.Join(err, e.stop()) }()
		if err := e.start(c, profile); err != nil {
			return s, err
		}
	}
	if _, err = e.line.lateness(); err != nil {
		return s, err
	}
	before := machineCPU()
	if s, err = e.measure(c.load); err != nil {
		return s, err
	}
	s.Trip, s.Busy = trip, before.busyUntil(machineCPU())
	s.Late, err = e.line.lateness()
	return s, err
}

// handedOver finds in what order the processes had the key, and how long it took from one to the next.
func (s *sample) handedOver(outcomes []outcome) {
	type turn struct {
		hold
		process int
	}
	var turns []turn
	for i, o := range outcomes {
		for _, h := range o.Holds {
			turns = append(turns, turn{h, i})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return int(a.Locked - b.Locked) })
	var between, within []time.Duration
	for i := 1; i < len(turns); i++ {
		took := time.Duration(turns[i].Locked - turns[i-1].Freeing)
		if turns[i].process != turns[i-1].process {
			between = append(between, took)
		} else {
			within = append(within, took)
		}
	}
	s.HandOffs, s.Passes, s.Holds = newLatencies(between), newLatencies(within), nil
}

// cpuTimes are the machine's, in the kernel's ticks.
type cpuTimes struct{ all, idle float64 }

// machineCPU reads /proc/stat; nothing where there is none.
func machineCPU() (t cpuTimes) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, field := range bytes.Fields(line) { // cpu user nice system idle iowait irq softirq steal
		n, err := strconv.ParseFloat(string(field), 64)
		if err != nil || i > 8 {
			continue
		}
		t.all += n
		if i == 4 || i == 5 {
			t.idle += n
		}
	}
	return t
}

func (t cpuTimes) busyUntil(later cpuTimes) float64 {
	if later.all == t.all {
		return math.NaN()
	}
	return 1 - (later.idle-t.idle)/(later.all-t.all)
}

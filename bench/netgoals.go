package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"
)

// netGoal is a goal that is met where it is in all its cells: the report has the worst of them.
type netGoal struct {
	goal
	who string // whose figures
}

// ended is the share of the machine's CPU time from which on a missed goal is reported as CPU-bound.
const ended = 0.9

var netGoals = func() []netGoal {
	var list []netGoal
	add := func(who, group, cells, what string, col column, most bool, bound float64) {
		list = append(list, netGoal{goal{group, cells, what, col, most, bound}, who})
	}
	trip := func(v value) column { return column{value: inTrips(v), format: exact} }
	for _, d := range trips {
		at := fmt.Sprintf("N = ., %v, (1|16|64) ", d)
		add(nameOwn, groupDistance, at, "lock p50 in round trips", trip(lockP50), true, 1.15)
		add(nameOwn, groupDistance, at, "unlock p50 in round trips", trip(unlockP50), true, 1.15)
		add(nameOwn, groupDistance, fmt.Sprintf("N = ., %v, ", d), "throughput ÷ (callers ÷ 2 round trips)", column{value: share, format: exact}, false, 0.85)
	}
	for _, d := range trips {
		add(nameOwn, groupHandOff, fmt.Sprintf("N = 3, %v, 2 × ", d), "hand-off between processes in round trips", trip(handOff), true, 1.6)
	}
	for _, d := range trips[:4] {
		add(nameOwn, groupDistance, fmt.Sprintf("N = ., %v, ", d), "failed locks and unlocks, default settings", column{value: errorsSeen, format: whole}, true, 0)
	}
	near := "N = 3, (5|20|60|80)ms$"
	add(nameOwn, groupFirst, near, "failed first locks, default settings, up to 80 ms", column{value: badLocks, format: whole}, true, 0)
	add(nameOwn, groupFirst, near, "failed first unlocks, default settings, up to 80 ms", column{value: badUnlocks, format: whole}, true, 0)
	add(nameOwnFar, groupFirst, "", "failed first locks and unlocks above 80 ms, one setting", column{value: errorsSeen, format: whole}, true, 0)
	add(nameOwn, groupFar, "", "lock p50 in round trips of the near quorum", trip(lockP50), true, 1.15)
	add(nameOwn, groupFar, "", "unlock p50 in round trips of the near quorum", trip(unlockP50), true, 1.15)
	return list
}()

// writeNetGoals writes one row for each goal, with the worst of its cells, and one for its cells that were CPU-bound.
func writeNetGoals(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Goals of caddy-redlock\n\n| | | goal | worst | raw floor in that cell | result | cells met |\n| --- | --- | ---: | ---: | ---: | --- | --- |\n")
	for _, g := range netGoals {
		g.write(b, done)
	}
}

func (g netGoal) write(b *bytes.Buffer, done []measuredCell) {
	met, cells, worst, where := 0, 0, math.NaN(), measuredCell{}
	var byCPU []string
	for _, m := range done {
		r, ok := m.of(g.who)
		if !ok || m.group != g.group || !g.covers(m.name) {
			continue
		}
		v := g.of(m, r)
		if math.IsNaN(v) {
			continue
		}
		cells++
		reached := v <= g.bound == g.most || v == g.bound
		if used := median(r.all(m.cell, busy)); !reached && used >= ended && g.bound > 0 {
			byCPU = append(byCPU, fmt.Sprintf("%s: %s (floor %s, %.0f %% busy)", m.name, g.column.format(v), g.floor(m), 100*used))
			continue
		}
		if reached {
			met++
		}
		if math.IsNaN(worst) || v > worst == g.most {
			worst, where = v, m
		}
	}
	if cells == 0 {
		return
	}
	sign, mark := "≥", "missed"
	if g.most {
		sign = "≤"
	}
	switch {
	case len(byCPU) == cells:
		mark = "CPU-bound"
	case met == cells:
		mark = "met"
	case met+len(byCPU) == cells:
		mark = "met until CPU-bound"
	}
	fmt.Fprintf(b, "| %s: %s | %s | %s %g | %s | %s | %s | %d of %d |\n", g.group, where.name, g.what, sign, g.bound, g.column.format(worst), g.floor(where), mark, met, cells)
	if len(byCPU) > 0 {
		fmt.Fprintf(b, "| | CPU-bound: %s | | | | | |\n", strings.Join(byCPU, "; "))
	}
}

// of is the median of the rounds, and all failures of all rounds.
func (g netGoal) of(m measuredCell, r result) float64 {
	if g.bound == 0 {
		return sum(r.all(m.cell, g.column.value))
	}
	return m.cellValue(r, g.column)
}

func (g netGoal) floor(m measuredCell) string {
	if r, ok := m.of(nameRaw); ok {
		return g.column.format(g.of(m, r))
	}
	return "–"
}

// latenessOf is the lateness of all delay lines with this way to the masters, and how much longer a
// PING took than the way.
func latenessOf(done []measuredCell, trip time.Duration) (p50, p99, beyond float64) {
	var p50s, p99s, beyonds []float64
	for _, m := range done {
		if m.group != groupDistance || m.network.near() != trip {
			continue
		}
		for _, r := range m.results {
			for _, s := range r.samples {
				p50s, p99s = append(p50s, micros(s.Late.P50)), append(p99s, micros(s.Late.P99))
				beyonds = append(beyonds, micros(s.Trip-trip))
			}
		}
	}
	return median(p50s), median(p99s), median(beyonds)
}

package main

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
)

// goal is what this library wants to reach in some cells.
type goal struct {
	group, cells string // an expression for the beginnings of the cells' names
	what         string
	column       column
	most         bool // the bound is the most, not the least
	bound        float64
}

var goals = func() []goal {
	crowded := "N = [35], (64|256) callers"
	return []goal{
		{groupFree, crowded, "CPU ÷ redsync/go-redis", column{value: totalCPU, over: nameRedsync, format: times}, true, 0.22},
		{groupFree, crowded, "CPU ÷ redsync/rueidis", column{value: totalCPU, over: nameRueidis, format: times}, true, 0.5},
		{groupFree, crowded, "throughput ÷ redsync/go-redis", column{value: throughput, over: nameRedsync, format: times}, false, 4},
		{groupFree, crowded, "CPU ÷ raw floor (stretch)", column{value: totalCPU, over: nameRaw, format: times}, true, 2},
		{groupFree, "N = 1", "p50 ÷ redsync/rueidis", column{value: bothP50, over: nameRueidis, format: times}, true, 1},
		{groupFree, "N = 1", "CPU ÷ redsync/rueidis", column{value: totalCPU, over: nameRueidis, format: times}, true, 1},
		{groupFree, "N = 3, 1 caller", "p50 ÷ redsync/rueidis", column{value: bothP50, over: nameRueidis, format: times}, true, 1},
		{groupFree, "N = 3, 1 caller", "p50 ÷ redsync/rueidis, FailFast", column{value: bothP50, over: nameRueidisFast, format: times}, true, 1},
		{groupFree, "N = 3, 1 caller", "allocations of lock + unlock", column{value: allocs, format: exact}, true, 40},
		{groupContended, "N = 3, 32 waiters, 0s", "commands per master and turn", column{value: commands, format: exact}, true, 1.1},
		{groupContended, "N = 3", "Jain", column{value: jain, format: jainText}, false, 0.99},
		{groupBurst, "N = 3, 32 at once", "drain ÷ FIFO floor", column{value: drain, over: nameFIFO, format: times}, true, 1.5},
		{groupBurst, "N = 3, 100 at once", "drain ÷ sections alone", column{value: ofLeast, format: times}, true, 1.1},
		{groupFaults, "N = 3, 8 callers, one hung", "lock p99 ÷ healthy", column{value: hurt(lockP99), format: times}, true, 3},
		{groupFaults, "N = 3, 8 callers, one hung", "unlock p99 ÷ healthy", column{value: hurt(unlockP99), format: times}, true, 3},
	}
}()

// writeGoals compares what this library reached with what it should.
func writeGoals(b *bytes.Buffer, done []measuredCell, goals []goal) {
	b.WriteString("\n## Goals of caddy-redlock\n\n| | | goal | reached | result |\n| --- | --- | ---: | ---: | --- |\n")
	for _, g := range goals {
		for _, m := range done {
			r, ok := m.of(nameOwn)
			if !ok || m.group != g.group || !g.covers(m.name) {
				continue
			}
			v := m.cellValue(r, g.column)
			if math.IsNaN(v) {
				continue
			}
			sign, met := "≥", v >= g.bound
			if g.most {
				sign, met = "≤", v <= g.bound
			}
			mark := "missed"
			if met {
				mark = "met"
			}
			fmt.Fprintf(b, "| %s: %s | %s | %s %g | %s | %s |\n", m.group, m.name, g.what, sign, g.bound, g.column.format(v), mark)
		}
	}
}

func (g goal) covers(name string) bool {
	return regexp.MustCompile("^(" + g.cells + ")").MatchString(name)
}

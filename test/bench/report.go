package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table shows one thing of all cells of a group: a row for each cell, a column for each contestant.
type table struct {
	group, about string
	show         func(m measuredCell, r result) string
}

// figure writes the median over the rounds.
func figure(v value, format func(float64) string) func(measuredCell, result) string {
	return func(m measuredCell, r result) string { return format(median(r.all(m.cell, v))) }
}

// with writes two figures, the second one in parentheses.
func with(first, second func(measuredCell, result) string) func(measuredCell, result) string {
	return func(m measuredCell, r result) string { return first(m, r) + " (" + second(m, r) + ")" }
}

// worst writes the longest of all rounds.
func worst(v value) func(measuredCell, result) string {
	return func(m measuredCell, r result) string { return duration(slices.Max(r.all(m.cell, v))) }
}

// most writes the largest number of holders in any round.
func most(_ measuredCell, r result) string {
	n := 0
	for _, s := range r.samples {
		n = max(n, s.Most)
	}
	return strconv.Itoa(n)
}

var tables = []table{
	{groupFree, "CPU µs of client and servers for a lock and its unlock (of the servers)", with(figure(totalCPU, whole), figure(serverCPU, whole))},
	{groupFree, "p50 of a lock and its unlock (operations per second)", with(figure(bothP50, duration), figure(throughput, whole))},
	{groupFree, "Allocations (commands for each master)", with(figure(allocs, whole), figure(commands, exact))},
	{groupContended, "Commands for each master and turn (Jain's index)", with(figure(commands, exact), figure(jain, jainText))},
	{groupContended, "p50 of a hand-off (longest wait)", with(figure(handOff, duration), worst(longestWait))},
	{groupContended, "Turns per second (CPU µs of a turn)", with(figure(throughput, whole), figure(totalCPU, whole))},
	{groupFaults, "p99 of a lock (while all masters were well)", with(figure(lockP99, duration), figure(healthy(lockP99), duration))},
	{groupFaults, "p99 of an unlock (while all masters were well)", with(figure(unlockP99, duration), figure(healthy(unlockP99), duration))},
	{groupFaults, "Slowest lock", worst(func(_ cell, s sample) float64 { return micros(s.Lock.Max) })},
	{groupAtOnce, "Turns per second (CPU µs of a turn, with all servers)", with(figure(throughput, whole), figure(totalCPU, whole))},
	{groupAtOnce, "Commands for each turn, to all masters (Jain's index)", with(figure(allCommands, exact), figure(jain, jainText))},
	{groupAtOnce, "Longest wait", worst(longestWait)},
	{groupAtOnce, "Most holders at once (on average in the last quarter of the time)", with(most, figure(atEnd, exact))},
	{groupDistance, "p50 of a lock and its unlock in round trips (locks and unlocks that failed)", with(figure(inTrips, exact), figure(failed, whole))},
}

// goal is what this library wants to reach in some cells.
type goal struct {
	group, about string
	cells        string // an expression for the beginnings of the cells' names
	what         string
	value        value
	over         string // the contestant that the value is divided by, round by round
	least        bool   // the bound is the least, not the most
	bound        float64
}

var goals = func() []goal {
	const crowded, crowdedCells = "N = 3 and 5, 64 and 256 callers", "N = [35], (64|256) callers"
	return []goal{
		{groupFree, "N = 1, 1 to 256 callers", "N = 1", "CPU ÷ redsync/rueidis", totalCPU, nameRueidis, false, 1},
		{groupFree, "N = 1, 1 to 256 callers", "N = 1", "p50 ÷ redsync/rueidis", bothP50, nameRueidis, false, 1},
		{groupFree, "N = 1, 1 caller", "N = 1, 1 caller", "p50 ÷ raw floor", bothP50, nameRaw, false, 1.15},
		{groupFree, crowded, crowdedCells, "CPU ÷ redsync/go-redis", totalCPU, nameRedsync, false, 0.17},
		{groupFree, crowded, crowdedCells, "CPU ÷ redsync/rueidis", totalCPU, nameRueidis, false, 0.38},
		{groupFree, crowded, crowdedCells, "CPU ÷ raw floor", totalCPU, nameRaw, false, 2},
		{groupFree, crowded, crowdedCells, "CPU µs of each master", masterCPU, "", false, 5},
		{groupFree, "N = 3, 1 caller", "N = 3, 1 caller", "allocations", allocs, "", false, 22},
		{groupContended, "1 process × 32 waiters, 0s", "N = 3, 1 process × 32 waiters, 0s", "commands per master and turn", commands, "", false, 1.1},
		{groupContended, "1 process × 8 to 128 waiters", "N = 3, 1 process", "Jain", jain, "", true, 0.99},
		{groupFaults, "one hung", "N = 3, 8 callers, one hung", "lock p99 ÷ healthy", hurt(lockP99), "", false, 3},
		{groupFaults, "one hung", "N = 3, 8 callers, one hung", "unlock p99 ÷ healthy", hurt(unlockP99), "", false, 3},
		{groupDistance, "20 and 60 ms, 1 to 64 callers", "N = 3, (20|60)ms", "p50 in round trips", inTrips, "", false, 2.2},
	}
}()

// report writes the part of RESULTS.md that is about locks.
func report(done []measuredCell, dir string, took time.Duration) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Results\n\nWritten by `make bench` in %v, on %d CPUs, %s; [README.md](README.md) says how.\n", took.Round(time.Second), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(&b, "Absolute figures are those of one machine on one day: look at how they compare.\n")
	writeGoals(&b, done)
	group := ""
	for _, t := range tables {
		rows := slices.DeleteFunc(slices.Clone(done), func(m measuredCell) bool { return m.group != t.group })
		if len(rows) == 0 {
			continue
		}
		if t.group != group {
			group = t.group
			fmt.Fprintf(&b, "\n## %s\n", group)
		}
		t.write(&b, rows)
	}
	writeFaults(&b, done)
	return writeResults(dir, b.String(), "")
}

func (t table) write(b *bytes.Buffer, rows []measuredCell) {
	fmt.Fprintf(b, "\n%s:\n\n| |", t.about)
	for _, r := range rows[0].results {
		fmt.Fprintf(b, " %s |", r.name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(rows[0].results)) + "\n")
	for _, m := range rows {
		fmt.Fprintf(b, "| %s |", m.name)
		for _, r := range m.results {
			fmt.Fprintf(b, " %s |", t.show(m, r))
		}
		b.WriteString(strings.Repeat(" – |", len(rows[0].results)-len(m.results)) + "\n")
	}
}

// writeGoals compares what this library reached with what it should.
func writeGoals(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Goals of caddy-redlock\n\n| | | goal | reached |\n| --- | --- | ---: | ---: |\n")
	for _, g := range goals {
		sign, reached := "≤", ""
		if g.least {
			sign = "≥"
		}
		for _, m := range done {
			r, ok := m.of(nameOwn)
			if !ok || m.group != g.group || !regexp.MustCompile("^("+g.cells+")").MatchString(m.name) {
				continue
			}
			v := median(r.all(m.cell, g.value))
			if g.over != "" {
				v = m.ratio(r, g.over, g.value)
			}
			if missed := v > g.bound; missed != g.least && v != g.bound {
				reached += " **" + exact(v) + "**"
			} else {
				reached += " " + exact(v)
			}
		}
		if reached != "" {
			fmt.Fprintf(b, "| %s: %s | %s | %s %g |%s |\n", g.group, g.about, g.what, sign, g.bound, reached)
		}
	}
	b.WriteString("\nCells are in the order of the tables below; what is missed is bold.\n")
}

// writeFaults lists which operations failed, which locks two callers held at once, and which keys were left.
func writeFaults(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## What failed\n\n")
	found := false
	for _, m := range done {
		for _, r := range m.results {
			errors, overlaps, first := 0, 0, ""
			for _, s := range r.samples {
				errors += s.Errors
				overlaps += s.Overlaps
				if first == "" {
					first = strings.ReplaceAll(s.FirstError, "\n", "; ")
				}
			}
			if errors+overlaps+r.keysLeft == 0 {
				continue
			}
			found = true
			fmt.Fprintf(b, "- %s: %s, %s: %d operations failed (%.80s), %d overlaps, %s left\n", m.group, m.name, r.name, errors, first, overlaps, count(r.keysLeft, "key"))
		}
	}
	if !found {
		b.WriteString("Nothing: no operation, and no two locks at once; and no key was left.\n")
	}
}

const headingOfHTTP = "\n## HTTP\n"

// writeResults writes one part of RESULTS.md, and keeps the other as it is.
func writeResults(dir, locks, web string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, "RESULTS.md")
	former, _ := os.ReadFile(file) // there may be none
	before, after, found := strings.Cut(string(former), headingOfHTTP)
	if locks != "" {
		before = locks
	}
	if web != "" {
		after, found = web, true
	}
	if found {
		before += headingOfHTTP + after
	}
	return os.WriteFile(file, []byte(before), 0o644)
}

func orDash(format string) func(float64) string {
	return func(v float64) string {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return "–"
		}
		return fmt.Sprintf(format, v)
	}
}

var (
	exact    = orDash("%.2f")
	jainText = orDash("%.3f")
)

func whole(v float64) string {
	if v < 10 && v != math.Trunc(v) {
		return orDash("%.1f")(v)
	}
	return orDash("%.0f")(v)
}

// duration writes microseconds.
func duration(v float64) string {
	switch {
	case v < 1000:
		return orDash("%.0f µs")(v)
	case v < 1e6:
		return orDash("%.1f ms")(v / 1000)
	}
	return orDash("%.2f s")(v / 1e6)
}

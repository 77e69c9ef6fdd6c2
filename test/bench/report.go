package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
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

// of is one figure of a contestant in a cell.
type of func(m measuredCell, r result) float64

// figure is the median over the rounds.
func figure(v value) of {
	return func(m measuredCell, r result) float64 { return median(r.all(m.cell, v)) }
}

// worst is the largest of all rounds.
func worst(v value) of {
	return func(m measuredCell, r result) float64 { return slices.Max(r.all(m.cell, v)) }
}

// sum adds up all rounds.
func sum(v value) of {
	return func(m measuredCell, r result) (total float64) {
		for _, one := range r.all(m.cell, v) {
			total += one
		}
		return total
	}
}

var (
	inTurns = []string{groupContended, groupAtOnce}
	counted = []string{groupFree, groupContended, groupAtOnce, groupDistance, groupSlots, groupKeys, groupHeld} // the servers' CPU time and commands are known
)

// figures are the columns of results.csv, and the groups of cells that have them; none is all of them.
var figures = []struct {
	name   string
	of     of
	groups []string
}{
	{"operations per second", figure(throughput), nil},
	{cpuColumn, figure(totalCPU), counted},
	{mastersColumn, figure(serverCPU), counted},
	{commandsColumn, figure(allCommands), counted},
	{"allocations", figure(allocs), nil},
	{p50Column, figure(bothP50), nil},
	{"lock p99 µs", figure(lockP99), nil},
	{"unlock p99 µs", figure(unlockP99), nil},
	{"lock max µs", worst(slowestLock), nil},
	{"healthy lock p99 µs", figure(healthy(lockP99)), []string{groupFaults}},
	{"healthy unlock p99 µs", figure(healthy(unlockP99)), []string{groupFaults}},
	{"hand-off p50 µs", figure(handOff), []string{groupContended}},
	{"longest wait µs", worst(longestWait), inTurns},
	{"Jain's index", figure(jain), inTurns},
	{slotsColumn, figure(inUse), []string{groupSlots}},
	{"most holders", worst(most), []string{groupAtOnce, groupSlots}},
	{"holders at the end", figure(atEnd), []string{groupAtOnce}},
	{"p50 in round trips", figure(inTrips), []string{groupDistance}},
	{"failed", sum(failed), nil},
	{"overlaps", sum(overlaps), nil},
	{"keys left", func(_ measuredCell, r result) float64 { return float64(r.keysLeft) }, nil},
}

// These columns have figures of HTTP too.
const (
	cpuColumn      = "CPU µs with masters"
	mastersColumn  = "CPU µs of masters"
	commandsColumn = "commands"
	p50Column      = "p50 µs"
	slotsColumn    = "slots in use %"
)

// table shows the cells of a group: a row for each cell, a column for each contestant.
type table struct {
	group, about string
	cells        string // an expression for the names of the cells that are shown
	show         func(m measuredCell, r result) string
}

// tables follow the table of uncontended locks. The other groups and cells are in results.csv alone.
var tables = []table{
	{groupContended, "For locks that are released at once, the commands for each of three masters and hold (longest wait in ms)", ", 0s$", func(m measuredCell, r result) string {
		return fmt.Sprintf("%s (%s)", exact(figure(commands)(m, r)), millis(worst(longestWait)(m, r)))
	}},
	{groupFaults, "p99 of a lock and of an unlock (slowest lock) in ms, on three masters", "", func(m measuredCell, r result) string {
		return fmt.Sprintf("%s, %s (%s)", millis(figure(lockP99)(m, r)), millis(figure(unlockP99)(m, r)), millis(worst(slowestLock)(m, r)))
	}},
}

// curves are the groups of which tools/curves draws a picture, in place of a table.
var curves = []struct{ group, picture string }{{groupSlots, "slots"}, {groupKeys, "keys"}, {groupHeld, "held"}}

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
	const crowded, crowdedCells = "N ≥ 3, ≥ 64 callers", "N = [35], (64|256) callers"
	return []goal{
		{groupFree, "N = 1", "N = 1", "CPU ÷ redsync/rueidis", totalCPU, nameRueidis, false, 1},
		{groupFree, "N = 1", "N = 1", "p50 ÷ redsync/rueidis", bothP50, nameRueidis, false, 1},
		{groupFree, "N = 1, 1 caller", "N = 1, 1 caller", "p50 ÷ raw floor", bothP50, nameRaw, false, 1.15},
		{groupFree, crowded, crowdedCells, "CPU ÷ redsync/go-redis", totalCPU, nameRedsync, false, 0.17},
		{groupFree, crowded, crowdedCells, "CPU ÷ redsync/rueidis", totalCPU, nameRueidis, false, 0.38},
		{groupFree, crowded, crowdedCells, "CPU ÷ raw floor", totalCPU, nameRaw, false, 2},
		{groupFree, crowded, crowdedCells, "CPU µs of each master", masterCPU, "", false, 5},
		{groupFree, "N = 3, 1 caller", "N = 3, 1 caller", "allocations", allocs, "", false, 22},
		{groupContended, "1 process × 32 waiters, 0s", "1 process × 32 waiters, 0s", "commands per master", commands, "", false, 1.1},
		{groupContended, "1 process", "1 process", "Jain's index", jain, "", true, 0.99},
		{groupFaults, "one hung", "8 callers, one hung", "lock p99 ÷ healthy", hurt(lockP99), "", false, 3},
		{groupFaults, "one hung", "8 callers, one hung", "unlock p99 ÷ healthy", hurt(unlockP99), "", false, 3},
		{groupDistance, "round trips of 20 and 60 ms", "(20|60)ms", "p50 in round trips", inTrips, "", false, 2.2},
	}
}()

// report writes the part of RESULTS.md that is about locks, and their figures into results.csv.
func report(done []measuredCell, dir string, took time.Duration) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Results\n\nWritten by `make bench` in %v, on %d CPUs, %s. [README.md](README.md) says how it measures, and [%s](%s) has all figures.\n", took.Round(time.Second), runtime.NumCPU(), runtime.Version(), csvFile, csvFile)
	b.WriteString("Absolute figures are those of one machine on one day: look at how they compare.\n")
	writeGoals(&b, done)
	writeFree(&b, done)
	for _, t := range tables {
		hidden := func(m measuredCell) bool { return !regexp.MustCompile(t.cells).MatchString(m.name) }
		if rows := slices.DeleteFunc(ofGroup(done, t.group), hidden); len(rows) > 0 {
			t.write(&b, rows)
		}
	}
	writeCurves(&b, done)
	writeFaults(&b, done)
	return errors.Join(writeResults(dir, b.String(), ""), writeFigures(dir, figureRows(done), func(group string) bool { return group == groupHTTP }))
}

func ofGroup(done []measuredCell, group string) []measuredCell {
	return slices.DeleteFunc(slices.Clone(done), func(m measuredCell) bool { return m.group != group })
}

func (t table) write(b *bytes.Buffer, rows []measuredCell) {
	fmt.Fprintf(b, "\n## %s\n\n%s:\n\n| |", t.group, t.about)
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

func writeCurves(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Slots, many keys, many locks\n")
	for _, c := range curves {
		if len(ofGroup(done, c.group)) > 0 {
			fmt.Fprintf(b, "\n![%s](../../docs/images/%s.svg)\n", c.group, c.picture)
		}
	}
}

// writeFree compares this library's uncontended locks with the others'. It leaves out what shows nothing new.
func writeFree(b *bytes.Buffer, done []measuredCell) {
	rows := slices.DeleteFunc(ofGroup(done, groupFree), func(m measuredCell) bool { _, ok := m.of(nameOwn); return !ok || m.masters == 5 })
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\nA lock and its unlock on N masters: the CPU of client and servers, the p50, and both divided by %s's.\n\n", groupFree, nameRueidis)
	b.WriteString("| | CPU µs | ÷ | p50 µs | ÷ |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, m := range rows {
		own, _ := m.of(nameOwn)
		fmt.Fprintf(b, "| %s |", m.name)
		for _, v := range []value{totalCPU, bothP50} {
			fmt.Fprintf(b, " %s | %s |", whole(figure(v)(m, own)), exact(m.ratio(own, nameRueidis, v)))
		}
		b.WriteString("\n")
	}
}

// writeGoals compares what this library reached with what it should.
func writeGoals(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Goals of caddy-redlock\n\n| | goal | worst cell |\n| --- | ---: | ---: |\n")
	for _, g := range goals {
		sign, worse := "≤", math.Max
		if g.least {
			sign, worse = "≥", math.Min
		}
		reached := math.NaN()
		for _, m := range ofGroup(done, g.group) {
			r, ok := m.of(nameOwn)
			if !ok || !regexp.MustCompile("^("+g.cells+")").MatchString(m.name) {
				continue
			}
			v := figure(g.value)(m, r)
			if g.over != "" {
				v = m.ratio(r, g.over, g.value)
			}
			if math.IsNaN(reached) {
				reached = v
			}
			reached = worse(reached, v)
		}
		text := exact(reached)
		if worse(reached, g.bound) != g.bound {
			text = "**" + text + "**"
		}
		if !math.IsNaN(reached) {
			fmt.Fprintf(b, "| %s: %s | %s %g | %s |\n", g.about, g.what, sign, g.bound, text)
		}
	}
	b.WriteString("\nWhat is missed is bold.\n")
}

// writeFaults lists which operations failed, which locks two callers held at once, and which keys were left.
func writeFaults(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## What failed\n\n")
	var names []string
	found := make(map[string]*faults)
	for _, m := range done {
		for _, r := range m.results {
			here := faults{keysLeft: r.keysLeft, cells: 1}
			for _, s := range r.samples {
				here.failed += s.Errors
				here.overlaps += s.Overlaps
				if here.first == "" {
					here.first = s.FirstError
				}
			}
			if here.failed+here.overlaps+here.keysLeft == 0 {
				continue
			}
			if all := found[r.name]; all != nil {
				all.add(here)
				continue
			}
			names = append(names, r.name)
			found[r.name] = &here
		}
	}
	for _, name := range names {
		f := found[name]
		fmt.Fprintf(b, "- %s, in %s:", name, count(f.cells, "cell"))
		if f.failed > 0 {
			fmt.Fprintf(b, " %s failed (%.80s).", count(f.failed, "operation"), strings.ReplaceAll(f.first, "\n", "; "))
		}
		if f.overlaps > 0 {
			fmt.Fprintf(b, " %s.", count(f.overlaps, "overlap"))
		}
		if f.keysLeft > 0 {
			fmt.Fprintf(b, " %s left.", count(f.keysLeft, "key"))
		}
		b.WriteString("\n")
	}
	if len(names) == 0 {
		b.WriteString("Nothing: no operation, and no two locks at once; and no key was left.\n")
	}
}

// faults are what went wrong for one contestant.
type faults struct {
	cells, failed, overlaps, keysLeft int
	first                             string // error
}

func (f *faults) add(other faults) {
	f.cells += other.cells
	f.failed += other.failed
	f.overlaps += other.overlaps
	f.keysLeft += other.keysLeft
	if f.first == "" {
		f.first = other.first
	}
}

const headingOfHTTP = "\n## " + groupHTTP + "\n"

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

const csvFile = "results.csv"

// row is one of results.csv, by the names of its columns.
type row map[string]string

func newRow(group, cell, contestant string) row {
	return row{"group": group, "cell": cell, "contestant": contestant}
}

// set writes a figure with four digits.
func (r row) set(column string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
		r[column] = strconv.FormatFloat(rounded, 'f', -1, 64)
	}
}

func figureRows(done []measuredCell) (rows []row) {
	for _, m := range done {
		for _, r := range m.results {
			one := newRow(m.group, m.name, r.name)
			for _, f := range figures {
				if f.groups == nil || slices.Contains(f.groups, m.group) {
					one.set(f.name, f.of(m, r))
				}
			}
			rows = append(rows, one)
		}
	}
	return rows
}

// writeFigures writes the rows of one run into results.csv. It keeps the rows of the groups that the other run writes.
func writeFigures(dir string, rows []row, kept func(group string) bool) error {
	columns := []string{"group", "cell", "contestant"}
	for _, f := range figures {
		columns = append(columns, f.name)
	}
	columns = append(columns, httpColumns...)
	file := filepath.Join(dir, csvFile)
	former, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	records, err := csv.NewReader(bytes.NewReader(former)).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for i := 1; i < len(records); i++ {
		one := make(row)
		for k, name := range records[0] {
			one[name] = records[i][k]
		}
		if kept(one["group"]) {
			rows = append(rows, one)
		}
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	records = [][]string{columns}
	for _, one := range rows {
		var record []string
		for _, name := range columns {
			record = append(record, one[name])
		}
		records = append(records, record)
	}
	if err := w.WriteAll(records); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

func orDash(format string) func(float64) string {
	return func(v float64) string {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return "–"
		}
		return fmt.Sprintf(format, v)
	}
}

var exact = orDash("%.2f")

func whole(v float64) string {
	if v < 10 && v != math.Trunc(v) {
		return orDash("%.1f")(v)
	}
	return orDash("%.0f")(v)
}

// millis writes microseconds as milliseconds.
func millis(v float64) string {
	if v < 1000 {
		return exact(v / 1000)
	}
	return whole(v / 1000)
}

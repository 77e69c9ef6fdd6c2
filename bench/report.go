package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// column is a column of a table: a value, or its ratio to another contestant's.
type column struct {
	title  string
	value  value
	over   string // the contestant that the value is divided by, round by round
	worst  bool   // of all rounds, not the median
	format func(float64) string
}

// turns are the columns of all who want one key again and again.
var turns = []column{
	{title: "commands per master and turn", value: commands, format: exact},
	{title: "Jain", value: jain, format: jainText},
	{title: "starved", value: starved, format: whole},
	{title: "longest wait", value: longestWait, worst: true, format: duration},
	{title: "turns/s", value: throughput, format: whole},
	{title: "CPU µs", value: totalCPU, format: whole},
}

var tables = []struct {
	group   string
	about   string
	columns []column
}{
	{groupFree, "Every caller locks and unlocks keys of its own.\nAn operation is a lock and its unlock.", []column{
		{title: "throughput ÷ redsync/go-redis", value: throughput, over: nameRedsync, format: times},
		{title: "CPU ÷ redsync/go-redis", value: totalCPU, over: nameRedsync, format: times},
		{title: "CPU ÷ redsync/rueidis", value: totalCPU, over: nameRueidis, format: times},
		{title: "CPU ÷ raw floor", value: totalCPU, over: nameRaw, format: times},
		{title: "p50 ÷ redsync/rueidis, FailFast", value: bothP50, over: nameRueidisFast, format: times},
		{title: "ops/s", value: throughput, format: whole},
		{title: "CPU µs client", value: clientCPU, format: whole},
		{title: "CPU µs servers", value: serverCPU, format: whole},
		{title: "lock p50 / p99", value: lockP50, format: duration},
		{title: "", value: lockP99, format: duration},
		{title: "unlock p50 / p99", value: unlockP50, format: duration},
		{title: "", value: unlockP99, format: duration},
		{title: "commands per master", value: commands, format: exact},
		{title: "allocs", value: allocs, format: whole},
	}},
	{groupContended, "All callers want the same key, again and again.", append([]column{
		{title: "turns/s ÷ redsync/go-redis", value: throughput, over: nameRedsync, format: times},
		{title: "turns/s ÷ FIFO floor", value: throughput, over: nameFIFO, format: times},
		{title: "CPU ÷ redsync/go-redis", value: totalCPU, over: nameRedsync, format: times},
		{title: "CPU ÷ FIFO floor", value: totalCPU, over: nameFIFO, format: times},
	}, turns...)},
	{groupProcesses, "All callers want the same key, again and again, from two processes.", append([]column{
		{title: "turns/s ÷ redsync/go-redis", value: throughput, over: nameRedsync, format: times},
		{title: "turns/s ÷ rueidislock", value: throughput, over: nameRueLock, format: times},
		{title: "CPU ÷ redsync/go-redis", value: totalCPU, over: nameRedsync, format: times},
	}, turns...)},
	{groupBurst, "All callers come at once, for one turn each, and wait for at most 10 s.", []column{
		{title: "drain ÷ FIFO floor", value: drain, over: nameFIFO, format: times},
		{title: "drain ÷ sections alone", value: ofLeast, format: times},
		{title: "drain ÷ redsync/go-redis", value: drain, over: nameRedsync, format: times},
		{title: "commands per master and turn", value: commands, format: exact},
		{title: "given up", value: pending, format: whole},
		{title: "drain", value: drain, format: duration},
		{title: "CPU µs a turn", value: totalCPU, format: whole},
	}},
	{groupFaults, "Every caller locks and unlocks keys of its own, first with all masters up, then with one that is stopped (hung: its connections stay open) or killed.", []column{
		{title: "lock p99 ÷ healthy", value: hurt(lockP99), format: times},
		{title: "unlock p99 ÷ healthy", value: hurt(unlockP99), format: times},
		{title: "throughput ÷ healthy", value: hurt(throughput), format: times},
		{title: "lock p99 healthy / now", value: healthy(lockP99), format: duration},
		{title: "", value: lockP99, format: duration},
		{title: "unlock p99 healthy / now", value: healthy(unlockP99), format: duration},
		{title: "", value: unlockP99, format: duration},
		{title: "slowest lock", value: func(_ cell, s sample) float64 { return micros(s.Lock.Max) }, worst: true, format: duration},
		{title: "slowest unlock", value: func(_ cell, s sample) float64 { return micros(s.Unlock.Max) }, worst: true, format: duration},
	}},
}

// report writes RESULTS.md and the plots.
func report(done []measuredCell, dir string, took time.Duration) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Results\n\nWritten by `make bench` in %v, on %d CPUs, %s.\n[README.md](README.md) explains what the figures mean and how each contestant is configured.\n", took.Round(time.Second), runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(&b, "A ratio is the median of the rounds' ratios.\nAbsolute figures are those of one machine on one day.\n")
	writeGoals(&b, done, goals)
	for _, t := range tables {
		heading := false
		for _, m := range done {
			if m.group != t.group {
				continue
			}
			if !heading {
				fmt.Fprintf(&b, "\n## %s\n\n%s\n", t.group, t.about)
				heading = true
			}
			fmt.Fprintf(&b, "\n### %s\n\n", m.name)
			m.write(&b, t.columns)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "RESULTS.md"), b.Bytes(), 0o644); err != nil {
		return err
	}
	return plots(done, filepath.Join(dir, "plots"))
}

func (m measuredCell) write(b *bytes.Buffer, columns []column) {
	header, line := "|", "| --- |"
	for _, col := range columns {
		if col.title != "" { // one without a title joins its neighbor on the left
			header += " | " + col.title
			line += " ---: |"
		}
	}
	fmt.Fprintf(b, "%s | keys left | errors |\n%s ---: | ---: |\n", header, line)
	for _, r := range m.results {
		fmt.Fprintf(b, "| %s", r.name)
		for _, col := range columns {
			separator := " | "
			if col.title == "" {
				separator = " / "
			}
			b.WriteString(separator + col.format(m.cellValue(r, col)))
		}
		fmt.Fprintf(b, " | %d | %s |\n", r.keysLeft, r.errors())
	}
}

func (m measuredCell) cellValue(r result, col column) float64 {
	switch {
	case col.over != "":
		return m.ratio(r, col.over, col.value)
	case col.worst:
		return slices.Max(r.all(m.cell, col.value))
	}
	return median(r.all(m.cell, col.value))
}

// errors returns how many operations failed, with the first error, and how many locks two callers held at once.
func (r result) errors() string {
	n, first, overlaps := 0, "", 0
	for _, s := range r.samples {
		n += s.Errors
		overlaps += s.Overlaps
		if first == "" {
			first = s.FirstError
		}
	}
	text := fmt.Sprint(n)
	if n > 0 {
		first = strings.NewReplacer("|", "/", "\n", "; ").Replace(first)
		text += fmt.Sprintf(" (%.120s)", first)
	}
	if overlaps > 0 {
		text += fmt.Sprintf(", **%d overlaps**", overlaps)
	}
	return text
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

func times(v float64) string {
	if v >= 100 {
		return orDash("%.0f")(v)
	}
	return orDash("%.2f")(v)
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

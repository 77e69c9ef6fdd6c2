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

// view is one table of a group: cells down, contestants across, and these values in each field.
type view struct {
	group, about string
	columns      []column
}

var bothTrips = []column{{value: inTrips(lockP50), format: exact}, {value: inTrips(unlockP50), format: exact}}

var views = []view{
	{groupDistance, "p50 of lock / unlock, in round trips", bothTrips},
	{groupDistance, "p99 of lock / unlock, in round trips", []column{{value: inTrips(lockP99), format: exact}, {value: inTrips(unlockP99), format: exact}}},
	{groupDistance, "Throughput ÷ (callers ÷ 2 round trips) / how busy the machine was", []column{{value: share, format: exact}, {value: busy, format: exact}}},
	{groupDistance, "CPU of the clients and the servers for a lock and its unlock ÷ redsync/rueidis", []column{{value: totalCPU, over: nameRueidis, format: times}}},
	{groupHandOff, "p50 from the beginning of an unlock until another process / another caller of the same process has the lock, in round trips", []column{{value: inTrips(handOff), format: exact}, {value: inTrips(pass), format: exact}}},
	{groupHandOff, "Jain's index of turns / turns in ten round trips", []column{{value: jain, format: jainText}, {value: turnsInTrips, format: exact}}},
	{groupFar, "p50 of lock / unlock, in round trips of the near quorum", bothTrips},
	{groupFirst, "Failed try-locks, of 40 first ones / failed unlocks of the others", []column{{value: badLocks, format: whole}, {value: badUnlocks, format: whole}}},
	{groupFirst, "Slowest first lock, in round trips (two or more, because it makes the connection)", []column{{value: inTrips(func(_ cell, s sample) float64 { return micros(s.Lock.Max) }), worst: true, format: exact}}},
	{groupLoss, "1 % of the packets lost in each direction: p50 of lock / unlock, in round trips", bothTrips},
	{groupLoss, "Throughput ÷ (callers ÷ 2 round trips)", []column{{value: share, format: exact}}},
	{groupStalls, "Nothing arrives for 300 ms, every second: p50 of lock / unlock, in round trips", bothTrips},
	{groupStalls, "Throughput ÷ (callers ÷ 2 round trips)", []column{{value: share, format: exact}}},
}

var turnsInTrips value = func(_ cell, s sample) float64 {
	return float64(s.turns()) / (s.Elapsed.Seconds() / s.Trip.Seconds()) * 10
}

// netReport writes NETWORK.md and its plots.
func netReport(done []measuredCell, dir string, took time.Duration) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Network\n\nWritten by `make bench-net` in %v, on %d CPUs, %s.\n[README.md](README.md#network) explains what the figures mean, and how the network is simulated.\n", took.Round(time.Second), runtime.NumCPU(), runtime.Version())
	b.WriteString("A round trip is that of a PING through the same delay line, to a quorum of the masters, measured just before each slice.\n")
	writeNetGoals(&b, done)
	writePrecision(&b, done)
	group := ""
	for _, v := range views {
		v.write(&b, done, &group)
	}
	writeFailures(&b, done)
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "NETWORK.md"), b.Bytes(), 0o644); err != nil {
		return err
	}
	return plots(done, filepath.Join(dir, "plots"))
}

func writePrecision(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Precision of the delay line\n\nThe table shows how late the line handed on a chunk, under the load of the cells (medians over the slices), and by how much a PING exceeded the configured round trip.\n")
	b.WriteString("That excess includes two such chunks, the loopback interface, the server, and waking the process that sent the PING.\n\n")
	b.WriteString("| round trip | late, p50 | late, p99 | PING, excess |\n| --- | ---: | ---: | ---: |\n")
	for _, trip := range trips {
		if p50, p99, beyond := latenessOf(done, trip); !math.IsNaN(p50) {
			fmt.Fprintf(b, "| %v | %s | %s | %s |\n", trip, duration(p50), duration(p99), duration(beyond))
		}
	}
}

func (v view) write(b *bytes.Buffer, done []measuredCell, group *string) {
	names := []string{}
	for _, m := range done {
		for _, r := range m.results {
			if m.group == v.group && !slices.Contains(names, r.name) {
				names = append(names, r.name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	if *group != v.group {
		*group = v.group
		fmt.Fprintf(b, "\n## %s\n", v.group)
	}
	fmt.Fprintf(b, "\n%s:\n\n| | %s |\n| --- |%s\n", v.about, strings.Join(names, " | "), strings.Repeat(" ---: |", len(names)))
	for _, m := range done {
		if m.group != v.group {
			continue
		}
		fmt.Fprintf(b, "| %s |", m.name)
		for _, name := range names {
			fmt.Fprintf(b, " %s |", v.field(m, name))
		}
		b.WriteString("\n")
	}
}

func (v view) field(m measuredCell, name string) string {
	r, ok := m.of(name)
	if !ok {
		return ""
	}
	var texts []string
	for _, col := range v.columns {
		text := col.format(m.cellValue(r, col))
		if v.group == groupFirst && !col.worst {
			text = col.format(sum(r.all(m.cell, col.value)))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " / ")
}

func writeFailures(b *bytes.Buffer, done []measuredCell) {
	b.WriteString("\n## Failures\n\nCells that are not listed here had no failures, and left no key.\n\n| | | turns | failed locks | failed unlocks | keys left | first error |\n| --- | --- | ---: | ---: | ---: | ---: | --- |\n")
	for _, m := range done {
		for _, r := range m.results {
			turns, locks, unlocks := 0, sum(r.all(m.cell, badLocks)), sum(r.all(m.cell, badUnlocks))
			for _, s := range r.samples {
				turns += s.turns()
			}
			if locks+unlocks > 0 || r.keysLeft > 0 {
				fmt.Fprintf(b, "| %s: %s | %s | %d | %.0f | %.0f | %d | %s |\n", m.group, m.name, r.name, turns, locks, unlocks, r.keysLeft, r.errors())
			}
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestReport: every figure's cells and contestants are among those that are measured, so that a whole
// run ends with all tables and plots.
func TestReport(t *testing.T) {
	var done []measuredCell
	for _, c := range append(cells(false), netCells(false)...) {
		m := measuredCell{cell: c}
		for i, name := range c.contestants {
			healthy := sample{outcome: outcome{Turns: []int{2}, Elapsed: time.Second}}
			s := sample{Healthy: &healthy, Commands: 4, Trip: time.Millisecond}
			s.Turns, s.Elapsed, s.CPU = []int{i + 1, 2}, time.Duration(i+1)*time.Second, time.Millisecond
			s.Lock = latencies{P50: time.Millisecond, P99: time.Duration(i+1) * time.Second}
			m.results = append(m.results, result{name: name, samples: []sample{s}})
		}
		done = append(done, m)
	}
	dir := t.TempDir()
	if saved := os.Getenv("PLOTS"); saved != "" {
		dir = saved // to look at them
	}
	if err := report(done, dir, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := netReport(done, dir, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		if info, err := os.Stat(filepath.Join(dir, "plots", f.file+".svg")); err != nil || info.Size() == 0 {
			t.Errorf("figure %s: %v", f.file, err)
		}
	}
}

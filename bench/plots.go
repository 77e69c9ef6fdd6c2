package main

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// figure is one plot: bars of some contestants in some cells.
type figure struct {
	file, title, y string
	group          string
	cells          []string // their names
	labels         []string // of the cells
	contestants    []string
	column         column
	logarithmic    bool // from 100 µs on
}

var figures = []figure{
	{
		file: "throughput", title: "Lock + unlock of free keys, 3 masters", y: "throughput ÷ redsync/go-redis",
		group: groupFree, cells: callersOf3, labels: callerLabels, contestants: shown,
		column: column{value: throughput, over: nameRedsync},
	},
	{
		file: "cpu", title: "CPU of client and servers for a lock + unlock, 3 masters", y: "÷ redsync/go-redis (less is better)",
		group: groupFree, cells: callersOf3, labels: callerLabels, contestants: shown,
		column: column{value: totalCPU, over: nameRedsync},
	},
	{
		file: "commands", title: "32 wait for one key, 3 masters", y: "commands per master and turn (less is better)",
		group: groupContended, cells: waitersOf3, labels: holdLabels, contestants: waitersShown,
		column: column{value: commands},
	},
	{
		file: "fairness", title: "32 wait for one key, 3 masters", y: "Jain's index of turns (1: all callers have equally many)",
		group: groupContended, cells: waitersOf3, labels: holdLabels, contestants: waitersShown,
		column: column{value: jain},
	},
	{
		file: "hung", title: "99th percentile with one of 3 masters hung", y: "logarithmic (less is better)",
		group: groupFaults, cells: []string{"N = 3, 8 callers, one hung"}, labels: []string{"lock", "unlock"},
		contestants: []string{nameOwn, nameRedsync, nameRedsync50, nameRueidis, nameRueLock}, logarithmic: true,
	},
	{
		file: "distance", title: "Lock of a free key over a network, 3 masters, 64 callers", y: "p50 in round trips (less is better)",
		group: groupDistance, cells: at3, labels: []string{"0.5 ms", "5 ms", "20 ms", "60 ms", "150 ms"},
		contestants: []string{nameOwn, nameRedsync, nameRueidis, nameRaw}, column: column{value: inTrips(lockP50)},
	},
}

var (
	at3          = []string{"N = 3, 500µs, 64 callers", "N = 3, 5ms, 64 callers", "N = 3, 20ms, 64 callers", "N = 3, 60ms, 64 callers", "N = 3, 150ms, 64 callers"}
	callersOf3   = []string{"N = 3, 1 caller", "N = 3, 16 callers", "N = 3, 64 callers", "N = 3, 256 callers"}
	callerLabels = []string{"1 caller", "16 callers", "64 callers", "256 callers"}
	waitersOf3   = []string{"N = 3, 32 waiters, 0s", "N = 3, 32 waiters, 1ms", "N = 3, 32 waiters, 5ms"}
	holdLabels   = []string{"held for 0 ms", "1 ms", "5 ms"}
	shown        = []string{nameOwn, nameRedsync, nameRueidis, nameRueLock, nameRaw}
	waitersShown = []string{nameOwn, nameRedsync, nameRedsync10, nameRueidis, nameRueLock}
)

var colours = map[string]color.Color{
	nameOwn:       color.RGBA{0x00, 0x72, 0xb2, 0xff},
	nameRedsync:   color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	nameRedsync10: color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	nameRedsync50: color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	nameRueidis:   color.RGBA{0x00, 0x9e, 0x73, 0xff},
	nameRueLock:   color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	nameRaw:       color.RGBA{0x99, 0x99, 0x99, 0xff},
}

func init() { plot.DefaultFont.Variant = "Sans" }

// plots draws the figures whose cells were measured.
func plots(done []measuredCell, dir string) error {
	for _, f := range figures {
		bars, ok := f.bars(done)
		if !ok {
			continue
		}
		if err := f.draw(bars, filepath.Join(dir, f.file+".svg")); err != nil {
			return err
		}
	}
	return nil
}

// bars are the values by contestant; not ok where a cell is missing.
func (f figure) bars(done []measuredCell) (map[string][]float64, bool) {
	bars := make(map[string][]float64)
	for _, name := range f.cells {
		found := false
		for _, m := range done {
			if m.group != f.group || m.name != name {
				continue
			}
			for _, contestant := range f.contestants {
				r, ok := m.of(contestant)
				if !ok {
					return nil, false
				}
				values := []float64{}
				if f.column.value != nil {
					values = append(values, m.cellValue(r, f.column))
				} else {
					values = append(values, median(r.all(m.cell, lockP99)), median(r.all(m.cell, unlockP99)))
				}
				bars[contestant] = append(bars[contestant], values...)
			}
			found = true
		}
		if !found {
			return nil, false
		}
	}
	return bars, true
}

const least = 100 // µs, the foot of a logarithmic bar

func (f figure) draw(bars map[string][]float64, file string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = f.title, f.y
	p.Y.Min = 0
	p.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	width := vg.Points(90 / float64(len(f.contestants)))
	for i, name := range f.contestants {
		values := make(plotter.Values, len(bars[name]))
		for k, v := range bars[name] {
			if math.IsNaN(v) {
				v = 0
			}
			if f.logarithmic {
				v = math.Log10(max(v, least) / least)
			}
			values[k] = v
		}
		chart, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		chart.Color, chart.LineStyle.Width = colours[name], 0
		chart.Offset = width * vg.Length(float64(i)-float64(len(f.contestants)-1)/2)
		p.Add(chart)
		p.Legend.Add(cmp.Or(shorter[name], name), chart)
	}
	if f.logarithmic {
		p.Y.Tick.Marker = decades{}
		p.Y.Max = 5.5
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(3)
	p.Y.Max *= 1.35 // room for the legend
	p.NominalX(f.labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(f.labels))-0.5
	return p.Save(vg.Points(560), vg.Points(320), file)
}

var shorter = map[string]string{nameRaw: "raw floor (no library)"}

// decades are the ticks of a logarithmic axis.
type decades struct{}

func (decades) Ticks(_, high float64) []plot.Tick {
	var ticks []plot.Tick
	for d := range int(min(high, 5)) + 1 {
		text := strings.NewReplacer(".00", "", ".0", "").Replace(duration(least * math.Pow10(d)))
		ticks = append(ticks, plot.Tick{Value: float64(d), Label: text})
	}
	if len(ticks) == 0 {
		panic(fmt.Sprintf("no ticks up to %g", high))
	}
	return ticks
}

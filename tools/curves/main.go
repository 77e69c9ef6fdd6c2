// Command curves draws the curves of docs/images from the results of make bench. make images runs it, in the root of the repository.
package main

import (
	"encoding/csv"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

const (
	results = "test/bench/results.csv"

	left, top, width, height = 60, 40, 420, 220
)

// picture is curves of one figure, for each contestant, over the cells of a group.
type picture struct {
	file, title, along string
	group, cells       string // what begins the names of the cells; the number behind that is along the picture
	figure             string
	unit               float64   // what the figure is divided by
	marks              []float64 // on the logarithmic scale, from the least to the most
	contestants        []string
}

var pictures = []picture{
	{
		file: "cost", title: "CPU µs of client and three masters for a lock and its unlock", along: "callers at once",
		group: "Uncontended", cells: "N = 3, ", figure: "CPU µs with masters", unit: 1, marks: []float64{20, 50, 100, 200, 500, 1000},
		contestants: []string{"caddy-redlock", "redsync/rueidis", "redsync/go-redis"},
	},
	{
		file: "slots", title: "Commands of a turn on all masters, where all slots are wanted", along: "slots",
		group: "Slots in use", figure: "commands", unit: 1, marks: []float64{5, 10, 20, 50, 100, 200},
		contestants: []string{"caddy-redlock, 3 masters", "sorted set", "counter"},
	},
	{
		file: "keys", title: "Turns per second, where processes want the same 500 keys", along: "processes",
		group: "Many contended keys", figure: "operations per second", unit: 1, marks: []float64{100, 1000, 10_000, 100_000},
		contestants: []string{"caddy-redlock", "redsync/rueidis"},
	},
	{
		file: "held", title: "ms that a fresh lock takes at most", along: "locks that the process holds",
		group: "Many held locks", figure: "lock max µs", unit: 1000, marks: []float64{1, 10, 100, 1000, 10_000},
		contestants: []string{"caddy-redlock"},
	},
}

var colors = []string{"#1b7f4d", "#b35900", "#7a5195"}

func main() {
	log.SetFlags(0)
	for _, p := range pictures {
		svg, err := p.draw()
		if err == nil {
			err = os.WriteFile(p.path(), []byte(svg), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

func (p picture) path() string { return "docs/images/" + p.file + ".svg" }

// read returns the numbers along the picture, and the figures of each contestant for them.
func (p picture) read() (along []string, of [][]float64, err error) {
	f, err := os.Open(results)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", results, err)
	}
	const group, cell, contestant = 0, 1, 2
	column := slices.Index(rows[0], p.figure)
	of = make([][]float64, len(p.contestants))
	for _, row := range rows {
		n, ours := strings.CutPrefix(row[cell], p.cells)
		k := slices.Index(p.contestants, row[contestant])
		if row[group] != p.group || !ours || k < 0 {
			continue
		}
		v, err := strconv.ParseFloat(row[column], 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", results, err)
		}
		if k == 0 {
			n, _, _ = strings.Cut(n, " ")
			along = append(along, n)
		}
		of[k] = append(of[k], v/p.unit)
	}
	if len(along) < 2 {
		return nil, nil, fmt.Errorf("%s has too few cells of %q", results, p.group)
	}
	return along, of, nil
}

func (p picture) draw() (string, error) {
	along, of, err := p.read()
	if err != nil {
		return "", err
	}
	least, most := p.marks[0], p.marks[len(p.marks)-1]
	x := func(i int) int { return left + i*width/(len(along)-1) }
	y := func(v float64) int {
		return top + height - int(height*math.Log(min(max(v, least), most)/least)/math.Log(most/least))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 310" font-family="sans-serif" font-size="13">
<rect width="680" height="310" fill="#fff"/>
<text x="%d" y="22">%s</text>
`, left, p.title)
	for _, v := range p.marks {
		fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end" fill="#555">%.0f</text>`+"\n", left, y(v), width, left-8, y(v)+4, v)
	}
	for i, n := range along {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", x(i), top+height+20, n)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", left+width/2, top+height+40, p.along)
	for k, name := range p.contestants {
		var points []string
		for i, v := range of[k] {
			points = append(points, fmt.Sprintf("%d,%d", x(i), y(v)))
		}
		last := len(of[k]) - 1
		if last < 0 {
			continue
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" fill="%s">%s %.3g</text>`+"\n",
			strings.Join(points, " "), colors[k], x(last)+8, y(of[k][last])+4, colors[k], name, of[k][last])
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

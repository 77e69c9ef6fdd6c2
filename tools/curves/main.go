// Command curves draws what a lock costs as the callers become more, from the results of make bench: docs/images/cost.svg. make images
// runs it, in the root of the repository.
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
	file    = "docs/images/cost.svg"

	left, top, width, height = 60, 40, 420, 220
	least, most              = 20, 700 // microseconds
)

// curve is the cost of one contestant, for each number of callers.
type curve struct {
	name, color string
	cost        []float64
}

func main() {
	log.SetFlags(0)
	svg, err := draw()
	if err == nil {
		err = os.WriteFile(file, []byte(svg), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// draw returns the picture of what uncontended locks on three masters cost.
func draw() (string, error) {
	f, err := os.Open(results)
	if err != nil {
		return "", err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return "", fmt.Errorf("%s: %w", results, err)
	}
	const group, cell, contestant = 0, 1, 2
	cpu := slices.Index(rows[0], "CPU µs with masters")
	curves := []curve{{name: "caddy-redlock", color: "#1b7f4d"}, {name: "redsync/rueidis", color: "#b35900"}, {name: "redsync/go-redis", color: "#7a5195"}}
	var callers []string
	for _, row := range rows {
		n, three := strings.CutPrefix(row[cell], "N = 3, ")
		k := slices.IndexFunc(curves, func(c curve) bool { return c.name == row[contestant] })
		if row[group] != "Uncontended" || !three || k < 0 {
			continue
		}
		cost, err := strconv.ParseFloat(row[cpu], 64)
		if err != nil {
			return "", fmt.Errorf("%s: %w", results, err)
		}
		if k == 0 {
			n, _, _ = strings.Cut(n, " ")
			callers = append(callers, n)
		}
		curves[k].cost = append(curves[k].cost, cost)
	}
	if len(callers) < 2 {
		return "", fmt.Errorf("%s has no locks on three masters", results)
	}
	x := func(i int) int { return left + i*width/(len(callers)-1) }
	y := func(cost float64) int {
		return top + height - int(height*math.Log(cost/least)/math.Log(float64(most)/least))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 310" font-family="sans-serif" font-size="13">
<rect width="640" height="310" fill="#fff"/>
<text x="%d" y="22">CPU µs of client and three masters for a lock and its unlock</text>
`, left)
	for _, cost := range []float64{20, 50, 100, 200, 500} {
		fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end" fill="#555">%g</text>`+"\n", left, y(cost), width, left-8, y(cost)+4, cost)
	}
	for i, n := range callers {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", x(i), top+height+20, n)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#555">callers at once</text>`+"\n", left+width/2, top+height+40)
	for _, c := range curves {
		var points []string
		for i, cost := range c.cost {
			points = append(points, fmt.Sprintf("%d,%d", x(i), y(cost)))
		}
		last := len(c.cost) - 1
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" fill="%s">%s %.0f</text>`+"\n",
			strings.Join(points, " "), c.color, x(last)+8, y(c.cost[last])+4, c.color, c.name, c.cost[last])
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

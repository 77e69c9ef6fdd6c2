package metrics_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const (
	rulesFile     = "../deploy/prometheus/redlock.rules.yml"
	dashboardFile = "../deploy/grafana/redlock.json"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dashboard is what the test reads of Grafana's format.
type dashboard struct {
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	selector = regexp.MustCompile(`\bredlock_(\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right) *\(([^)]*)\)`)
	shown    = regexp.MustCompile(`\{\{ *(?:\$labels\.)?(\w+) *\}\}`)
)

// requireExisting fails if a query, or the text that is shown with it, names a metric, label or value that there is none of.
func requireExisting(t *testing.T, kinds map[string]string, query, text string) {
	t.Helper()
	labels := []string{"job", "instance", "le"} // which Prometheus adds, and those of histograms
	selectors := selector.FindAllStringSubmatch(query, -1)
	if len(selectors) == 0 {
		t.Errorf("no metric of ours in %q", query)
	}
	for _, s := range selectors {
		name := s[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && strings.HasPrefix(kinds[base], "histogram") {
				name = base
			}
		}
		kind, ok := kinds[name]
		if !ok {
			t.Errorf("there is no metric %s: %s", name, query)
		}
		own := append(strings.Fields(kind), "job", "instance")
		labels = append(labels, own[1:]...)
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(own[1:], m[1]) {
				t.Errorf("%s has no label %s: %s", name, m[1], query)
			}
			for value := range strings.SplitSeq(m[3], "|") {
				switch {
				case strings.HasPrefix(value, "$"):
				case m[1] == "outcome" && !slices.Contains(engine.Outcomes(), middleware.Outcome(value)),
					m[1] == "result" && value != "ok" && value != "failed":
					t.Errorf("no %s is %s: %s", m[1], value, query)
				}
			}
		}
	}
	var used []string
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		used = append(used, strings.FieldsFunc(g[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, s := range shown.FindAllStringSubmatch(text, -1) {
		used = append(used, s[1])
	}
	for _, label := range used {
		if !slices.Contains(labels, label) {
			t.Errorf("no metric of the query has the label %s: %s", label, query)
		}
	}
}

// The alerts are about metrics, labels and outcomes that exist, and link to sections that do.
func TestAlertRules(t *testing.T) {
	text := readFile(t, rulesFile)
	alerts := strings.Split(text, "- alert: ")[1:]
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	var sections []string
	for _, heading := range regexp.MustCompile("(?m)^#+ (.+)$").FindAllStringSubmatch(readFile(t, "../docs/operations.md"), -1) {
		anchor := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		sections = append(sections, strings.ReplaceAll(anchor, " ", "-"))
	}
	kinds := kinds(t)
	for _, alert := range alerts {
		_, rest, _ := strings.Cut(alert, "expr: ")
		query, rest, _ := strings.Cut(rest, "labels:")
		requireExisting(t, kinds, query, rest)
		link := regexp.MustCompile(`runbook_url: https://github\.com/caddy-redlock/caddy-redlock/blob/main/docs/operations\.md#(\S+)`).FindStringSubmatch(alert)
		if link == nil || !slices.Contains(sections, link[1]) {
			t.Errorf("%.30q links to no section of docs/operations.md: %v", alert, link)
		}
	}
}

// The dashboard's panels lie side by side, and show metrics and labels that exist.
func TestDashboard(t *testing.T) {
	d, kinds := readDashboard(t), kinds(t)
	used := make(map[string]bool)
	cells := make(map[string]string)
	ids := make(map[int]bool)
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q: no title, or an ID that another one has", p.ID, p.Title)
		}
		ids[p.ID] = true
		g := p.GridPos
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				cell := fmt.Sprint(x, " ", y)
				if other := cells[cell]; other != "" || x >= 24 {
					t.Fatalf("%q lies on %q, or outside", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("%q has %d queries", p.Title, len(p.Targets))
		}
		for _, target := range p.Targets {
			requireExisting(t, kinds, target.Expr, target.LegendFormat)
			for _, s := range selector.FindAllStringSubmatch(target.Expr, -1) {
				used[strings.TrimSuffix(s[1], "_bucket")] = true
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			requireExisting(t, kinds, v.Definition, "")
		}
	}
	for name := range kinds {
		if !used[name] {
			t.Errorf("the dashboard doesn't show %s", name)
		}
	}
}

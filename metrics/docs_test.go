package metrics_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// kinds returns the type and the labels of each metric, without the namespace, as in "counter rule outcome".
func kinds(t *testing.T) map[string]string {
	t.Helper()
	m := metrics.New("redlock")
	request(orders(newLocker(t, m, live), m, ok, middleware.Rule{}), "42")
	m.Observer().MasterDown(redlock.MasterStatus{Name: "memory://a", State: redlock.MasterHung})
	all := make(map[string]string)
	for _, family := range gather(t, m) {
		labels := make(map[string]bool)
		for _, one := range family.GetMetric() {
			for _, pair := range one.GetLabel() {
				labels[pair.GetName()] = true
			}
		}
		words := append([]string{strings.ToLower(family.GetType().String())}, slices.Sorted(maps.Keys(labels))...)
		all[strings.TrimPrefix(family.GetName(), "redlock_")] = strings.Join(words, " ")
	}
	return all
}

// docs/operations.md has a table of the metrics that exist, with their types and labels.
func TestMetricsInDocuments(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*)\\|").FindAllStringSubmatch(section, -1) {
		labels := strings.FieldsFunc(row[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })
		slices.Sort(labels)
		documented[row[1]] = strings.Join(append([]string{row[2]}, labels...), " ")
	}
	if got, want := fmt.Sprint(documented), fmt.Sprint(kinds(t)); got != want {
		t.Errorf("documented are\n%s\nthere are\n%s", got, want)
	}
}

package metrics_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// kinds returns the type and the labels of each metric, without the namespace, as in "counter outcome rule".
func kinds(t *testing.T) map[string]string {
	t.Helper()
	m := metrics.New()
	request(orders(newLocker(t, m, live), m, ok, middleware.Rule{Wait: bound, Dedupe: "{header.Delivery}", Remember: time.Minute, Scope: "off"}), "42")
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
	described := make(chan *prometheus.Desc, 100)
	m.Describe(described)
	close(described)
	for desc := range described { // also those that a master in memory has nothing to show for
		match := regexp.MustCompile(`fqName: "redlock_(\w+)".* variableLabels: \{([\w,]*)\}`).FindStringSubmatch(desc.String())
		if all[match[1]] == "" {
			all[match[1]] = "gauge " + strings.ReplaceAll(match[2], ",", " ")
		}
	}
	return all
}

// docs/operations.md has the metrics that exist, by their labels.
func TestMetricsInDocuments(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "../docs/operations.md"), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := make(map[string]string)
	names := func(cell string) []string {
		return strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune("`, ", r) })
	}
	for _, row := range regexp.MustCompile("(?m)^- (`.*`|none): (`.*`)$").FindAllStringSubmatch(section, -1) {
		labels := slices.DeleteFunc(slices.Sorted(slices.Values(names(row[1]))), func(label string) bool { return label == "none" })
		for _, metric := range names(row[2]) {
			documented[metric] = strings.Join(labels, " ")
		}
	}
	for metric, kind := range kinds(t) {
		_, labels, _ := strings.Cut(kind, " ")
		if got, found := documented[metric]; !found || got != labels {
			t.Errorf("docs/operations.md has %s: %v, with the labels %q, want %q", metric, found, got, labels)
		}
		delete(documented, metric)
	}
	if len(documented) > 0 {
		t.Errorf("docs/operations.md has metrics that don't exist: %v", documented)
	}
}

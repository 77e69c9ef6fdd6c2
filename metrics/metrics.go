// Package metrics shows Prometheus what the locks of packages redlock and middleware do. Neither of them imports it.
//
//	m := metrics.New("redlock")
//	prometheus.MustRegister(m)
//	locker, err := redlock.Open(urls, redlock.WithObserver(m.Observer()))
//	…
//	m.Watch(locker)
//	serialize := middleware.New(locker, "order:{path.id:int}", middleware.Rule{Observer: m})
//
// docs/operations.md lists the metrics. No label has a key, a value of a request, or a password: the labels are the rules' names,
// which come from the configuration, the masters' addresses, and words from fixed lists. So the number of series depends on the
// configuration alone.
package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Metrics are the metrics of all Lockers and rules of a process. They are a prometheus.Collector, and the middleware.Observer of
// any number of rules.
type Metrics struct {
	rules  *rules
	locks  *locks
	bodies *bodies
}

// New returns metrics whose names begin with the namespace and an underscore. They can be registered with several registries.
func New(namespace string) *Metrics {
	n := names(namespace)
	return &Metrics{newRules(n), newLocks(n), newBodies(n)}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.rules, m.locks, m.bodies} {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector. It asks no master, and doesn't block.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.rules, m.locks, m.bodies} {
		c.Collect(to)
	}
}

// names makes metrics of a namespace.
type names string

func (n names) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: string(n), Name: name, Help: help}, labels)
}

// describe is for metrics that are read at the time of a scrape.
func (n names) describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(string(n), "", name), help, labels, nil)
}

// label makes a text what a label must be. Masters in a Unix socket may be named by any bytes.
func label(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func gauge(to chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// bodies are the metrics of the memory for bodies.
type bodies struct {
	size, used *prometheus.Desc

	mu      sync.Mutex
	budgets map[*middleware.Budget]int // how often each is watched
}

func newBodies(n names) *bodies {
	return &bodies{
		size:    n.describe("body_budget_bytes", "Memory for bodies of requests that are read before their lock is taken."),
		used:    n.describe("body_budget_used_bytes", "How much of that memory is taken now."),
		budgets: make(map[*middleware.Budget]int),
	}
}

// WatchBudget adds a budget, see middleware.Rule.BodyBudget, until stop is called. Without any the metrics show the budget of the
// rules that have none of their own. Of several budgets they show the sum.
func (m *Metrics) WatchBudget(budget *middleware.Budget) (stop func()) {
	b := m.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	b.budgets[budget]++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.budgets[budget]--; b.budgets[budget] == 0 {
			delete(b.budgets, budget)
		}
	})
}

// Describe implements prometheus.Collector.
func (b *bodies) Describe(to chan<- *prometheus.Desc) { to <- b.size; to <- b.used }

// Collect implements prometheus.Collector.
func (b *bodies) Collect(to chan<- prometheus.Metric) {
	var size, used int64
	add := func(budget *middleware.Budget) {
		u, s := budget.Usage()
		used, size = used+u, size+s
	}
	b.mu.Lock()
	for budget := range b.budgets {
		add(budget)
	}
	if len(b.budgets) == 0 {
		add(middleware.DefaultBudget())
	}
	b.mu.Unlock()
	gauge(to, b.size, float64(size))
	gauge(to, b.used, float64(used))
}

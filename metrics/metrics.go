// Package metrics shows Prometheus what the locks of packages redlock and middleware do. Neither of them imports it.
//
//	m := metrics.New()
//	prometheus.MustRegister(m)
//	locker, err := redlock.Open(urls, redlock.WithObserver(m.Observer()))
//	…
//	m.Watch(locker)
//	serialize := middleware.New(locker, "order:{path.id:int}", middleware.Rule{Observer: m.Rules()})
//
// docs/operations.md lists the metrics. No label has a key, a value of a request, or a password: the labels are the rules' names,
// which come from the configuration, the masters' addresses, and words from fixed lists. So the number of series depends on the
// configuration alone.
package metrics

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Metrics are the metrics of all Lockers and rules of a process. They are a prometheus.Collector.
type Metrics struct {
	rules  *rules
	locks  *locks
	bodies *bodies
}

// namespace is what all names begin with, in every program, so that the same alerts and dashboard are for all of them.
const namespace = "redlock"

// New returns metrics. They can be registered with several registries.
func New() *Metrics { return &Metrics{newRules(), newLocks(), newBodies()} }

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

// events are the metrics that are counted when something happens. The methods counter and gauge make such a metric.
type events struct{ all []vector }

type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

func (e *events) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	e.all = append(e.all, c)
	return c
}

func (e *events) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	e.all = append(e.all, g)
	return g
}

func (e *events) Describe(to chan<- *prometheus.Desc) {
	for _, v := range e.all {
		v.Describe(to)
	}
}

func (e *events) Collect(to chan<- prometheus.Metric) {
	for _, v := range e.all {
		v.Collect(to)
	}
}

// readings are metrics that are read at the time of a scrape.
type readings[Seen any] []reading[Seen]

// reading is one of these metrics. read shows its values, from the state that was seen.
type reading[Seen any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(seen Seen, show show)
}

type show func(value float64, labels ...string)

func (all readings[Seen]) Describe(to chan<- *prometheus.Desc) {
	for _, r := range all {
		to <- r.desc
	}
}

func (all readings[Seen]) collect(seen Seen, to chan<- prometheus.Metric) {
	for _, r := range all {
		r.read(seen, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(r.desc, r.kind, value, labels...)
		})
	}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// label makes a text valid UTF-8, as labels must be. A master at a Unix socket may have a name of any bytes.
func label(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

type bodies struct {
	readings[memory]

	mu      sync.Mutex
	budgets map[*middleware.Budget]int // how often each is watched
}

// memory is the memory that the budgets of bodies have and use, in bytes.
type memory struct{ size, used int64 }

func newBodies() *bodies {
	gauge := func(name, help string, value func(m memory) int64) reading[memory] {
		return reading[memory]{describe(name, help), prometheus.GaugeValue, func(m memory, show show) { show(float64(value(m))) }}
	}
	return &bodies{budgets: make(map[*middleware.Budget]int), readings: readings[memory]{
		gauge("body_budget_bytes", "Memory for bodies of requests that are read before their lock is taken.", func(m memory) int64 { return m.size }),
		gauge("body_budget_used_bytes", "How much of that memory is taken now.", func(m memory) int64 { return m.used }),
	}}
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

func (b *bodies) Collect(to chan<- prometheus.Metric) { b.collect(b.memory(), to) }

func (b *bodies) memory() (m memory) {
	add := func(budget *middleware.Budget) {
		used, size := engine.Usage(budget)
		m.used, m.size = m.used+used, m.size+size
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for budget := range b.budgets {
		add(budget)
	}
	if len(b.budgets) == 0 {
		add(nil)
	}
	return m
}

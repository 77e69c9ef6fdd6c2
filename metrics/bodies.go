package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

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

package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// rules are the metrics of requests.
type rules struct {
	requests   *prometheus.CounterVec
	passed     *prometheus.CounterVec
	wait, hold *prometheus.HistogramVec
	waiting    *prometheus.GaugeVec
	holding    *prometheus.GaugeVec
	most       *prometheus.GaugeVec
	remembered *prometheus.CounterVec
	forgotten  *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	quota      *prometheus.GaugeVec
	quotaUsed  *prometheus.GaugeVec

	mu     sync.RWMutex
	byName map[string]*rule
}

// buckets are in seconds, the same for waits and for holds, so that the two can be compared.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newRules(n names) *rules {
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: string(n), Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}, []string{"rule"})
	}
	return &rules{
		requests: n.counter("requests_total", "Requests that are done, by what became of their lock.", "rule", "outcome"),
		passed:   n.counter("passed_total", "Requests that were served without a lock, as the rule allows, by the outcome that others are refused with.", "rule", "outcome"),
		wait:     histogram("wait_seconds", "How long requests that got their lock had waited for it."),
		hold:     histogram("hold_seconds", "How long requests held their lock, until it was released."),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: string(n), Name: "waiting",
			Help: "Requests that wait for their lock now."}, []string{"rule"}),
		holding: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: string(n), Name: "holding",
			Help: "Requests of this process that hold their lock now."}, []string{"rule"}),
		most: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: string(n), Name: "concurrency",
			Help: "How many requests may hold a key at a time, in all processes together; the most of its keys."}, []string{"rule"}),
		remembered: n.counter("remembered_total", "Responses that are remembered by a quorum of the masters.", "rule"),
		forgotten:  n.counter("not_remembered_total", "Responses to deliveries that are not remembered, or not in whole, by the reason.", "rule", "reason"),
		bytes:      n.counter("remembered_bytes_total", "Bytes of the responses that are remembered, on each master.", "rule"),
		quota: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: string(n), Name: "remember_quota_bytes",
			Help: "Memory of each master that the responses of a rule may take which this process has stored, by kind."}, []string{"rule", "responses"}),
		quotaUsed: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: string(n), Name: "remember_quota_used_bytes",
			Help: "How much of that they took when the last one was counted."}, []string{"rule", "responses"}),
		byName: make(map[string]*rule),
	}
}

func (s *rules) all() []prometheus.Collector {
	return []prometheus.Collector{s.requests, s.passed, s.wait, s.hold, s.waiting, s.holding, s.most, s.remembered, s.forgotten, s.bytes, s.quota, s.quotaUsed}
}

// Describe implements prometheus.Collector.
func (s *rules) Describe(to chan<- *prometheus.Desc) {
	for _, c := range s.all() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *rules) Collect(to chan<- prometheus.Metric) {
	for _, c := range s.all() {
		c.Collect(to)
	}
}

// rule is the series of one rule. Its counters begin at 0 for each outcome, because Prometheus sees no increase in a series that
// begins at 1.
type rule struct {
	users      int
	requests   map[middleware.Outcome]prometheus.Counter
	passed     map[middleware.Outcome]prometheus.Counter
	wait, hold prometheus.Observer
	waiting    prometheus.Gauge
	holding    prometheus.Gauge
	most       prometheus.Gauge

	stored, bytes prometheus.Counter
	forgotten     map[middleware.Reason]prometheus.Counter

	quota, quotaUsed [len(kinds)]prometheus.Gauge
}

// kinds are those of responses, each of which has a part of the quota.
var kinds = [2]string{"final", "4xx"}

// passes are the outcomes with which a rule may serve requests all the same.
var passes = []middleware.Outcome{middleware.OutcomeMissingKey, middleware.OutcomeNoQuorum}

// Concurrency implements middleware.Observer.
func (r *rule) Concurrency(_ string, n int) { r.most.Set(float64(n)) }

// Waits implements middleware.Observer.
func (r *rule) Waits(_ string, n int) { r.waiting.Add(float64(n)) }

// Acquired implements middleware.Observer.
func (r *rule) Acquired(_ string, waited time.Duration) {
	r.wait.Observe(waited.Seconds())
	r.holding.Inc()
}

// Done implements middleware.Observer.
func (r *rule) Done(_ string, outcome middleware.Outcome, held time.Duration) {
	if c := r.requests[outcome]; c != nil {
		c.Inc()
	}
	if held > 0 {
		r.hold.Observe(held.Seconds())
		r.holding.Dec()
	}
}

// Passed implements middleware.Observer.
func (r *rule) Passed(_ string, outcome middleware.Outcome) {
	if c := r.passed[outcome]; c != nil {
		c.Inc()
	}
}

// Remembered implements middleware.Observer.
func (r *rule) Remembered(_ string, bytes int, why middleware.Reason) {
	if c := r.forgotten[why]; c != nil {
		c.Inc()
	}
	if bytes > 0 {
		r.stored.Inc()
		r.bytes.Add(float64(bytes))
	}
}

// Quota implements middleware.Observer.
func (r *rule) Quota(_ string, refusals bool, used, size int64) {
	kind := 0
	if refusals {
		kind = 1
	}
	r.quota[kind].Set(float64(size))
	r.quotaUsed[kind].Set(float64(used))
}

// Rule returns the Observer of a rule with this name, for programs whose rules come and go. The series of a name exist until
// release has been called for each call of Rule; requests that still run then are not counted any more.
func (m *Metrics) Rule(name string) (o middleware.Observer, release func()) {
	name = label(name)
	m.rules.mu.Lock()
	defer m.rules.mu.Unlock()
	r := m.rules.join(name)
	return r, sync.OnceFunc(func() { m.rules.leave(name, r) })
}

// join returns the series of a rule, and adds a user to them. Callers hold mu.
func (s *rules) join(name string) *rule {
	r := s.byName[name]
	if r == nil {
		r = &rule{
			requests: make(map[middleware.Outcome]prometheus.Counter),
			passed:   make(map[middleware.Outcome]prometheus.Counter),
			wait:     s.wait.WithLabelValues(name),
			hold:     s.hold.WithLabelValues(name),
			waiting:  s.waiting.WithLabelValues(name),
			holding:  s.holding.WithLabelValues(name),
			most:     s.most.WithLabelValues(name),
			stored:   s.remembered.WithLabelValues(name),
			bytes:    s.bytes.WithLabelValues(name),

			forgotten: make(map[middleware.Reason]prometheus.Counter),
		}
		for i, kind := range kinds {
			r.quota[i], r.quotaUsed[i] = s.quota.WithLabelValues(name, kind), s.quotaUsed.WithLabelValues(name, kind)
		}
		for _, why := range middleware.Reasons() {
			r.forgotten[why] = s.forgotten.WithLabelValues(name, string(why))
		}
		for _, outcome := range middleware.Outcomes() {
			r.requests[outcome] = s.requests.WithLabelValues(name, string(outcome))
		}
		for _, outcome := range passes {
			r.passed[outcome] = s.passed.WithLabelValues(name, string(outcome))
		}
		s.byName[name] = r
	}
	r.users++
	return r
}

func (s *rules) leave(name string, r *rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	delete(s.byName, name)
	only := prometheus.Labels{"rule": name}
	s.requests.DeletePartialMatch(only)
	s.passed.DeletePartialMatch(only)
	s.remembered.Delete(only)
	s.forgotten.DeletePartialMatch(only)
	s.quota.DeletePartialMatch(only)
	s.quotaUsed.DeletePartialMatch(only)
	s.bytes.Delete(only)
	s.wait.Delete(only)
	s.hold.Delete(only)
	s.waiting.Delete(only)
	s.holding.Delete(only)
	s.most.Delete(only)
}

// rule returns the series of a rule; if there were none, they will stay.
func (s *rules) rule(name string) *rule {
	s.mu.RLock()
	r := s.byName[name]
	s.mu.RUnlock()
	if r == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		r = s.join(name)
	}
	return r
}

// Concurrency implements middleware.Observer.
func (m *Metrics) Concurrency(rule string, n int) { m.rules.rule(rule).Concurrency(rule, n) }

// Waits implements middleware.Observer.
func (m *Metrics) Waits(rule string, n int) { m.rules.rule(rule).Waits(rule, n) }

// Acquired implements middleware.Observer.
func (m *Metrics) Acquired(rule string, waited time.Duration) {
	m.rules.rule(rule).Acquired(rule, waited)
}

// Done implements middleware.Observer.
func (m *Metrics) Done(rule string, outcome middleware.Outcome, held time.Duration) {
	m.rules.rule(rule).Done(rule, outcome, held)
}

// Passed implements middleware.Observer.
func (m *Metrics) Passed(rule string, outcome middleware.Outcome) {
	m.rules.rule(rule).Passed(rule, outcome)
}

// Remembered implements middleware.Observer.
func (m *Metrics) Remembered(rule string, bytes int, why middleware.Reason) {
	m.rules.rule(rule).Remembered(rule, bytes, why)
}

// Quota implements middleware.Observer.
func (m *Metrics) Quota(rule string, refusals bool, used, size int64) {
	m.rules.rule(rule).Quota(rule, refusals, used, size)
}

package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

type rules struct {
	events
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

func newRules() *rules {
	s := &rules{byName: make(map[string]*rule)}
	s.requests = s.counter("requests_total", "Requests that are done, by what became of their lock.", "rule", "outcome")
	s.passed = s.counter("passed_total", "Requests that were served without a lock, as the rule allows, by the outcome that others are refused with.", "rule", "outcome")
	s.wait = s.histogram("wait_seconds", "How long requests that got their lock had waited for it.")
	s.hold = s.histogram("hold_seconds", "How long requests held their lock, until it was released.")
	s.waiting = s.gauge("waiting", "Requests that wait for their lock now.", "rule")
	s.holding = s.gauge("holding", "Requests of this process that hold their lock now.", "rule")
	s.most = s.gauge("concurrency", "How many requests may hold a key at a time, in all processes together; the most of its keys.", "rule")
	s.remembered = s.counter("remembered_total", "Responses that are remembered by a quorum of the masters.", "rule")
	s.forgotten = s.counter("not_remembered_total", "Responses to deliveries that are not remembered, or not in whole, by the reason.", "rule", "reason")
	s.bytes = s.counter("remembered_bytes_total", "Bytes of the responses that are remembered, on each master.", "rule")
	s.quota = s.gauge("remember_quota_bytes", "Memory of each master that the responses of a rule may take which this process has stored, by kind.", "rule", "responses")
	s.quotaUsed = s.gauge("remember_quota_used_bytes", "How much of that they took when the last one was counted.", "rule", "responses")
	return s
}

func (s *rules) histogram(name, help string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, []string{"rule"})
	s.all = append(s.all, h)
	return h
}

// rule has the series of one rule: for the events that Begin has announced, and for others that have happened all the same.
type rule struct {
	all    *rules
	name   string
	users  int // all.mu guards it
	series atomic.Pointer[series]
}

// series are the series of a rule. Counters begin at 0, because Prometheus sees no increase in a series that begins at 1.
type series struct {
	requests, passed map[middleware.Outcome]prometheus.Counter

	// nil for a rule that takes no locks
	wait, hold prometheus.Observer
	holding    prometheus.Gauge
	most       prometheus.Gauge

	waiting prometheus.Gauge // nil for a rule whose requests don't wait

	// nil for a rule that remembers no responses
	stored, bytes    prometheus.Counter
	forgotten        map[middleware.Reason]prometheus.Counter
	quota, quotaUsed [len(kinds)]prometheus.Gauge
}

// kinds are the kinds of responses, each of which has a part of the quota.
var kinds = [2]string{"final", "4xx"}

// add adds the series for these events to the series of the rule, and returns all of them. Nobody sees the new series of a rule that is
// gone.
func (r *rule) add(can middleware.Possible) *series {
	r.all.mu.Lock()
	defer r.all.mu.Unlock()
	s, all, name := *r.series.Load(), r.all, r.name
	if r.users == 0 {
		all = newRules()
	}
	s.requests, s.passed = maps.Clone(s.requests), maps.Clone(s.passed)
	for _, outcome := range can.Outcomes {
		s.requests[outcome] = all.requests.WithLabelValues(name, string(outcome))
	}
	for _, outcome := range can.Passes {
		s.passed[outcome] = all.passed.WithLabelValues(name, string(outcome))
	}
	if can.Concurrency > 0 {
		s.wait, s.hold = all.wait.WithLabelValues(name), all.hold.WithLabelValues(name)
		s.holding, s.most = all.holding.WithLabelValues(name), all.most.WithLabelValues(name)
	}
	if can.Waits {
		s.waiting = all.waiting.WithLabelValues(name)
	}
	if can.Remembers {
		s.stored, s.bytes = all.remembered.WithLabelValues(name), all.bytes.WithLabelValues(name)
		s.forgotten = make(map[middleware.Reason]prometheus.Counter)
		for _, why := range engine.Reasons() {
			s.forgotten[why] = all.forgotten.WithLabelValues(name, string(why))
		}
		for i, kind := range kinds {
			s.quota[i], s.quotaUsed[i] = all.quota.WithLabelValues(name, kind), all.quotaUsed.WithLabelValues(name, kind)
		}
	}
	r.series.Store(&s)
	return &s
}

func (r *rule) locking() *series {
	if s := r.series.Load(); s.most != nil {
		return s
	}
	return r.add(middleware.Possible{Concurrency: 1})
}

func (r *rule) remembering() *series {
	if s := r.series.Load(); s.stored != nil {
		return s
	}
	return r.add(middleware.Possible{Remembers: true})
}

func (r *rule) Begin(_ string, can middleware.Possible) {
	if s := r.add(can); can.Concurrency > 0 {
		s.most.Set(float64(can.Concurrency))
	}
}

func (r *rule) Waits(_ string, n int) {
	s := r.series.Load()
	if s.waiting == nil {
		s = r.add(middleware.Possible{Waits: true})
	}
	s.waiting.Add(float64(n))
}

func (r *rule) Acquired(_ string, waited time.Duration) {
	s := r.locking()
	s.wait.Observe(waited.Seconds())
	s.holding.Inc()
}

func (r *rule) Done(_ string, outcome middleware.Outcome, held time.Duration) {
	done := r.series.Load().requests[outcome]
	if done == nil {
		done = r.add(middleware.Possible{Outcomes: []middleware.Outcome{outcome}}).requests[outcome]
	}
	done.Inc()
	if held > 0 {
		s := r.locking()
		s.hold.Observe(held.Seconds())
		s.holding.Dec()
	}
}

func (r *rule) Passed(_ string, outcome middleware.Outcome) {
	if c := r.series.Load().passed[outcome]; c != nil {
		c.Inc()
	}
}

func (r *rule) Remembered(_ string, bytes int, why middleware.Reason) {
	s := r.remembering()
	if c := s.forgotten[why]; c != nil {
		c.Inc()
	}
	if bytes > 0 {
		s.stored.Inc()
		s.bytes.Add(float64(bytes))
	}
}

func (r *rule) Quota(_ string, refusals bool, used, size int64) {
	kind := 0
	if refusals {
		kind = 1
	}
	s := r.remembering()
	s.quota[kind].Set(float64(size))
	s.quotaUsed[kind].Set(float64(used))
}

// Rules returns the Observer of all rules that stay as long as the program.
func (m *Metrics) Rules() middleware.Observer { return m.rules }

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
		r = &rule{all: s, name: name}
		r.series.Store(&series{requests: make(map[middleware.Outcome]prometheus.Counter), passed: make(map[middleware.Outcome]prometheus.Counter)})
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
	for _, v := range s.all {
		v.DeletePartialMatch(only)
	}
}

// rule returns the series of a rule. If it makes them, they stay, because nobody calls leave.
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

func (s *rules) Begin(rule string, can middleware.Possible) { s.rule(rule).Begin(rule, can) }

func (s *rules) Waits(rule string, n int) { s.rule(rule).Waits(rule, n) }

func (s *rules) Acquired(rule string, waited time.Duration) {
	s.rule(rule).Acquired(rule, waited)
}

func (s *rules) Done(rule string, outcome middleware.Outcome, held time.Duration) {
	s.rule(rule).Done(rule, outcome, held)
}

func (s *rules) Passed(rule string, outcome middleware.Outcome) {
	s.rule(rule).Passed(rule, outcome)
}

func (s *rules) Remembered(rule string, bytes int, why middleware.Reason) {
	s.rule(rule).Remembered(rule, bytes, why)
}

func (s *rules) Quota(rule string, refusals bool, used, size int64) {
	s.rule(rule).Quota(rule, refusals, used, size)
}

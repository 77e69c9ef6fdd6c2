package metrics

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// locks are the metrics of Lockers: what they hold, and how their masters are.
type locks struct {
	events
	leasesLost             prometheus.Counter
	renewals, acquisitions *prometheus.CounterVec

	readings[*scrape]

	mu      sync.Mutex
	lockers []*redlock.Locker // the newest comes last
	known   map[string]bool   // names of masters that some Locker has had
	former  drops             // of Lockers that are closed

	eventsMu sync.Mutex // not mu, which is held while Lockers are asked for their status
	failures map[failure]float64
}

// failure is one series of master_failures_total.
type failure struct {
	master string
	reason redlock.MasterState
}

// drops count the lines and events that a log and an Observer missed, and the results that found no room.
type drops struct{ lines, events, results uint64 }

func (d *drops) add(status redlock.Status) {
	d.lines += status.DroppedLines
	d.events += status.DroppedEvents
	d.results += status.RefusedResults
}

// reasons are the states of a master that are reported to an Observer as failures.
var reasons = []redlock.MasterState{redlock.MasterUnreachable, redlock.MasterHung, redlock.MasterSlow, redlock.MasterRestarted, redlock.MasterReplaced,
	redlock.MasterClock, redlock.MasterRefuses, redlock.MasterExcluded}

func newLocks() *locks {
	s := &locks{
		readings: slices.Concat(ofLockers(), ofMasters()),
		known:    make(map[string]bool),
		failures: make(map[failure]float64),
	}
	s.leasesLost = s.counter("leases_lost_total",
		"Locks that were lost before they were released, also if only the release has found that: another process may have had the key while the work went on.").WithLabelValues()
	s.renewals = s.counter("renewals_total", "Rounds that renewed a lease on a quorum of the masters, or failed to.", "result")
	s.acquisitions = s.counter("acquisitions_total", "Locks that were taken, by how the turn of the call came.", "came")
	for _, via := range []string{inside.ViaFree, inside.ViaPassed, inside.ViaWoken, inside.ViaPolled} {
		s.acquisitions.WithLabelValues(via) // begins at 0
	}
	s.renewals.WithLabelValues(renewed)
	s.renewals.WithLabelValues(notRenewed)
	return s
}

const (
	renewed    = "ok"
	notRenewed = "failed"
)

// Observer returns the Observer of any number of Lockers, see redlock.WithObserver. Give the Lockers to Watch, too.
func (m *Metrics) Observer() redlock.Observer {
	s := m.locks
	return redlock.Observer{Acquired: s.acquired, Renewed: s.renewed, LeaseLost: s.leaseLost, MasterDown: s.masterDown}
}

func (s *locks) acquired(_ time.Duration, via string) {
	s.acquisitions.WithLabelValues(via).Inc()
}

func (s *locks) leaseLost(error) { s.leasesLost.Inc() }

func (s *locks) renewed(err error) {
	result := renewed
	if err != nil {
		result = notRenewed
	}
	s.renewals.WithLabelValues(result).Inc()
}

func (s *locks) masterDown(status redlock.MasterStatus) {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	s.failures[failure{label(status.Name), status.State}]++
}

// Watch shows what a Locker holds, and its masters, until it is closed.
func (m *Metrics) Watch(l *redlock.Locker) {
	s := m.locks
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
	if !slices.Contains(s.lockers, l) {
		s.lockers = append(s.lockers, l)
	}
}

// look returns the statuses of the Lockers, and forgets those that are closed. Callers hold mu.
func (s *locks) look() (statuses []redlock.Status) {
	s.lockers = slices.DeleteFunc(s.lockers, func(l *redlock.Locker) bool {
		status := l.Status()
		for _, master := range status.Masters {
			s.known[label(master.Name)] = true
		}
		closed := errors.Is(status.Err, redlock.ErrClosed)
		if closed {
			s.former.add(status)
		} else {
			statuses = append(statuses, status)
		}
		return closed
	})
	return statuses
}

// scrape is the state of the Lockers at the time of a scrape.
type scrape struct {
	held      int
	oldest    time.Duration
	differing map[string]int
	dropped   drops
	masters   map[string]redlock.MasterStatus // by label
	failures  map[failure]float64
}

func ofLockers() readings[*scrape] {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	return readings[*scrape]{
		{describe("held", "Keys that this process has locked now."), gauge,
			func(s *scrape, show show) { show(float64(s.held)) }},
		{describe("oldest_hold_seconds", "For how long the key has been locked that has been so for longest; 0 if none is."), gauge,
			func(s *scrape, show show) { show(s.oldest.Seconds()) }},
		{describe("disagreements", "Processes that share masters with this one and have others besides, or another max_ttl or concurrency: one for each such configuration.", "about"), gauge,
			func(s *scrape, show show) {
				for about, n := range s.differing {
					show(float64(n), about)
				}
			}},
		{describe("notices_dropped_total", "Lines for the log and events for these metrics that were dropped, because their receiver was too slow or blocked.", "kind"), counter,
			func(s *scrape, show show) {
				show(float64(s.dropped.lines), "line")
				show(float64(s.dropped.events), "event")
			}},
		{describe("results_refused_total", "Results that were not stored or read, because too many others were."), counter,
			func(s *scrape, show show) { show(float64(s.dropped.results)) }},
		{describe("master_failures_total", "How often the master stopped granting locks, by the reason.", "master", "reason"), counter,
			func(s *scrape, show show) {
				for f, n := range s.failures {
					show(n, f.master, string(f.reason))
				}
			}},
	}
}

func ofMasters() readings[*scrape] {
	gauge := func(name, help string, value func(master redlock.MasterStatus) (value float64, known bool)) reading[*scrape] {
		return reading[*scrape]{describe(name, help, "master"), prometheus.GaugeValue, func(s *scrape, show show) {
			for label, master := range s.masters {
				if v, known := value(master); known {
					show(v, label)
				}
			}
		}}
	}
	answered := func(master redlock.MasterStatus) bool { return master.RoundTrip > 0 }
	return readings[*scrape]{
		gauge("master_up", "Whether the master grants locks.", func(m redlock.MasterStatus) (float64, bool) {
			return oneIf(m.State == redlock.MasterAvailable), true
		}),
		gauge("master_rtt_seconds", "Round trip of the master's last reply.", func(m redlock.MasterStatus) (float64, bool) {
			return m.RoundTrip.Seconds(), answered(m)
		}),
		gauge("master_late_ratio", "Which share of the master's replies of the last minute came after the timeout, too late to count.", func(m redlock.MasterStatus) (float64, bool) {
			return m.Late, answered(m)
		}),
		gauge("master_clock_offset_seconds", "How far the master's clock is ahead of this process's.", func(m redlock.MasterStatus) (float64, bool) {
			return m.ClockOffset.Seconds(), answered(m)
		}),
		gauge("master_evicts", "Whether the master deletes locks when its memory is full: by its maxmemory-policy, as it was at most some 10 s ago.", func(m redlock.MasterStatus) (float64, bool) {
			return oneIf(m.Evicts), m.MaxmemoryPolicy != ""
		}),
		gauge("master_certificate_expiry_timestamp_seconds", "Until when the master's certificate is valid; of masters with TLS.", func(m redlock.MasterStatus) (float64, bool) {
			return float64(m.CertificateUntil.Unix()), !m.CertificateUntil.IsZero()
		}),
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (s *locks) Describe(to chan<- *prometheus.Desc) {
	s.events.Describe(to)
	s.readings.Describe(to)
}

func (s *locks) Collect(to chan<- prometheus.Metric) {
	s.events.Collect(to)
	s.collect(s.scrape(), to)
}

func (s *locks) scrape() *scrape {
	s.mu.Lock()
	statuses := s.look()
	known, dropped := maps.Clone(s.known), s.former
	s.mu.Unlock()
	seen := &scrape{dropped: dropped, differing: map[string]int{"masters": 0, "max_ttl": 0, "concurrency": 0}, masters: make(map[string]redlock.MasterStatus)}
	for _, status := range statuses {
		seen.held += status.Held
		if !status.OldestHold.IsZero() {
			seen.oldest = max(seen.oldest, time.Since(status.OldestHold))
		}
		seen.dropped.add(status)
		for _, d := range status.Disagreements {
			if d.Masters != "" {
				seen.differing["masters"]++
			}
			if d.MaxTTL != 0 {
				seen.differing["max_ttl"]++
			}
			if d.Concurrency != 0 {
				seen.differing["concurrency"]++
			}
		}
		for _, master := range status.Masters {
			name := label(master.Name)
			seen.masters[name] = worse(seen.masters[name], master)
		}
	}
	seen.failures = s.failuresOf(seen.masters, known)
	return seen
}

// worse returns the status of a master that is shown if several Lockers have it, as during a reload: the status of a Locker that
// gets no locks from it, or else of the newest Locker. A Locker that is only connecting doesn't know yet.
func worse(older, newer redlock.MasterStatus) redlock.MasterStatus {
	badness := func(status redlock.MasterStatus) int {
		switch status.State {
		case "":
			return 0
		case redlock.MasterConnecting:
			return 1
		case redlock.MasterAvailable:
			return 2
		}
		return 3
	}
	if badness(older) > badness(newer) {
		return older
	}
	return newer
}

// failuresOf returns the failures of the masters, which begin at 0 for each reason, and forgets the failures of masters that no Locker has any more.
// A Redis Cluster is a master whose nodes fail under names of their own; these stay.
func (s *locks) failuresOf(masters map[string]redlock.MasterStatus, known map[string]bool) map[failure]float64 {
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	maps.DeleteFunc(s.failures, func(f failure, _ float64) bool {
		_, present := masters[f.master]
		return known[f.master] && !present
	})
	failures := maps.Clone(s.failures)
	for name := range masters {
		for _, reason := range reasons {
			failures[failure{name, reason}] += 0
		}
	}
	return failures
}

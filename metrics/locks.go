package metrics

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// locks are the metrics of Lockers: what they hold, and how their masters are.
type locks struct {
	leasesLost             prometheus.Counter
	renewals, acquisitions *prometheus.CounterVec

	// These are read at the time of a scrape.
	held, oldest, up, rtt, late, offset, evicts, certificate, masterFailures, dropped, results, disagreements *prometheus.Desc

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

// drops are what a log and an Observer missed, and results that found no room.
type drops struct{ lines, events, results uint64 }

func (d *drops) add(status redlock.Status) {
	d.lines += status.DroppedLines
	d.events += status.DroppedEvents
	d.results += status.RefusedResults
}

// reasons are the states of a master that are reported to an Observer as failures.
var reasons = []redlock.MasterState{redlock.MasterUnreachable, redlock.MasterHung, redlock.MasterSlow, redlock.MasterRestarted, redlock.MasterReplaced,
	redlock.MasterClock, redlock.MasterRefuses, redlock.MasterExcluded}

func newLocks(n names) *locks {
	s := &locks{
		leasesLost: n.counter("leases_lost_total",
			"Locks that were lost before they were released, also if only the release has found that: another process may have had the key while the work went on.").WithLabelValues(),
		renewals:       n.counter("renewals_total", "Rounds that renewed a lease on a quorum of the masters, or failed to.", "result"),
		acquisitions:   n.counter("acquisitions_total", "Locks that were taken, by how the turn of the call came.", "came"),
		held:           n.describe("held", "Keys that this process has locked now."),
		oldest:         n.describe("oldest_hold_seconds", "For how long the key has been locked that has been so for longest; 0 if none is."),
		up:             n.describe("master_up", "Whether the master grants locks.", "master"),
		rtt:            n.describe("master_rtt_seconds", "Round trip of the master's last reply.", "master"),
		late:           n.describe("master_late_ratio", "Which share of the master's replies of the last minute came after the timeout, too late to count.", "master"),
		offset:         n.describe("master_clock_offset_seconds", "How far the master's clock is ahead of this process's.", "master"),
		evicts:         n.describe("master_evicts", "Whether the master deletes locks when its memory is full: by its maxmemory-policy, as it was at most some 10 s ago.", "master"),
		certificate:    n.describe("master_certificate_expiry_timestamp_seconds", "Until when the master's certificate is valid; of masters with TLS.", "master"),
		masterFailures: n.describe("master_failures_total", "How often the master stopped granting locks, by the reason.", "master", "reason"),
		dropped:        n.describe("notices_dropped_total", "Lines for the log and events for these metrics that were dropped, because their receiver was too slow or blocked.", "kind"),
		results:        n.describe("results_refused_total", "Results that were not stored or read, because too many others were."),
		disagreements:  n.describe("disagreements", "Processes that share masters with this one and have others besides, or another max_ttl or concurrency: one for each such configuration.", "about"),
		known:          make(map[string]bool),
		failures:       make(map[failure]float64),
	}
	for _, via := range []redlock.Via{redlock.ViaFree, redlock.ViaPassed, redlock.ViaWoken, redlock.ViaPolled} {
		s.acquisitions.WithLabelValues(string(via)) // begins at 0
	}
	s.renewals.WithLabelValues(renewed)
	s.renewals.WithLabelValues(notRenewed)
	return s
}

// The results of renewals.
const (
	renewed    = "ok"
	notRenewed = "failed"
)

// Observer returns the Observer of any number of Lockers, see redlock.WithObserver. Give the Lockers to Watch, too.
func (m *Metrics) Observer() redlock.Observer {
	s := m.locks
	return redlock.Observer{Acquired: s.acquired, Renewed: s.renewed, LeaseLost: s.leaseLost, MasterDown: s.masterDown}
}

func (s *locks) acquired(got redlock.Acquisition) {
	s.acquisitions.WithLabelValues(string(got.Via)).Inc()
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

// Describe implements prometheus.Collector.
func (s *locks) Describe(to chan<- *prometheus.Desc) {
	s.leasesLost.Describe(to)
	s.renewals.Describe(to)
	s.acquisitions.Describe(to)
	for _, desc := range []*prometheus.Desc{s.held, s.oldest, s.up, s.rtt, s.late, s.offset, s.evicts, s.certificate, s.masterFailures, s.dropped, s.results, s.disagreements} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (s *locks) Collect(to chan<- prometheus.Metric) {
	s.leasesLost.Collect(to)
	s.renewals.Collect(to)
	s.acquisitions.Collect(to)

	s.mu.Lock()
	statuses := s.look()
	known, dropped := maps.Clone(s.known), s.former
	s.mu.Unlock()
	var oldest time.Duration
	held, differing := 0, map[string]int{"masters": 0, "max_ttl": 0, "concurrency": 0}
	masters := make(map[string]redlock.MasterStatus)
	for _, status := range statuses {
		held += status.Held
		if !status.OldestHold.IsZero() {
			oldest = max(oldest, time.Since(status.OldestHold))
		}
		dropped.add(status)
		for _, d := range status.Disagreements {
			if d.Masters != "" {
				differing["masters"]++
			}
			if d.MaxTTL != 0 {
				differing["max_ttl"]++
			}
			if d.Concurrency != 0 {
				differing["concurrency"]++
			}
		}
		for _, master := range status.Masters {
			name := label(master.Name)
			masters[name] = worse(masters[name], master)
		}
	}
	gauge(to, s.held, float64(held))
	gauge(to, s.oldest, oldest.Seconds())
	for about, n := range differing {
		gauge(to, s.disagreements, float64(n), about)
	}
	for name, master := range masters {
		up := 0.0
		if master.State == redlock.MasterAvailable {
			up = 1
		}
		gauge(to, s.up, up, name)
		if master.MaxmemoryPolicy != "" {
			evicts := 0.0
			if master.Evicts {
				evicts = 1
			}
			gauge(to, s.evicts, evicts, name)
		}
		if !master.CertificateUntil.IsZero() {
			gauge(to, s.certificate, float64(master.CertificateUntil.Unix()), name)
		}
		if master.RoundTrip > 0 { // it has answered
			gauge(to, s.rtt, master.RoundTrip.Seconds(), name)
			gauge(to, s.late, master.Late, name)
			gauge(to, s.offset, master.ClockOffset.Seconds(), name)
		}
	}
	for kind, n := range map[string]uint64{"line": dropped.lines, "event": dropped.events} {
		to <- prometheus.MustNewConstMetric(s.dropped, prometheus.CounterValue, float64(n), kind)
	}
	to <- prometheus.MustNewConstMetric(s.results, prometheus.CounterValue, float64(dropped.results))
	for f, n := range s.failuresOf(masters, known) {
		to <- prometheus.MustNewConstMetric(s.masterFailures, prometheus.CounterValue, n, f.master, string(f.reason))
	}
}

// worse returns which status of a master is shown if several Lockers have it, as during a reload: that of a Locker which gets no
// locks from it, else that of the newest one. A Locker that is only connecting doesn't know yet.
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

// failuresOf returns the failures of the masters, which begin at 0 for each reason, and forgets those of masters that no Locker
// has any more. A Redis Cluster is a master whose nodes fail under names of their own; these stay.
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

package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// latency adapts a master's timeout to its round trips, as TCP does (RFC 6298): the timeout is the smoothed round trip plus four deviations. A
// deviation counts as at least an eighth of the round trip, because a path that has been steady may not stay so. The timeout is at least the floor,
// which is the configured timeout, and at most four times the floor.
type latency struct {
	floor     time.Duration
	smoothed  time.Duration
	deviation time.Duration
	current   atomic.Int64 // the timeout that follows from the fields above
	last      atomic.Int64
	nearest   time.Duration // the shortest of the recent round trips
	recent    recent
}

// recent counts the replies of the last minute, and the late ones among them, which came after the timeout.
type recent struct {
	replies, late [minuteParts]int
	began         time.Time     // when the first part began
	part          int64         // the part that is being counted
	latest        time.Duration // the round trip of the last late reply
}

const (
	minuteParts = 6
	fewLate     = 3 // with fewer late replies, a master doesn't count as slow
)

func (r *recent) count(late bool, now time.Time) {
	r.moveTo(now)
	i := r.part % minuteParts
	r.replies[i]++
	if late {
		r.late[i]++
	}
}

// moveTo begins the part of the present time, and drops the counts that are older than a minute.
func (r *recent) moveTo(now time.Time) {
	if r.began.IsZero() {
		r.began = now
	}
	part := int64(now.Sub(r.began) / (time.Minute / minuteParts))
	for n := min(part-r.part, minuteParts); n > 0; n-- {
		i := (part - n + 1) % minuteParts
		r.replies[i], r.late[i] = 0, 0
	}
	r.part = max(r.part, part)
}

func (r *recent) sums(now time.Time) (replies, late int) {
	r.moveTo(now)
	for i, n := range r.replies {
		replies, late = replies+n, late+r.late[i]
	}
	return replies, late
}

// share returns the share of late replies in the last minute, or 0 if fewer than fewLate were late.
func (r *recent) share(now time.Time) float64 {
	replies, late := r.sums(now)
	if late < fewLate {
		return 0
	}
	return float64(late) / float64(replies)
}

// ErrSlow means that half of a master's replies come after the timeout.
var ErrSlow = errors.New("slow")

// slow returns an ErrSlow if half of the last minute's replies came after the timeout, or a quarter of them if known is true: the master is already
// known to be slow. Otherwise it returns nil. A master that has been silent for more than twice as long as its last late reply took counts as
// hanging, and not as slow. Callers hold the stream's mu.
func (l *latency) slow(known bool, silence time.Duration, now time.Time) error {
	share := 2
	if known {
		share = 4
	}
	replies, late := l.recent.sums(now)
	latest := l.recent.latest
	if late < fewLate || late*share < replies || silence > 2*latest {
		return nil
	}
	return fmt.Errorf("%w: %d of the last minute's %d replies came after the timeout, the last of them after %v: set the timeout to at least %v",
		ErrSlow, late, replies, latest.Round(time.Millisecond), (latest / 2).Round(time.Millisecond))
}

// perBatch is the part of a round trip for each batch in flight. With a shorter part, many small batches would cost both sides more than their
// callers gain.
const perBatch = 50 * time.Microsecond

// window returns how many batches may be in flight: at least two, so that one is at the master while the reply to the other is on its way, and more
// for a master that is farther away. Callers hold the stream's mu.
func (l *latency) window() int { return max(2, int(l.nearest/perBatch)) }

func (l *latency) ceiling() time.Duration { return 4 * l.floor }

func (l *latency) timeout() time.Duration {
	return max(l.floor, time.Duration(l.current.Load()))
}

// observe adds a round trip to the measurements. Callers hold the stream's mu.
func (l *latency) observe(rtt time.Duration, now time.Time) {
	l.last.Store(int64(rtt))
	late := rtt > l.timeout()
	if late {
		l.recent.latest = rtt
	}
	l.recent.count(late, now)
	if l.nearest += l.nearest / 256; l.nearest == 0 || rtt < l.nearest {
		l.nearest = rtt
	}
	if rtt > l.ceiling() {
		l.current.Store(int64(l.ceiling()))
		return
	}
	if l.smoothed == 0 {
		l.smoothed, l.deviation = rtt, rtt/2
	} else {
		l.deviation += ((l.smoothed - rtt).Abs() - l.deviation) / 4
		l.smoothed += (rtt - l.smoothed) / 8
	}
	l.current.Store(int64(min(l.smoothed+4*max(l.deviation, l.smoothed/8), l.ceiling())))
}

// advice returns advice about a master that is too far away for the timeout, or "".
func (l *latency) advice() string {
	last := time.Duration(l.last.Load())
	if 2*last <= l.ceiling() {
		return ""
	}
	return fmt.Sprintf(" (its last reply took %v: set the timeout to at least %v)", last.Round(time.Millisecond), (last / 2).Round(time.Millisecond))
}

type State struct {
	Name        string
	Err         error     // the reason why the master isn't available; nil while it is, or while a connection is being made
	Since       time.Time // when the failure began, if it has been reported; otherwise zero
	Connected   bool
	Asked       bool      // the stream sends acquires to the master
	Resumes     time.Time // when the master may vote again after the last jump of its clock
	CountsFrom  time.Time // when the master's recovery will be reported, if it works until then; zero if it doesn't work
	Late        float64   // the share of the last minute's replies that came after the timeout
	RoundTrip   time.Duration
	ClockOffset time.Duration // how far the master's clock is ahead of ours
	Server      protocol.Server
}

func (s State) Available() bool { return s.Err == nil && s.Connected }

// health is the reported state of a master, and how long the master must work before its recovery is reported. Each failure within a minute of a
// recovery doubles that time, so that a master that fails again and again is reported at most twice a minute. Only reports depend on health. The
// stream's mu guards it.
type health struct {
	reported   error // the last reported failure; nil while the master is usable
	illSince   time.Time
	wellSince  time.Time                    // for a master that is reported as failed: since when it has executed all commands; zero if its last command failed, or if it isn't reported
	probation  time.Duration                // how long the master must work before its recovery is reported
	recovered  time.Time                    // when the master's last recovery was reported
	reportedAs struct{ slow, refuses bool } // whether these reasons were reported during this failure
}

const (
	leastProbation = 5 * time.Second // the shortest probation of a master that fails again
	mostProbation  = time.Minute
)

// learn notes the latest error of the master, or nil if the master has executed all commands. tell reports whether the change must be reported.
func (h *health) learn(err error, now time.Time) (tell bool) {
	former := h.reported
	if err == nil {
		if former == nil {
			return false
		}
		if h.wellSince.IsZero() {
			h.wellSince = now
		}
		if now.Before(h.countsFrom()) {
			return false
		}
		h.reported, h.recovered, h.wellSince = nil, now, time.Time{}
		return true
	}
	h.wellSince = time.Time{}
	if former == nil {
		h.probation = min(max(2*h.probation, leastProbation), mostProbation)
		if h.recovered.IsZero() || now.Sub(h.recovered) > time.Minute {
			h.probation = 0
		}
		h.illSince, h.reportedAs.slow, h.reportedAs.refuses = now, false, false
	}
	is := func(mark error) bool { return errors.Is(err, mark) && !errors.Is(former, mark) }
	slow, refuses := is(ErrSlow), errors.Is(former, ErrSlow) && is(protocol.ErrUnusable)
	tell = former == nil || is(admission.ErrRestarted) || slow && !h.reportedAs.slow || refuses && !h.reportedAs.refuses
	if tell || slow || refuses {
		h.reported = err
	}
	h.reportedAs.slow, h.reportedAs.refuses = h.reportedAs.slow || slow, h.reportedAs.refuses || refuses
	return tell
}

// absence is a time in which a master doesn't execute commands, whether that is reported or not.
type absence struct {
	since time.Time // zero for no absence
	why   error
}

// begins notes that an absence began at this time, unless one has begun earlier.
func (a *absence) begins(why error, at time.Time) {
	if a.since.IsZero() {
		a.since = at
	}
	a.why = why
}

// countsFrom returns when the recovery of a master that works again will be reported, if it goes on working. It is zero if the master doesn't work.
func (h *health) countsFrom() time.Time {
	if h.wellSince.IsZero() {
		return time.Time{}
	}
	return h.wellSince.Add(h.probation)
}

// probationError is the reason why the recovery of a master isn't reported yet.
type probationError struct {
	failure   error
	probation time.Duration
}

func (e *probationError) Error() string {
	return fmt.Sprintf("it works again, but comes and goes: it must work for %v before it counts; it failed with: %v", e.probation, e.failure)
}

func (e *probationError) Unwrap() error { return e.failure }

// hangCheck finds out why a connection gives no replies. If the server hangs, the connection is kept, because the server will read our commands in
// order when it wakes up. But a firewall may have forgotten the connection, or the address may have moved. Then the server answers on a new
// connection, which replaces this one.
type hangCheck struct {
	stream      *Stream
	ctx         context.Context
	replacement chan protocol.Conn // gets the new connection, if the server answers only on that one
	running     sync.WaitGroup

	// The stream's mu guards these.
	trying bool
	next   time.Time // no trial before this time
	pause  time.Duration
}

// start starts a trial of a second connection, unless one is running or it is too early. It returns the time at which it must be called again.
// Callers hold the stream's mu.
func (h *hangCheck) start(now time.Time) time.Time {
	switch {
	case !h.stream.master.Capabilities().Several || h.trying:
		return now.Add(admission.ProbeGap)
	case now.Before(h.next):
		return h.next
	}
	h.trying = true
	h.running.Go(h.try)
	return now.Add(admission.ProbeGap)
}

// try makes a second connection, and gives the server some more time to answer on the first one.
func (h *hangCheck) try() {
	s := h.stream
	fresh, err := s.connect(h.ctx)
	before := s.lastReply()
	if err == nil {
		// If the server was hung and has just woken up, it will answer on the first connection, too.
		timer := time.NewTimer(2 * s.latency.timeout())
		select {
		case <-timer.C:
		case <-h.ctx.Done():
		}
		timer.Stop()
		if h.ctx.Err() == nil && before.Equal(s.lastReply()) {
			h.replacement <- fresh
			return
		}
		fresh.Close()
	}
	s.mu.Lock()
	silence := s.silence(time.Now())
	s.mu.Unlock()
	if err != nil && h.ctx.Err() == nil && silence > s.latency.timeout() { // the server answers on neither connection, which no caller may have met yet
		s.note(fmt.Errorf("%w for %v", ErrHung, silence.Round(time.Millisecond)))
	}
	s.mu.Lock()
	h.trying = false
	h.pause = min(max(2*h.pause, leastPause), MostPause)
	h.next = time.Now().Add(h.pause)
	s.mu.Unlock()
	Signal(s.tend)
}

// end waits until a running trial ends, and closes its connection. The context of the trial must have ended.
func (h *hangCheck) end() {
	h.running.Wait()
	select {
	case fresh := <-h.replacement:
		fresh.Close()
	default:
	}
}

// certificateGap is the time between two checks of a server's certificate. While a connection lasts, the server's certificate may be replaced by a
// bad one.
const certificateGap = time.Minute

func (s *Stream) lookAtCertificate(ctx context.Context) {
	certificate := s.master.Capabilities().Certificate
	if certificate == nil || s.seat.LastReached().CertificateUntil.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.ConnectTime(), certificateGap/2))
	defer cancel()
	until, err := certificate(ctx)
	var useless *tls.CertificateVerificationError
	if err == nil || errors.As(err, &useless) {
		s.seat.HasCertificate(until, err)
	}
}

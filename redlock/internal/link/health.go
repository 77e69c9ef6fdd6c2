package link

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// latency adapts a master's timeout to its round trips, as TCP does (RFC 6298): the smoothed round trip plus
// four deviations. A deviation is taken as at least an eighth of the round trip, because a path that was
// steady so far need not remain so. The timeout is never below the floor, which is the setting, nor above
// four times that.
type latency struct {
	floor     time.Duration
	smoothed  time.Duration
	deviation time.Duration
	current   atomic.Int64  // the timeout that follows from these
	last      atomic.Int64  // the last round trip
	nearest   time.Duration // the shortest round trip of late
}

// perBatch is how much of a round trip justifies a further batch in flight: many small batches cost both
// sides more than their callers gain.
const perBatch = 50 * time.Microsecond

// window returns how many batches should be in flight: two, so that one is at the master while the reply to
// the other is on its way, and more the farther away the master is. Callers hold the stream's mu.
func (l *latency) window() int { return max(2, int(l.nearest/perBatch)) }

func (l *latency) ceiling() time.Duration { return 4 * l.floor }

func (l *latency) timeout() time.Duration {
	return max(l.floor, time.Duration(l.current.Load()))
}

// observe takes a round trip into account. Callers hold the stream's mu.
func (l *latency) observe(rtt time.Duration) {
	l.last.Store(int64(rtt))
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

// advice returns what to do about a master that is too far away for the timeout, or nothing.
func (l *latency) advice() string {
	last := time.Duration(l.last.Load())
	if 2*last <= l.ceiling() {
		return ""
	}
	return fmt.Sprintf(" (its last reply took %v: set the timeout to at least %v)", last.Round(time.Millisecond), (last / 2).Round(time.Millisecond))
}

// State is what a stream knows of its master.
type State struct {
	Name        string
	Err         error     // why it takes no acquires; nil while it does, or is being connected to
	Since       time.Time // since when; zero while it does
	Connected   bool      // there is a connection
	Resumes     time.Time // when it may vote again after the last jump of its clock
	RoundTrip   time.Duration
	ClockOffset time.Duration // how far its clock is ahead of ours
	Server      protocol.Server
}

func (s State) available() bool { return s.Err == nil && s.Connected }

// hangCheck finds out why a connection gives no replies. Either the server hangs: then the connection is kept,
// because the server will read our commands in their order when it wakes up. Or something in between has
// forgotten the connection (a firewall, an address that has moved): then the server answers on a new one.
type hangCheck struct {
	stream      *Stream
	ctx         context.Context
	replacement chan protocol.Conn // gets the new connection, if the server answers on that only
	running     sync.WaitGroup

	// The stream's mu guards these.
	trying bool
	next   time.Time // no trial before
	pause  time.Duration
}

// start starts a trial of a second connection, unless one is running or it is too soon, and returns when to
// call it again. The stream's mu is held.
func (h *hangCheck) start(now time.Time) time.Time {
	_, able := h.stream.master.(protocol.Connector)
	switch {
	case !able || h.trying:
		return now.Add(admission.ProbeGap)
	case now.Before(h.next):
		return h.next
	}
	h.trying = true
	h.running.Go(h.try)
	return now.Add(admission.ProbeGap)
}

// try makes a second connection, and gives the first one some more time to answer.
func (h *hangCheck) try() {
	s := h.stream
	fresh, err := s.connect(h.ctx)
	before := s.lastReply()
	if err == nil {
		// If the server was only hung and has just woken up, it will answer on the first connection too.
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
	h.trying = false
	h.pause = min(max(2*h.pause, leastPause), MostPause)
	h.next = time.Now().Add(h.pause)
	s.mu.Unlock()
	Signal(s.tend)
}

// end waits for a running trial, whose context has ended, and closes what it leaves.
func (h *hangCheck) end() {
	h.running.Wait()
	select {
	case fresh := <-h.replacement:
		fresh.Close()
	default:
	}
}

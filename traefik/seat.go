package traefik

import "time"

// seat is what is known about the servers behind a master's address, and decides which has a vote, as package redlock does
// (admission.go). A server that may lack leases which have not ended has none: one that has restarted, or another one
// behind the same address. The locker's mu guards it.
type seat struct {
	runID string    // the run that was reached last; empty before the first
	used  string    // the run to which there is a connection, whose vote is this master's alone
	until time.Time // there is no vote before
	why   string
}

const (
	restarted = "it has restarted, and may have forgotten locks"
	replaced  = "another server answers, or did answer for another master, and may lack locks"
)

// quarantine returns how long a server has no vote that may lack leases: until all of these have ended.
func (l *locker) quarantine() time.Duration { return longer(l.guard, l.covers()+drift(l.maxTTL)) }

// admit returns why the server that was just reached behind a master's address has no vote, "" if it has one; and until when, if it is
// only in quarantine.
func (s *stream) admit(srv *server) (why string, until time.Time) {
	l := s.l
	why, until = s.judge(srv)
	if why == "" || !until.IsZero() {
		l.sets.reached(s.index, srv)
	}
	return why, until
}

func (s *stream) judge(srv *server) (why string, until time.Time) {
	l, seat := s.l, s.seat
	switch {
	case srv.mode == "sentinel":
		return "it is a Sentinel, which keeps no keys; name independent servers", until
	case srv.mode == "cluster":
		return "it is a node of a Redis Cluster, which has only some of the keys; name independent servers", until
	case tooOld(srv.version):
		return "it runs Redis " + srv.version + "; locks need 6.2 or newer", until
	case srv.role != "" && srv.role != "master":
		// Once it is promoted it may lack what its master has granted.
		seat.runID = srv.runID
		seat.until = srv.received.Add(l.quarantine())
		seat.why = replaced
		return "it is a replica; name its master or an independent server instead", until
	case l.guard > 0 && !srv.tellsUptime:
		return "it does not report its uptime; allow this user the command INFO, or turn restartGuard off", until
	}
	if srv.runID == "" {
		seat.until = l.firstSeen(srv)
		seat.why = restarted
	} else {
		if seat.runID != srv.runID {
			s.changed(srv)
		}
		for _, other := range l.streams {
			if other != s && other.seat.used == srv.runID {
				// the other master may have been answered by this server
				seat.until = srv.received.Add(l.quarantine())
				seat.why = replaced
				return "it is the same server as " + other.address.name + "; name each server once", until
			}
		}
	}
	if srv.time > 0 {
		observe(s.clock, srv.time, srv.sent, srv.received)
	}
	if time.Now().Before(seat.until) {
		return seat.why + ": no vote for another " + time.Until(seat.until).Round(time.Second).String(), seat.until
	}
	seat.used = srv.runID
	return "", until
}

// changed records a run that this master has not reached before. Only our own clock counts: the server's may be set at any
// time, which changes its uptime too.
func (s *stream) changed(srv *server) {
	l, seat := s.l, s.seat
	former := seat.runID
	known := former != ""
	for _, other := range l.streams {
		known = known || other.seat.runID == srv.runID
	}
	seat.runID = srv.runID
	if !known {
		seat.until = l.firstSeen(srv)
		seat.why = restarted
		return
	}
	started := srv.received.Add(time.Second - srv.uptime)
	if former == "" || s.clock.known && started.Before(processStart.Add(s.clock.seen)) {
		seat.until = srv.received.Add(l.quarantine())
		seat.why = replaced
	} else if l.guard > 0 {
		seat.until = srv.received.Add(l.quarantine())
		seat.why = restarted
	}
	s.clock.known = false
}

// firstSeen returns when a server may vote if nothing is known about it but its uptime.
func (l *locker) firstSeen(srv *server) time.Time {
	uptime := shorter(longer(srv.uptime, 0), l.guard)
	if srv.time > 0 && time.Unix(srv.time/1000000, 0).Add(-srv.uptime).Year() < 1980 {
		uptime = 0 // the machine has no clock of its own, and began in 1970
	}
	return srv.received.Add(l.guard - uptime)
}

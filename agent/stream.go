package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// stream is the response to a client that holds a lock: lines that say how long the lock is valid.
//
// Each line promises the client the lock until a certain time. A client that is cut off, or that reads late, relies on the latest promise that it has
// read. So unless the client itself releases the lock, the agent keeps the lock until the latest promised time.
type stream struct {
	*exchange
	lock  *redlock.Lock // the lock that the lines are about; nil for none
	quiet bool          // a renewal sends no line, because the client may not read while it holds the lock
	line  []byte

	span     time.Duration // the length of the lease when the hold began
	until    time.Time     // the end of the lease according to the newest line
	promised time.Time     // the latest end of the lease according to any line
	echoed   int64         // the newest mark that was answered
}

var (
	errLeft   = errors.New("the client has left without ending its request")
	errSilent = errors.New("no mark came within the heartbeat")
)

// hold sends the first line, to whose JSON fields it appends more, and further lines for as long as the client holds the lock. It returns nil if the
// client has released the lock in order. When hold returns, the client doesn't rely on the lock any more, unless the lock was lost.
func (s *stream) hold(more []byte, heartbeat time.Duration) error {
	s.endWait()
	err := s.begin(more)
	switch {
	case err != nil:
	case s.lock == nil:
		<-s.ended
	default:
		err = s.keep(heartbeat)
	}
	if s.endedInOrder() && err == nil {
		return nil
	}
	s.lapse()
	return cmp.Or(err, errLeft)
}

func (s *stream) begin(more []byte) error {
	s.line = append(s.line[:0], '{')
	if s.lock != nil {
		s.line = append(s.line, `"fence":`...)
		s.line = strconv.AppendUint(s.line, s.lock.Fence(), 10)
		s.line = append(s.line, ',')
		s.appendValidity()
	}
	s.line = append(s.line, more...)
	header := s.w.Header()
	header.Set("Content-Type", "application/x-ndjson")
	header.Set("Cache-Control", "no-store")
	return s.send()
}

// keep sends a line after each mark and, unless the stream is quiet, at each renewal. It returns nil when the client can send nothing more, and
// otherwise the reason why it sends no more lines.
func (s *stream) keep(heartbeat time.Duration) error {
	began := time.Now()
	s.span = s.until.Sub(began)
	for {
		next := s.nextCheck()
		mark, received := s.newest()
		if heartbeat > 0 {
			silent := min(time.Since(received), time.Since(began)) // a client that waits for the lock sends no marks, so count from when it got the lock
			if silent > heartbeat {
				s.end(lostLine{"heartbeat", errSilent.Error()})
				return errors.Join(errSilent, s.control.Flush())
			}
			next = min(next, heartbeat-silent+time.Millisecond)
		}
		if mark > s.echoed || !s.quiet && s.lock.Until().After(s.until) {
			s.line = append(s.line[:0], '{')
			s.appendValidity()
			if err := s.send(); err != nil {
				return err
			}
		}
		select {
		case <-s.ended:
			return nil
		case <-s.lock.Context().Done():
			cause := s.lock.Err()
			s.end(lossOf(cause))
			return errors.Join(cause, s.control.Flush())
		case <-s.marked:
		case <-time.After(next):
		}
	}
}

// nextCheck returns how long keep sleeps before it checks whether the lease was renewed. The locker renews a lease when a third of its time is over.
func (s *stream) nextCheck() time.Duration {
	return max(s.span/20, time.Until(s.lock.Until())-s.span*3/5, 5*time.Millisecond)
}

// lapse waits until the client can't rely on the lock any more: the client has ended its request in order, the latest promised time is over, or the
// lock is lost. The end of the connection counts as well, unless the exchange lingers.
func (s *stream) lapse() {
	if s.lock == nil {
		return
	}
	left, ended := s.conn.left, s.ended
	if s.lingers {
		left = nil
	}
	over := time.NewTimer(time.Until(s.promised))
	defer over.Stop()
	for !s.endedInOrder() {
		select {
		case <-ended:
			ended = nil
		case <-left:
			return
		case <-over.C:
			return
		case <-s.lock.Context().Done():
			return
		}
	}
}

// appendValidity appends how long after the newest mark the lease ends. The agent counts from when it received the mark, and the client from when it
// began to send the mark, which is earlier. So the client never relies on its lock for too long, however late the line arrives.
func (s *stream) appendValidity() {
	mark, received := s.newest()
	s.echoed = mark
	s.until = s.lock.Until()
	if s.until.After(s.promised) {
		s.promised = s.until
	}
	s.line = append(s.line, `"mark":`...)
	s.line = strconv.AppendInt(s.line, mark, 10)
	s.line = append(s.line, `,"valid_ms":`...)
	s.line = strconv.AppendInt(s.line, max(0, s.until.Sub(received)).Milliseconds(), 10)
}

// send ends the line and sends it. A client that doesn't read in time loses its connection.
func (s *stream) send() error {
	s.put()
	return s.control.Flush()
}

func (s *stream) put() {
	s.line = append(s.line, "}\n"...)
	_ = s.control.SetWriteDeadline(time.Now().Add(writePatience))
	_, _ = s.w.Write(s.line) // Flush returns the error
}

// end writes the last line. It doesn't flush the line, because net/http's server sends it with the end of the response.
func (s *stream) end(fields any) {
	s.conn.whole.Store(false)
	text, _ := json.Marshal(fields) // all of these values can be encoded
	s.line = append(s.line[:0], text[:len(text)-1]...)
	s.put()
}

type lostLine struct {
	Lost   string `json:"lost"`
	Detail string `json:"detail,omitempty"`
}

// releasedLine is the last line for a client that has released its lock.
type releasedLine struct {
	Released    bool   `json:"released"`              // the lock had not ended before the client released it
	Unconfirmed bool   `json:"unconfirmed,omitempty"` // the key may stay locked until the TTL is over
	Forgotten   bool   `json:"forgotten,omitempty"`   // the work is done, but no quorum remembers it
	Detail      string `json:"detail,omitempty"`
}

func lossOf(cause error) lostLine {
	switch {
	case errors.Is(cause, redlock.ErrMaxHold):
		return lostLine{"max_hold", "the lock was held for max_hold"}
	case errors.Is(cause, redlock.ErrForced):
		return lostLine{"forced", "the lock was released by force"}
	case errors.Is(cause, redlock.ErrClosed):
		return lostLine{"closed", "the agent has closed its locks"}
	}
	return lostLine{"lost", "the lease could not be renewed"}
}

func releasedFor(err error) releasedLine {
	forgotten := errors.Is(err, redlock.ErrNotRemembered)
	switch {
	case err == nil:
		return releasedLine{Released: true}
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrNoRoom):
		what := "the release"
		if forgotten {
			what += ", and what was to be remembered"
		}
		return releasedLine{true, true, forgotten, "too few masters have confirmed " + what + ": the key is free when the ttl is over, at the latest"}
	}
	return releasedLine{Forgotten: forgotten, Detail: "the lock had ended before: the work may have overlapped with another holder's"}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// stream is the response to a client that holds a lock: lines that say for how long it may believe that.
//
// Each line promises something: that the lock is the client's until the end that the line names. A client that was cut off, or that
// reads late, relies on the latest of these promises. So whatever ends the hold here, other than the client itself, keeps the
// lock until then.
type stream struct {
	tail *tail
	lock *redlock.Lock // of the lines; nil for none
	line []byte

	began     time.Time     // when the hold did
	span      time.Duration // of the lease, then
	heartbeat time.Duration // within which a mark must come; 0 for none
	until     time.Time     // the end of the lease in the last line
	promised  time.Time     // the latest end in any line
	mark      int64         // the newest in any line

	over   error     // why the hold is over, other than by the client
	overAt time.Time // until then it is still read what the client does
}

// errLeft reports that a client has not ended its hold in order.
var errLeft = errors.New("the client has left without ending its request")

// hold sends the first line, to which more fields may be added: JSON that begins with a comma, or nothing. It keeps the client informed
// until the hold ends, and returns nil if the client has ended it in order. When it returns, nobody relies on the lock any more, unless it
// was lost.
func (s *stream) hold(more []byte, heartbeat time.Duration) error {
	defer s.lapse()
	if err := s.begin(more); err != nil {
		s.giveUp(err)
	}
	s.began, s.span, s.heartbeat = time.Now(), time.Until(s.until), heartbeat
	if s.lock == nil {
		s.tail.conn.withoutLimit()
		s.tail.attend(nil)
	} else {
		stop := context.AfterFunc(s.lock.Context(), s.tail.conn.wake)
		s.tail.attend(s.tick)
		stop()
	}
	switch {
	case s.over == nil && s.tail.endedInOrder():
		return nil
	case s.over == nil:
		s.over = errLeft
	}
	return s.over
}

// begin answers 200 with the first line.
func (s *stream) begin(more []byte) error {
	s.line = append(s.line[:0], '{')
	if s.lock != nil {
		s.line = append(s.line, `"fence":`...)
		s.line = strconv.AppendUint(s.line, s.lock.Fence(), 10)
		s.line = append(s.line, ',')
		s.appendValidity()
	}
	s.line = append(s.line, more...)
	out := s.tail.conn.appendHead(s.tail.conn.out[:0], http.StatusOK, s.tail.last)
	out = append(out, "Content-Type: application/x-ndjson\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	return s.send(out, false)
}

// tick looks after the hold, and reports whether it goes on.
func (s *stream) tick() bool {
	if s.over != nil {
		s.tail.conn.within(time.Until(s.overAt)) // a wake-up has moved the deadline
		return time.Now().Before(s.overAt)
	}
	// First the deadline, and then the look: a loss in between moves the deadline.
	until := s.lock.Until()
	mark, received := s.tail.newest()
	check := nextCheck(until, s.span)
	var silent time.Duration
	if s.heartbeat > 0 {
		silent = min(time.Since(received), time.Since(s.began)) // who waits sends no marks
		check = min(check, max(s.heartbeat-silent, 0)+time.Millisecond)
	}
	s.tail.conn.within(check)
	switch {
	case s.lock.Context().Err() != nil:
		cause := s.lock.Err()
		s.end(lossOf(cause))
		s.over, s.overAt = cause, time.Now()
		if s.tail.open {
			s.overAt = s.overAt.Add(moment)
		}
		s.tail.conn.within(time.Until(s.overAt))
	case silent > s.heartbeat:
		s.end(lostLine{"heartbeat", "no mark came within the heartbeat"})
		s.giveUp(nil)
	case until.After(s.until), mark > s.mark:
		s.line = append(s.line[:0], '{')
		s.appendValidity()
		if err := s.send(s.tail.conn.out[:0], false); err != nil {
			s.giveUp(err)
		}
	}
	return true
}

// nextCheck returns when to look whether the lease was renewed, which the locker does when a third of it is over.
func nextCheck(until time.Time, span time.Duration) time.Duration {
	return max(span/20, time.Until(until)-span*3/5, 5*time.Millisecond)
}

// giveUp ends the hold of a client that may still rely on what it was promised.
func (s *stream) giveUp(err error) {
	s.over, s.overAt = errors.Join(errLeft, err), s.promised
	s.tail.conn.within(time.Until(s.overAt))
}

// lapse waits until the client can't rely on the lock any more: until the end of what the lines have promised it, unless it has ended its
// request, or closed the connection.
func (s *stream) lapse() {
	if s.lock == nil || s.tail.endedInOrder() || s.tail.left() {
		return
	}
	over := time.NewTimer(time.Until(s.promised))
	defer over.Stop()
	select {
	case <-over.C:
	case <-s.lock.Context().Done():
	}
}

// appendValidity appends how long after the newest mark the lease ends. The client counts that from when it began to send the mark,
// which was earlier: so nothing that delays this line makes the client believe in its lock for too long.
func (s *stream) appendValidity() {
	mark, received := s.tail.newest()
	s.mark = mark
	s.until = s.lock.Until()
	if s.until.After(s.promised) {
		s.promised = s.until
	}
	s.line = append(s.line, `"mark":`...)
	s.line = strconv.AppendInt(s.line, mark, 10)
	s.line = append(s.line, `,"valid_ms":`...)
	s.line = strconv.AppendInt(s.line, max(0, s.until.Sub(received)).Milliseconds(), 10)
}

// send ends the line, and sends it behind what is in out. With the last line the response ends.
func (s *stream) send(out []byte, last bool) error {
	s.line = append(s.line, "}\n"...)
	out = strconv.AppendInt(out, int64(len(s.line)), 16)
	out = append(append(append(out, "\r\n"...), s.line...), "\r\n"...)
	if last {
		out = append(out, "0\r\n\r\n"...)
	}
	s.tail.conn.out = out
	_, err := s.tail.conn.writeSoon(out)
	s.tail.told = last && err == nil
	return err
}

// end sends the last line. The client may have left.
func (s *stream) end(fields any) {
	text, _ := json.Marshal(fields) // there is nothing in it that can't be encoded
	s.line = append(s.line[:0], text[:len(text)-1]...)
	_ = s.send(s.tail.conn.out[:0], true)
}

// lostLine is the last line of a lock that is lost.
type lostLine struct {
	Lost   string `json:"lost"`
	Detail string `json:"detail,omitempty"`
}

// releasedLine is the last line of a lock that the client has given back.
type releasedLine struct {
	Released    bool   `json:"released"`              // the lock had not ended before
	Unconfirmed bool   `json:"unconfirmed,omitempty"` // the key may be taken until the ttl is over, and the work not be remembered as done
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

// releasedFor returns the last line for the error of an Unlock.
func releasedFor(err error) releasedLine {
	switch {
	case err == nil:
		return releasedLine{Released: true}
	case errors.Is(err, redlock.ErrNoQuorum):
		return releasedLine{true, true, "too few masters have confirmed the release, and what was to be remembered: the key is free when the ttl is over, at the latest"}
	}
	return releasedLine{Detail: "the lock had ended before: the work may have overlapped with another holder's"}
}

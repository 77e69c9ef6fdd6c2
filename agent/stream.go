package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// stream is the answer to a client that holds a lock: lines that say for how long it may believe that.
//
// Each line promises something: that the lock is the client's until the end that the line names. A client that was cut off, or that
// reads late, relies on the latest of these promises. So whatever ends the hold here, other than the client itself, keeps the
// lock until then.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	tail    *tail

	lock     *redlock.Lock // of the lines; nil for none
	until    time.Time     // the end of the lease in the last line
	promised time.Time     // the latest end in any line
	line     []byte
}

// writePatience is how long a client may leave a line unread once all buffers on the way to it are full.
const writePatience = 10 * time.Second

func newStream(w http.ResponseWriter, control *http.ResponseController, tail *tail) *stream {
	return &stream{w: w, control: control, tail: tail}
}

// begin answers 200 with the first line, to which more fields may be added: JSON that begins with a comma, or nothing.
func (s *stream) begin(lock *redlock.Lock, more []byte) error {
	h := s.w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	s.lock = lock
	s.line = append(s.line[:0], '{')
	if lock != nil {
		s.line = append(s.line, `"fence":`...)
		s.line = strconv.AppendUint(s.line, lock.Fence(), 10)
		s.line = append(s.line, ',')
		s.appendValidity()
	}
	s.line = append(s.line, more...)
	return s.send()
}

// renew writes for how long the lease is certain by now.
func (s *stream) renew() error {
	s.line = append(s.line[:0], '{')
	s.appendValidity()
	return s.send()
}

// appendValidity appends how long after the newest mark the lease ends. The client counts that from when it began to send the mark,
// which was earlier: so nothing that delays this line makes the client believe in its lock for too long.
func (s *stream) appendValidity() {
	mark, received := s.tail.newest()
	s.until = s.lock.Until()
	if s.until.After(s.promised) {
		s.promised = s.until
	}
	s.line = append(s.line, `"mark":`...)
	s.line = strconv.AppendInt(s.line, mark, 10)
	s.line = append(s.line, `,"valid_ms":`...)
	s.line = strconv.AppendInt(s.line, max(0, s.until.Sub(received)).Milliseconds(), 10)
}

// send ends the line, and sends it. The client must make room for it within writePatience.
func (s *stream) send() error {
	if err := s.write(); err != nil {
		return err
	}
	return s.control.Flush()
}

// write ends the line, and leaves it to be sent with what follows.
func (s *stream) write() error {
	s.line = append(s.line, "}\n"...)
	_ = s.control.SetWriteDeadline(time.Now().Add(writePatience))
	_, err := s.w.Write(s.line)
	return err
}

// lost sends the last line of a lock that is lost.
func (s *stream) lost(why lostLine) {
	s.set(why)
	_ = s.send() // the client may have left
}

// released writes the last line of a lock whose Unlock has returned err. It is sent with the end of the answer, when the handler returns.
func (s *stream) released(err error) {
	s.set(releasedFor(err))
	_ = s.write() // the client may have left
}

// set begins a line with these fields.
func (s *stream) set(fields any) {
	text, _ := json.Marshal(fields) // there is nothing in it that can't be encoded
	s.line = append(s.line[:0], text[:len(text)-1]...)
}

// lostLine is the last line of a lock that is lost.
type lostLine struct {
	Lost   string `json:"lost"`
	Detail string `json:"detail,omitempty"`
}

// releasedLine is the last line of a lock that the client has given back.
type releasedLine struct {
	Released bool   `json:"released"`
	Detail   string `json:"detail,omitempty"`
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
		return releasedLine{Detail: "too few masters have confirmed the release: the key is free when the ttl is over, at the latest"}
	}
	return releasedLine{Detail: "the lock had ended before: the work may have overlapped with another holder's"}
}

// errLeft reports that a client has not ended its hold in order.
var errLeft = errors.New("the client has left without ending its request")

// hold keeps the client informed until the hold ends, and returns nil if the client has ended it in order. When it returns, nobody relies on
// the lock any more.
func (s *stream) hold(heartbeat time.Duration) error {
	span := time.Until(s.until)
	check := time.NewTimer(nextCheck(s.until, span, true))
	defer check.Stop()
	for {
		var err error
		select {
		case <-s.lock.Context().Done():
			cause := s.lock.Err()
			s.lost(lossOf(cause))
			return cause
		case <-s.tail.ctx.Done():
			return s.leave()
		case <-s.tail.news:
			err = s.renew()
		case <-check.C:
			if _, received := s.tail.newest(); heartbeat > 0 && time.Since(received) > heartbeat {
				s.lost(lostLine{"heartbeat", "no mark came within the heartbeat"})
				s.lapse()
				return errLeft
			}
			renewed := s.lock.Until().After(s.until)
			if renewed {
				err = s.renew()
			}
			check.Reset(nextCheck(s.until, span, renewed))
		}
		if err != nil {
			if !s.tail.closed(err) {
				s.lapse()
			}
			return errors.Join(errLeft, err)
		}
	}
}

// nextCheck returns when to look whether the lease was renewed, which the locker does when a third of it is over.
func nextCheck(until time.Time, span time.Duration, renewed bool) time.Duration {
	soon := span / 20
	if renewed {
		soon = max(soon, time.Until(until)-span*3/5)
	}
	return max(soon, 5*time.Millisecond)
}

// leave returns how the client has ended its hold.
func (s *stream) leave() error {
	switch {
	case s.tail.endedInOrder():
		return nil
	case !s.tail.left():
		s.lapse()
	}
	return errLeft
}

// lapse waits until the client can't rely on the lock any more: until the end of what the lines have promised it, or until it has closed the
// connection.
func (s *stream) lapse() {
	over := time.NewTimer(time.Until(s.promised))
	defer over.Stop()
	ended := s.tail.ctx.Done()
	for {
		select {
		case <-over.C:
			return
		case <-s.lock.Context().Done():
			return
		case <-ended:
			if s.tail.endedInOrder() || s.tail.left() {
				return
			}
			ended = nil
		}
	}
}

// tooLate reports whether an error is that of a deadline of the connection.
func tooLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

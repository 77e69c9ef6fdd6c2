package response

import (
	"net/http"
	"sync"
	"time"
)

const (
	piece     = 32 << 10 // the most bytes of one write
	perSecond = 16 << 10 // the client gets one more second for each time that it has taken this many bytes
)

// sender writes to a client. It gives up on a client that keeps its response waiting too long. Otherwise the client could keep a lock or memory in
// use for as long as it likes. Each wait may take as long as the patience. All waits together may take this long, and a second more for each 16 KiB
// that the client has taken.
type sender struct {
	to       http.ResponseWriter
	patience time.Duration

	waited time.Duration // the time that all writes and flushes have taken
	sent   int64
	timer  *time.Timer

	mu    sync.Mutex
	busy  bool // a write or flush of this request is under way
	ended bool // the sender has given up on the client
}

func (s *sender) write(p []byte) (n int, err error) {
	for {
		some := p[n:min(n+piece, len(p))]
		var m int
		m, err = s.within(func() (int, error) { return s.to.Write(some) })
		s.sent += int64(m)
		if n += m; err != nil || n >= len(p) {
			return n, err
		}
	}
}

func (s *sender) flush() error {
	_, err := s.within(func() (int, error) { return 0, http.NewResponseController(s.to).Flush() })
	return err
}

// within calls do, which may wait for the client. It sets a deadline only when the time is over, because the server may have set its own, and
// because over HTTP/2 a deadline that passes between two writes breaks the stream.
func (s *sender) within(do func() (int, error)) (int, error) {
	began := time.Now()
	left := s.patience + min(0, time.Duration(s.sent)*time.Second/perSecond-s.waited)
	s.setBusy(true)
	if s.timer == nil {
		s.timer = time.AfterFunc(left, s.giveUp)
	} else {
		s.timer.Reset(left)
	}
	defer func() {
		s.timer.Stop()
		s.setBusy(false)
		s.waited += time.Since(began)
	}()
	return do()
}

func (s *sender) setBusy(busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = busy
}

func (s *sender) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy { // end this write, and let all later writes fail
		s.ended = true
		_ = http.NewResponseController(s.to).SetWriteDeadline(time.Now().Add(-time.Second)) // not all writers support deadlines
	}
}

func (s *sender) gaveUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

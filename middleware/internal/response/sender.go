package response

import (
	"net/http"
	"sync"
	"time"
)

const (
	piece     = 32 << 10 // bytes that are written at once
	perSecond = 16 << 10 // bytes for which a client has a second more
)

// sender writes to a client, and gives it up when it has kept its response waiting for longer than the patience, at once, or in all and
// with a second more for each 16 KiB that it has taken: it could hold a lock, or memory, for as long as it likes.
type sender struct {
	to       http.ResponseWriter
	patience time.Duration

	waited time.Duration // in writes and flushes
	sent   int64
	timer  *time.Timer

	mu    sync.Mutex
	busy  bool // the connection belongs to this request
	ended bool // the client was given up
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

// within does what may wait for the client. It sets a deadline only when the time is over: the server may have one of its own, and
// over HTTP/2 one that passes between two writes breaks the stream.
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
	if s.busy { // ends what is being written, and all that would come after it
		s.ended = true
		_ = http.NewResponseController(s.to).SetWriteDeadline(time.Now().Add(-time.Second)) // not supported by all
	}
}

// gaveUp reports whether the client was given up.
func (s *sender) gaveUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

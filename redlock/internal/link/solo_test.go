package link

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// soloStream is the stream of the only master, whose callers wait for so long.
func soloStream(t *testing.T, addr string, solo time.Duration) *Stream {
	m := redis.New(goredis.Options{Addr: addr})
	logger := slog.New(slog.DiscardHandler)
	seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger})
	s := NewStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Solo: solo, Logger: logger, Watcher: nobody{}}, seats.Add(m))
	t.Cleanup(func() {
		if err := s.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pushed pushes a command, and returns the channel that is closed when it is answered.
func pushed(s *Stream) (answered chan struct{}) {
	answered = make(chan struct{})
	s.Push(Forced(protocol.Command{Op: protocol.OpInspect, Key: "key"}, receiverFunc(func(*Command) { close(answered) })))
	return answered
}

// alone pushes commands until a caller has read its own reply. The connection is the one before, or the first.
func alone(t *testing.T, s *Stream) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		answered := pushed(s)
		s.mu.Lock()
		rests := s.solo.rests
		s.mu.Unlock()
		select {
		case <-answered:
			if rests {
				return
			}
		default:
		}
		<-answered
		if time.Now().After(deadline) {
			t.Fatal("callers don't read their replies within a minute")
		}
	}
}

// TestSolo: a caller that is alone reads its reply itself, also after others were there.
func TestSolo(t *testing.T) {
	s := soloStream(t, redistest.Start(t, 1)[0].Addr(), 50*time.Millisecond)
	for range 3 {
		alone(t, s)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 100 {
					<-pushed(s)
				}
			})
		}
		callers.Wait()
	}
}

// TestSoloGivesUp: a caller doesn't wait for a server that hangs. Its reply is read when that comes.
func TestSoloGivesUp(t *testing.T) {
	way := redistest.NewForwarder(t, redistest.Start(t, 1)[0])
	s := soloStream(t, way.Addr(), 50*time.Millisecond)
	alone(t, s)
	s.mu.Lock()
	before := s.conn
	s.mu.Unlock()
	way.Set(redistest.Weather{Replies: true})
	answered := pushed(s)
	way.Set(redistest.Weather{})
	<-answered
	alone(t, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != before {
		t.Error("another connection was made meanwhile")
	}
}

// TestSoloNoticesTheEnd: that a connection has ended is noticed although nobody asks for anything, and although a caller waits.
func TestSoloNoticesTheEnd(t *testing.T) {
	way := redistest.NewForwarder(t, redistest.Start(t, 1)[0])
	s := soloStream(t, way.Addr(), 50*time.Millisecond)
	for _, asks := range []bool{false, true} {
		alone(t, s)
		s.mu.Lock()
		before := s.conn
		s.mu.Unlock()
		var end sync.WaitGroup
		var answered atomic.Pointer[chan struct{}]
		if asks {
			way.Set(redistest.Weather{Replies: true})
			end.Go(func() {
				c := pushed(s)
				answered.Store(&c)
			})
		}
		way.Cut()
		end.Wait()
		way.Set(redistest.Weather{})
		if c := answered.Load(); c != nil {
			<-*c
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			now := s.conn
			s.mu.Unlock()
			if now != nil && now != before {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("asks=%t: no other connection within a minute", asks)
			}
		}
	}
}

// TestSoloCloses: Close ends the wait of a caller for a server that hangs.
func TestSoloCloses(t *testing.T) {
	way := redistest.NewForwarder(t, redistest.Start(t, 1)[0])
	s := soloStream(t, way.Addr(), time.Hour)
	alone(t, s)
	way.Set(redistest.Weather{Replies: true})
	var caller sync.WaitGroup
	caller.Go(func() { <-pushed(s) })
	for !s.reads() {
		time.Sleep(time.Millisecond)
	}
	_ = s.Close(time.Millisecond)
	caller.Wait()
}

func (s *Stream) reads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.solo.reading
}

package link

import (
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// directly is a connection on which replies come, or none while it hangs.
type directly struct{ replies, interrupt chan struct{} }

func (d *directly) Await() bool {
	select {
	case <-d.replies:
		return true
	case <-d.interrupt:
		return false
	}
}

func (d *directly) Interrupt() { close(d.interrupt) }

func (d *directly) Resume() { d.interrupt = make(chan struct{}) }

// TestSolo: a caller that is alone reads its reply. One whose master hangs leaves it to the reader after two of its looks, or at once where others
// need that; and the reader looks at a connection on which nothing is sent.
func TestSolo(t *testing.T) {
	const look = time.Second
	for name, c := range map[string]struct {
		hangs, others, asks bool
		rests               time.Duration
	}{
		"alone":            {asks: true, rests: 2 * look},
		"alone and silent": {rests: look},
		"a master hangs":   {asks: true, hangs: true, rests: 2 * look},
		"others come":      {others: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				waits, read, began := false, false, time.Now()
				o := newSolo(&mu, look, func() bool { return waits })
				d := &directly{make(chan struct{}, 1), make(chan struct{})}
				o.row = soloFrom
				var reader sync.WaitGroup
				reader.Go(func() {
					mu.Lock()
					defer mu.Unlock()
					o.rest(d)
					if rested := time.Since(began); rested != c.rests {
						t.Errorf("the reader has rested for %v, want %v", rested, c.rests)
					}
				})
				synctest.Wait()
				mu.Lock()
				if c.asks {
					if waits = true; !c.hangs {
						d.replies <- struct{}{}
					}
					o.sentAlone(protocol.ConnCapabilities{Prompt: true, Direct: d}, func() { read, waits = true, false })
				}
				if c.others {
					o.sentForOthers()
				}
				mu.Unlock()
				reader.Wait()
				if read != (c.asks && !c.hangs) {
					t.Errorf("the caller has read its reply: %t", read)
				}
			})
		})
	}
}

// pushed pushes a command, and returns the channel that is closed when it is answered.
func pushed(s *Stream) (answered chan struct{}) {
	answered = make(chan struct{})
	s.Push(Forced(protocol.Command{Op: protocol.OpInspect, Key: "key"}, receiverFunc(func(*Command) { close(answered) })))
	return answered
}

// TestSoloOnServer: a stream's only caller reads its replies itself, also after others were there.
func TestSoloOnServer(t *testing.T) {
	m := redis.New(goredis.Options{Addr: redistest.Start(t, 1)[0].Addr()})
	logger := slog.New(slog.DiscardHandler)
	s := NewStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Solo: time.Second, Logger: logger, Watcher: nobody{}},
		admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger}).Add(m))
	for range 2 {
		for rested := false; !rested; {
			s.mu.Lock()
			rested = s.solo.rests
			s.mu.Unlock()
			<-pushed(s)
		}
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() { <-pushed(s) })
		}
		callers.Wait()
	}
	if err := s.Close(time.Second); err != nil {
		t.Error(err)
	}
}

package link

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// brief is a master that answers on each connection, and ends it a while after the first reply.
type brief struct {
	*memory.Master
	life func(n int) time.Duration // of connection n
	made []time.Time               // when they were
}

func (m *brief) Connect(context.Context, protocol.Admission) (protocol.Conn, error) {
	m.made = append(m.made, time.Now())
	c := &briefConn{master: m, sent: make(chan struct{}, 1), closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c, nil
}

type briefConn struct {
	master *brief
	sent   chan struct{}
	over   <-chan time.Time // nil before the first reply
	closed chan struct{}
	end    func()
}

func (c *briefConn) Send([]*protocol.Command) (answered bool, err error) {
	c.sent <- struct{}{}
	return false, nil
}

func (c *briefConn) Wait() error {
	select {
	case <-c.sent:
		time.Sleep(time.Microsecond) // the round trip
		return nil
	case <-c.over:
	case <-c.closed:
	}
	return io.EOF
}

func (c *briefConn) Receive(cmds []*protocol.Command) error {
	c.master.Do(cmds)
	if c.over == nil {
		c.over = time.After(c.master.life(len(c.master.made)))
	}
	return nil
}

func (c *briefConn) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: 1}
}

func (c *briefConn) Close() { c.end() }

// connects returns when a stream to such a master has made connections within a time.
func connects(t *testing.T, within time.Duration, life func(n int) time.Duration) (made []time.Time) {
	synctest.Test(t, func(t *testing.T) {
		m := &brief{Master: memory.New("", time.Now), life: life}
		logger := slog.New(slog.DiscardHandler)
		seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger})
		seat := seats.Add(m)
		serves := make(chan struct{}, 1)
		seat.OnServing = func() { Signal(serves) }
		s := NewStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seat)
		var asks sync.WaitGroup
		asks.Go(func() { // at once, as heartbeats do
			for range serves {
				pushed(s)
			}
		})
		time.Sleep(within)
		synctest.Wait()
		made = m.made
		if err := s.Close(time.Second); err != nil {
			t.Error(err)
		}
		close(serves)
		asks.Wait()
	})
	return made
}

// TestBriefConnections: a master that ends each connection soon after its first reply is connected to with growing pauses.
func TestBriefConnections(t *testing.T) {
	const within, most = 20 * time.Second, 30
	if made := connects(t, within, func(int) time.Duration { return time.Millisecond }); len(made) > most {
		t.Errorf("%d connections within %v, want at most %d", len(made), within, most)
	} else if last := made[len(made)-1].Sub(made[len(made)-2]); last < MostPause/2 {
		t.Errorf("the last pause was %v", last)
	}
}

// TestConnectionEndsThatHasWorked: the end of a connection that has worked for a while is no reason for a pause, however often that was before.
func TestConnectionEndsThatHasWorked(t *testing.T) {
	const life = 2 * MostPause
	made := connects(t, 10*life, func(int) time.Duration { return life })
	for i := range made[1:] {
		if pause := made[i+1].Sub(made[i]) - life; pause > time.Millisecond {
			t.Errorf("pause of %v before connection %d", pause, i+2)
		}
	}
	if len(made) < 10 {
		t.Errorf("%d connections", len(made))
	}
}

// TestPausesAreForgotten: once a connection has worked for a while, the next ones that end soon are followed by short pauses again.
func TestPausesAreForgotten(t *testing.T) {
	const brief, long, works = time.Millisecond, 3 * admission.ProbeGap, 8
	made := connects(t, 2*long, func(n int) time.Duration {
		if n == works {
			return long
		}
		return brief
	})
	if before := made[works-1].Sub(made[works-2]); before < MostPause/2 {
		t.Errorf("pause of %v before the connection that works", before)
	}
	if after := made[works+1].Sub(made[works]); after > 2*leastPause {
		t.Errorf("pause of %v after it", after)
	}
}

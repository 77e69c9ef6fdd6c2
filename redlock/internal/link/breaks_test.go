package link

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

// watched is a server, and when it was connected to.
type watched struct {
	*simnet.Address
	made []time.Time
}

func (m *watched) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	m.made = append(m.made, time.Now())
	return m.Address.Connect(ctx, admits)
}

// streamTo returns a stream to a server, on which nobody asks anything.
func streamTo(m protocol.Master, onServing func()) *Stream {
	logger := slog.New(slog.DiscardHandler)
	seat := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger}).Add(m)
	seat.OnServing = onServing
	return NewStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seat)
}

// connects returns when a stream has made connections within a time, to a server that ends connection n so long after the first command on it.
func connects(t *testing.T, within time.Duration, life func(n int) time.Duration) (made []time.Time) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(t, 1)
		m, lives := &watched{Address: net.Addresses[0]}, 0
		net.Servers[0].Forge(func(*simnet.Command) bool {
			if n := len(m.made); lives < n {
				lives = n
				time.AfterFunc(life(n), m.Cut)
			}
			return false
		})
		serves := make(chan struct{}, 1)
		s := streamTo(m, func() { Signal(serves) })
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

// TestIdleConnectionIsProbed: that a server hangs, and that it answers again, is known although nobody asks it anything.
func TestIdleConnectionIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(t, 1)
		s := streamTo(net.Addresses[0], nil)
		const within = admission.ProbeGap + time.Second // the timeout
		time.Sleep(time.Second)                         // later than that it is asked for its memory
		net.Servers[0].Hang()
		time.Sleep(within)
		if err := s.State().Err; !errors.Is(err, ErrHung) {
			t.Errorf("of a server that hangs: %v", err)
		}
		net.Servers[0].Resume()
		time.Sleep(within)
		if s.Fails() {
			t.Error("a server that answers again is said to fail")
		}
		if err := s.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
}

// TestRenewalsArePatient: a server that hangs for longer than its timeout is asked for no new lock, and still for renewals.
func TestRenewalsArePatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(t, 1)
		s := streamTo(net.Addresses[0], nil)
		acquire := func(key string, to Receiver) *Command {
			a := NewAcquire(protocol.Command{Op: protocol.OpAcquire, Key: key, Token: "token", TTL: time.Minute}, 0, new(atomic.Bool), new(TicketState), to)
			return &a
		}
		held := acquire("held", nil)
		time.Sleep(time.Second)
		s.Push(held)
		time.Sleep(time.Second)
		net.Servers[0].Hang()
		s.Push(acquire("unanswered", nil))
		time.Sleep(2 * s.MaxTimeout())
		var refused error
		var renewed protocol.Reply
		s.Push(acquire("late", receiverFunc(func(c *Command) { refused = c.Reply.Err })))
		s.Push(held.Extension(1, time.Time{}, receiverFunc(func(c *Command) { renewed = c.Reply })))
		synctest.Wait()
		if !errors.Is(refused, ErrHung) {
			t.Errorf("a new lock: %v", refused)
		}
		net.Servers[0].Resume()
		time.Sleep(time.Second)
		synctest.Wait()
		if renewed.Status != protocol.StatusGranted {
			t.Errorf("the lease isn't renewed: %+v", renewed)
		}
		if err := s.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
}

package redlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// TestResultsThatFindNoRoomAreCounted: the room is for results that are under way.
func TestResultsThatFindNoRoomAreCounted(t *testing.T) {
	t.Parallel()
	l, err := Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range vote.ResultRoom {
		if !l.voters.EnterRoom(t.Context()) {
			t.Fatal("there is no room")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.voters.EnterRoom(ctx) {
		t.Error("there is room without end")
	}
	if n := l.Status().RefusedResults; n != 1 {
		t.Errorf("%d results were refused, want 1", n)
	}
}

// mute is a server that answers on the connection for locks alone.
type mute struct {
	*simnet.Address
	lane *simnet.Address
}

func (m mute) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	if _, lane := admits.(*link.Lane); !lane {
		return m.Address.Connect(ctx, admits)
	}
	c, err := m.lane.Connect(ctx, admits)
	m.lane.Forget()
	return c, err
}

func openMute(t *testing.T, opts ...Option) (*Locker, *simnet.Net) {
	t.Helper()
	net := simnet.New(t, 3)
	var masters []Master
	for i, a := range net.Addresses {
		masters = append(masters, Master{mute{a, simnet.NewAddress(a.String(), net.Servers[i])}})
	}
	l, err := New(masters, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l, net
}

// TestLeaseEndsWhileResultIsStored: the contexts of a lock end with its lease, not with the time that its result has.
func TestLeaseEndsWhileResultIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, net := openMute(t, WithTTL(3*time.Second))
		defer l.Close()
		lock, err := l.Lock(t.Context(), "long")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- lock.UnlockWith(make([]byte, MaxResult), time.Hour) }()
		synctest.Wait()
		for _, a := range net.Addresses {
			a.MoveTo(nil)
		}
		<-lock.Context().Done()
		if late := time.Since(lock.Until()); late > 0 {
			t.Errorf("the context has ended %v after the lease", late)
		}
		if err := <-ended; !errors.Is(err, ErrLost) {
			t.Errorf("UnlockWith: %v, want ErrLost", err)
		}
	})
}

// TestCloseWaitsForNoResult: neither for one on its way to masters that hang, nor for one on its way from them.
func TestCloseWaitsForNoResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, net := openMute(t)
		ended := make(chan error, 2)
		store, err := l.Lock(t.Context(), "long")
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- store.UnlockWith(make([]byte, MaxResult), time.Hour) }()
		left, err := l.Lock(t.Context(), "short")
		if err == nil {
			err = left.UnlockWith([]byte("paid"), time.Hour)
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := l.Lock(t.Context(), "short", WithRecall())
			ended <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("what had no reply counts as done")
			}
		}
		if waited := time.Since(began); waited >= time.Second { // the least for which a lane waits
			t.Errorf("Close has waited %v", waited)
		}
		synctest.Wait()
		for _, s := range net.Servers {
			if n := s.Connections(); n > 0 {
				t.Errorf("%d connections to %s are left", n, s)
			}
		}
	})
}

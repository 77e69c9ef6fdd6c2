package redlock

import (
	"context"
	"errors"
	"fmt"
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

// laned is a server with another address for results. If it is mute, it answers on the connection for locks alone.
type laned struct {
	*simnet.Address
	lane *simnet.Address
	mute bool
}

func (m laned) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	if _, lane := admits.(*link.Lane); !lane {
		return m.Address.Connect(ctx, admits)
	}
	c, err := m.lane.Connect(ctx, admits)
	if m.mute {
		m.lane.Forget()
	}
	return c, err
}

// openLaned returns a Locker on three servers, so many of which are mute.
func openLaned(t *testing.T, mute int, opts ...Option) (*Locker, *simnet.Net) {
	t.Helper()
	net := simnet.New(t, 3)
	var masters []Master
	for i, a := range net.Addresses {
		masters = append(masters, Master{laned{a, simnet.NewAddress(a.String(), net.Servers[i]), i < mute}})
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
		l, net := openLaned(t, 3, WithTTL(3*time.Second))
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
		time.Sleep(time.Until(lock.Until()))
		synctest.Wait()
		if lock.Context().Err() == nil {
			t.Error("the context doesn't end with the lease")
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
		l, net := openLaned(t, 3)
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

// TestLostLockStoresNoResult: nothing is stored for a lock whose max hold is over, on masters that haven't got its release yet either.
func TestLostLockStoresNoResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, net := openLaned(t, 0, WithMaxHold(time.Second))
		defer l.Close()
		locks := make(map[string]*Lock) // many: where a lock has ended and there is room, chance would decide
		for i := range 20 {
			lock, err := l.Lock(t.Context(), fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			locks[fmt.Sprint(i)] = lock
		}
		for _, a := range net.Addresses {
			a.Set(simnet.Weather{Requests: true})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, lock := range locks {
			if err := lock.UnlockWith(make([]byte, protocol.ShortResult+1), time.Hour); !errors.Is(err, ErrNotRemembered) || !errors.Is(err, ErrMaxHold) {
				t.Errorf("UnlockWith: %v, want ErrNotRemembered and ErrMaxHold", err)
			}
		}
		time.Sleep(time.Second)
		for key := range locks {
			if net.Servers[0].Result(key) != "" {
				t.Errorf("the result of a lost lock is remembered for %s", key)
			}
		}
	})
}

// TestResultOfFewIsNotRemembered: who stores a long result that one master of three confirms is told.
func TestResultOfFewIsNotRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := openLaned(t, 2)
		defer l.Close()
		lock, err := l.Lock(t.Context(), "long")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.UnlockWith(make([]byte, MaxResult), time.Hour); !errors.Is(err, ErrNotRemembered) {
			t.Errorf("UnlockWith: %v, want ErrNotRemembered", err)
		}
	})
}

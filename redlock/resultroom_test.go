package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestResultsThatFindNoRoomAreCounted: the room is for results that are under way.
func TestResultsThatFindNoRoomAreCounted(t *testing.T) {
	t.Parallel()
	l, err := Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range resultRoom {
		if !l.enterRoom(t.Context()) {
			t.Fatal("there is no room")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.enterRoom(ctx) {
		t.Error("there is room without end")
	}
	if n := l.Status().RefusedResults; n != 1 {
		t.Errorf("%d results were refused, want 1", n)
	}
}

// mute is a master that answers on the connection for locks alone, and not even there while it is gone.
type mute struct {
	Stepwise
	gone *atomic.Bool
}

func (m mute) Capabilities() protocol.Capabilities { return protocol.Capabilities{Several: true} }

func (m mute) Connect(_ context.Context, admits protocol.Admission) (protocol.Conn, error) {
	if _, lane := admits.(*link.Lane); lane {
		return newSilent(), nil
	}
	return newStepwise(m), nil
}

func (m mute) Do(cmds []*protocol.Command) {
	if !m.gone.Load() {
		m.Stepwise.Do(cmds)
		return
	}
	for _, cmd := range cmds {
		cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
	}
}

func openMute(t *testing.T, gone *atomic.Bool, opts ...Option) *Locker {
	t.Helper()
	var masters []Master
	for _, name := range []string{"1", "2", "3"} {
		masters = append(masters, Master{mute{memory.New(name, time.Now), gone}})
	}
	l, err := New(masters, append(opts, WithRestartGuard(0))...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLeaseEndsWhileResultIsStored: the contexts of a lock end with its lease, not with the time that its result has.
func TestLeaseEndsWhileResultIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := new(atomic.Bool)
		l := openMute(t, gone, WithTTL(3*time.Second))
		defer l.Close()
		lock, err := l.Lock(t.Context(), "long")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- lock.UnlockWith(make([]byte, MaxResult), time.Hour) }()
		synctest.Wait()
		gone.Store(true)
		<-lock.Context().Done()
		if late := time.Since(lock.Until()); late > 0 {
			t.Errorf("the context has ended %v after the lease", late)
		}
		if err := <-ended; !errors.Is(err, ErrLost) {
			t.Errorf("UnlockWith: %v, want ErrLost", err)
		}
	})
}

// silent is a connection on which no reply comes.
type silent struct {
	protocol.Conn
	closed context.Context
	end    context.CancelFunc
}

func newSilent() *silent {
	s := new(silent)
	s.closed, s.end = context.WithCancel(context.Background())
	return s
}
func (s *silent) Send([]*protocol.Command) (bool, error) { return false, nil }
func (s *silent) Close()                                 { s.end() }
func (s *silent) Wait() error {
	<-s.closed.Done()
	return errors.New("closed")
}

// TestCloseWaitsForNoResult: neither for one on its way to masters that hang, nor for one on its way from them.
func TestCloseWaitsForNoResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := openMute(t, new(atomic.Bool))
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
	})
}

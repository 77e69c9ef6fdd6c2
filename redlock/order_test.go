package redlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// requireFree fails the test unless the key is free on all servers.
func requireFree(t *testing.T, servers []*farServer, key string) {
	t.Helper()
	for _, s := range servers {
		probe := &protocol.Command{Op: protocol.OpAcquire, Key: "redlock:{" + key + "}", Token: "probe", TTL: time.Second}
		(&farMaster{farServer: s}).Do([]*protocol.Command{probe})
		if probe.Reply.Status != protocol.StatusGranted {
			t.Errorf("%v still holds key %q", s, key)
		}
	}
}

// lateMaster breaks the connection on each acquire, which the server still reads a second later: after the
// release, which came on the next connection.
type lateMaster struct{ *farMaster }

func (m lateMaster) Do(cmds []*protocol.Command) {
	if cmds[0].Op != protocol.OpAcquire {
		m.farMaster.Do(cmds)
		return
	}
	for _, cmd := range cmds {
		late := *cmd
		time.AfterFunc(time.Second, func() { m.farMaster.Do([]*protocol.Command{&late}) })
		cmd.Reply.Err = errCut
	}
}

func TestLateAcquireIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := farServers(3)
		masters := view(servers, func(*farMaster) {})
		masters[0] = redlock.MasterOf(lateMaster{masters[0].Impl().(*farMaster)})
		l := lockerOn(t, masters)
		synctest.Wait() // the first ping is over, which would share the acquire's batch
		lockUnlock(t, l, "key")
		time.Sleep(longTTL / 10)
		synctest.Wait()
		requireFree(t, servers, "key")
	})
}

// TestLostReleaseAfterHang: masters hang for longer than the TTL, then grant, and the connection breaks on the release that has
// waited for that. It is repeated: the lease has only begun.
func TestLostReleaseAfterHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 5 * time.Second
		var hang delay
		var cut atomic.Bool
		servers := farServers(3)
		l := lockerOn(t, view(servers, func(m *farMaster) { m.there, m.lost = hang.get, cut.Load }), redlock.WithTimeout(time.Second), redlock.WithTTL(ttl))
		synctest.Wait()
		hang.set(2 * ttl)
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("TryLock: %v, want ErrNoQuorum", err)
		}
		synctest.Wait()
		hang.set(0)
		cut.Store(true)
		time.Sleep(2 * ttl)
		synctest.Wait()
		cut.Store(false)
		time.Sleep(time.Second)
		requireFree(t, servers, "key")
	})
}

// TestCloseSendsAllReleases closes the Locker while a master that hangs for a moment has a long queue, in which the
// last release is the only one that matters.
func TestCloseSendsAllReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := farServers(3)
		var hang delay
		l := lockerOn(t, view(servers, func(m *farMaster) {
			if m.farServer == servers[0] {
				m.there = hang.get
			}
		}), redlock.WithTimeout(time.Second))
		lock := mustLock(t, l, "key")
		synctest.Wait() // the third master has granted it too
		hang.set(time.Second / 2)
		hanging := mustLock(t, l, "hanging")
		synctest.Wait()
		hang.set(0)
		for range 300 { // more than a batch
			ctx, cancel := context.WithCancel(t.Context())
			synctest.Wait()
			time.AfterFunc(0, cancel)
			_, _ = l.TryLock(ctx, "hanging")
			cancel()
		}
		mustUnlock(t, hanging)
		mustUnlock(t, lock)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		requireFree(t, servers, "key")
	})
}

// TestNeedlessIsNotSent: no command is sent for an acquire that was given up while the master hung, nor for the
// release of what was never granted.
func TestNeedlessIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang delay
		servers := farServers(3)
		masters := view(servers, func(m *farMaster) { m.there = hang.get })
		counts := counted(masters)
		l := lockerOn(t, masters)
		lock := mustLock(t, l, "key")
		synctest.Wait()
		hang.set(time.Second / 2)
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := l.TryLock(ctx, "other"); err == nil {
				t.Error("a hung master has granted")
			}
			cancel()
		}
		synctest.Wait()
		hang.set(0)
		time.Sleep(time.Second)
		if _, err := l.TryLock(t.Context(), "key"); err == nil {
			t.Error("got a key that is held")
		}
		mustUnlock(t, lock)
		synctest.Wait()
		for i, c := range counts {
			// acquires: key, the first of other, the refused one, if two haven't refused it before;
			// releases: the first of other, key
			if got := *c; got.acquires > 3 || got.releases > 2 {
				t.Errorf("master %d got %d acquires and %d releases, want at most 3 and 2", i, got.acquires, got.releases)
			}
		}
	})
}

// counter counts the commands that a master gets.
type counter struct {
	redlock.Stepwise
	acquires, releases int
}

// counted has each of the masters count.
func counted(masters []redlock.Master) []*counter {
	counts := make([]*counter, len(masters))
	for i, m := range masters {
		counts[i] = &counter{Stepwise: m.Impl()}
		masters[i] = redlock.MasterOf(counts[i])
	}
	return counts
}

func (c *counter) Do(cmds []*protocol.Command) {
	for _, cmd := range cmds {
		switch cmd.Op {
		case protocol.OpAcquire:
			c.acquires++
		case protocol.OpRelease:
			c.releases++
		}
	}
	c.Stepwise.Do(cmds)
}

// tokens records the tokens of the acquires that a master gets.
type tokens struct {
	redlock.Stepwise
	seen   map[string]bool
	again  int
	passed int
}

func (m *tokens) Do(cmds []*protocol.Command) {
	for _, cmd := range cmds {
		if cmd.Op != protocol.OpAcquire {
			continue
		}
		if m.seen[cmd.Token] {
			m.again++
		}
		m.seen[cmd.Token] = true
		if cmd.Former != "" {
			m.passed++
		}
	}
	m.Stepwise.Do(cmds)
}

// TestNoTokenIsUsedAgain: each attempt has a token of its own, even one that begins with a hand-off. Otherwise a
// late release of the lock before would free it.
func TestNoTokenIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &tokens{Stepwise: memory.New("", time.Now), seen: make(map[string]bool)}
		l := lockerOn(t, []redlock.Master{redlock.MasterOf(m)})
		held := mustLock(t, l, "key")
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { lockUnlock(t, l, "key") })
		}
		synctest.Wait() // they stand in line
		mustUnlock(t, held)
		all.Wait()
		if m.again > 0 || m.passed == 0 {
			t.Errorf("%d tokens were used again, with %d passes; want none, with some", m.again, m.passed)
		}
	})
}

package redlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// requireFree fails the test unless the key is free on all servers.
func requireFree(t *testing.T, servers []*farServer, key string) {
	t.Helper()
	for _, s := range servers {
		probe := &redlock.Command{Op: redlock.OpAcquire, Key: "redlock:{" + key + "}", Token: "probe", TTL: time.Second}
		(&farMaster{farServer: s}).Do([]*redlock.Command{probe})
		if probe.Reply.Status != redlock.StatusGranted {
			t.Errorf("%v still holds key %q", s, key)
		}
	}
}

// lateMaster breaks the connection on each acquire, which the server reads a second later all the
// same: after the release that came on the next connection.
type lateMaster struct{ *farMaster }

func (m lateMaster) Do(cmds []*redlock.Command) {
	if cmds[0].Op != redlock.OpAcquire {
		m.farMaster.Do(cmds)
		return
	}
	for _, cmd := range cmds {
		late := *cmd
		time.AfterFunc(time.Second, func() { m.farMaster.Do([]*redlock.Command{&late}) })
		cmd.Reply.Err = errCut
	}
}

func TestLateAcquireIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := farServers(3)
		masters := view(servers, func(*farMaster) {})
		masters[0] = lateMaster{masters[0].(*farMaster)}
		l := lockerOn(t, masters)
		synctest.Wait() // the first ping is over, which would share the acquire's batch
		lockUnlock(t, l, "key")
		time.Sleep(longTTL / 10)
		synctest.Wait()
		requireFree(t, servers, "key")
	})
}

// TestCloseSendsAllReleases closes while a master that hangs for a moment has a long queue, in which
// the only release that matters is the last.
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

// TestNeedlessIsNotSent: what was given up while a master hung, and the release of what was never
// granted, are not worth a command.
func TestNeedlessIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hang delay
		servers := farServers(3)
		counts := make([]*counter, len(servers))
		masters := view(servers, func(m *farMaster) { m.there = hang.get })
		for i, m := range masters {
			counts[i] = &counter{Master: m}
			masters[i] = counts[i]
		}
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
	redlock.Master
	acquires, releases int
}

func (c *counter) Do(cmds []*redlock.Command) {
	for _, cmd := range cmds {
		switch cmd.Op {
		case redlock.OpAcquire:
			c.acquires++
		case redlock.OpRelease:
			c.releases++
		}
	}
	c.Master.Do(cmds)
}

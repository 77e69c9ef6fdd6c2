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
		hang := time.Duration(0)
		l := lockerOn(t, view(servers, func(m *farMaster) {
			if m.farServer == servers[0] {
				m.there = func() time.Duration { return hang }
			}
		}), redlock.WithTimeout(time.Second))
		lock := mustLock(t, l, "key")
		synctest.Wait() // the third master has granted it too
		hang = time.Second / 2
		hanging := mustLock(t, l, "hanging")
		synctest.Wait()
		hang = 0
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

package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// youngMaster is in front of a server that has just started. After its restart guard the connection is still on its way to the stream for
// a while: what is sent meanwhile is refused.
type youngMaster struct {
	Stepwise
	started time.Time
}

func (m *youngMaster) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true}
}

func (m *youngMaster) Connect(_ context.Context, admits protocol.Admission) (protocol.Conn, error) {
	now := time.Now()
	reached := protocol.Server{RunID: m.String(), Version: "7.0.15", Role: "master", HasUptime: true, Uptime: now.Sub(m.started), Time: now.UnixMicro(), Sent: now, Received: now}
	if err := admits.Admit(reached); err != nil {
		return nil, protocol.Unreachable(err)
	}
	time.Sleep(time.Millisecond)
	return newStepwise(m), nil
}

// TestFirstLockAfterTheRestartGuard: once the masters are available, the first lock can be taken.
func TestFirstLockAfterTheRestartGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var masters []Master
		for i := range 3 {
			masters = append(masters, Master{&youngMaster{Stepwise: memory.New(fmt.Sprint(i), time.Now), started: time.Now()}})
		}
		l, err := New(masters, WithMaxTTL(2*time.Second), WithTTL(2*time.Second), WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for l.Status().Available < 3 {
			time.Sleep(time.Millisecond)
		}
		lock, err := l.TryLock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

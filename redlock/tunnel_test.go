package redlock_test

import (
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestWriteBlocks: a dialer's connection that takes no bytes holds up neither calls, which are sent through it for ever
// otherwise, nor leases.
func TestWriteBlocks(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		net.Addresses[2].Tunnel()
		l := simLocker(t, net.Masters())
		held := mustLock(t, l, "held")
		lockUnlock(t, l, "key")
		net.Addresses[2].Set(simnet.Weather{Stuck: true})
		for range 3 {
			start := time.Now()
			mustUnlock(t, mustLock(t, l, "key"))
			if took := time.Since(start); took > time.Millisecond {
				t.Errorf("a turn by the other two masters took %v", took)
			}
		}
		stays(t, 2*simTTL, "held", func() bool { return held.Err() == nil })
		net.Addresses[2].Set(simnet.Weather{})
		mustUnlock(t, held)
		net.RequireNoKeys(t)
	})
}

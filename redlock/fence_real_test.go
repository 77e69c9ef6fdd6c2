package redlock_test

import (
	"fmt"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestFencesAreForgotten has many keys, each locked once, leave nothing behind.
func TestFencesAreForgotten(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithTTL(protocol.FenceTTL+protocol.FenceSlack))
		for i := range 100 {
			lockUnlock(t, l, fmt.Sprint(i))
		}
		net.RequireNoKeys(t)
		for i := range 100 {
			for _, s := range net.Servers {
				eventually(t, bound, "the fence is forgotten", func() bool { return s.Fence(fmt.Sprint(i)) == 0 })
			}
		}
	})
}

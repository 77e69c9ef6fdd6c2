package redlock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestFencesAreForgotten has many keys, each locked once, leave nothing behind.
func TestFencesAreForgotten(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(protocol.FenceTTL+protocol.FenceSlack), redlock.WithRestartGuard(0))
	for i := range 100 {
		lockUnlock(t, l, fmt.Sprint(i))
	}
	for _, s := range servers {
		eventually(t, bound, "only the set of masters is left", func() bool {
			return !slices.ContainsFunc(s.Client().Keys(t.Context(), "*").Val(), func(key string) bool { return !strings.Contains(key, ":processes:{processes}") })
		})
	}
}

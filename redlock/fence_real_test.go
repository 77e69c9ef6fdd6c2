package redlock_test

import (
	"fmt"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestFencesAreForgotten has many keys, each locked once, leave nothing behind.
func TestFencesAreForgotten(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	for i := range 100 {
		lockUnlock(t, l, fmt.Sprint(i))
	}
	for _, s := range servers {
		fences := func() []string { return s.Client().Keys(t.Context(), "*:fence").Val() }
		eventually(t, bound, "the fences are gone", func() bool { return len(fences()) == 0 })
	}
	redistest.RequireNoKeys(t, servers)
}

package doctor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestProcessesThatDisagree: what is configured otherwise than in the processes that lock is found, and these are named.
func TestProcessesThatDisagree(t *testing.T) {
	t.Parallel()
	urls := redistest.URLs(redistest.Start(t, 4, safe...))
	for _, name := range []string{"web1/1", "web1/2"} {
		l, err := redlock.Open(urls[:3], redlock.WithInstance(name), redlock.WithRestartGuard(0), redlock.WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if err := l.Do(t.Context(), "key", func(_ context.Context, _ *redlock.Lock) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			known, err := l.Processes(t.Context())
			if err == nil && len(known) > 0 && known[len(known)-1].Instance == name {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s isn't known: %+v, %v", name, known, err)
			}
		}
	}
	s := settings(urls[:3]...)
	s.MaxTTL = redlock.DefaultMaxTTL
	if found := of(doctor.Examine(t.Context(), s), doctor.Processes); len(found) != 0 {
		t.Errorf("of the same: %+v", found)
	}
	s = settings(urls[1:]...)
	s.MaxTTL = time.Minute
	found := of(doctor.Examine(t.Context(), s), doctor.Processes)
	if len(found) != 2 {
		t.Fatalf("%+v", found)
	}
	for i, text := range []string{"web1/1, web1/2 have a max_ttl of " + redlock.DefaultMaxTTL.String() + ", and this configuration one of 1m0s", "web1/1, web1/2 have other masters than this configuration: "} {
		if f := found[i]; f.Level != doctor.Warning || !strings.HasPrefix(f.Text, text) || f.Advice == "" {
			t.Errorf("%+v, want %q", f, text)
		}
	}
}

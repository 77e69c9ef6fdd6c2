package doctor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestProcessesThatDisagree: what is configured otherwise than in the processes that lock is found, and these are named.
func TestProcessesThatDisagree(t *testing.T) {
	t.Parallel()
	urls := redistest.URLs(redistest.Start(t, 4, safe...))
	runs := func(name string, opts ...redlock.Option) *redlock.Locker {
		l, err := redlock.Open(urls[:3], append(opts, redlock.WithInstance(name), redlock.WithTimeout(time.Second))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if err := l.Do(t.Context(), "key", func(_ context.Context, _ *redlock.Lock) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			known, err := inspect.Processes(t.Context(), l)
			if err == nil && len(known) > 0 && known[len(known)-1].Instance == name {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s isn't known: %+v, %v", name, known, err)
			}
		}
		return l
	}
	former := []*redlock.Locker{runs("web1/1", redlock.WithRestartGuard(0)), runs("web1/2", redlock.WithRestartGuard(0))}
	s := settings(urls[:3]...)
	s.MaxTTL = redlock.DefaultMaxTTL
	if found := of(doctor.Examine(t.Context(), s), doctor.Processes); len(found) != 0 {
		t.Errorf("of the same: %+v", found)
	}
	for _, c := range []struct {
		urls  []string // of the configuration
		guard time.Duration
		want  []doctor.Finding
	}{
		{urls, 90 * time.Second, []doctor.Finding{ // a step of a change: one master more
			{Level: doctor.Warning, Text: "web1/1, web1/2 have a max_ttl of 10s, and this configuration one of 1m0s, for which a restart_guard is too short", Advice: "restart_guard to 1m1s"},
			{Level: doctor.Warning, Text: "web1/1, web1/2 have other masters than this configuration: ", Advice: "before you change another one"},
		}},
		{urls[1:], 0, []doctor.Finding{ // two steps at once: one more, and one less
			{Level: doctor.Warning, Text: "web1/1, web1/2 have a max_ttl of 10s, and this configuration one of 1m0s, for which", Advice: "restart_guard to 1m1s"},
			{Level: doctor.Error, Text: "web1/1, web1/2 have masters beside which this configuration is refused", Advice: "one master at a time"},
		}},
	} {
		s = settings(c.urls...)
		s.MaxTTL, s.Guard = time.Minute, c.guard
		found := of(doctor.Examine(t.Context(), s), doctor.Processes)
		if len(found) != len(c.want) {
			t.Fatalf("%+v", found)
		}
		for i, want := range c.want {
			if f := found[i]; f.Level != want.Level || !strings.HasPrefix(f.Text, want.Text) || !strings.Contains(f.Advice, want.Advice) {
				t.Errorf("%+v, want %+v", f, want)
			}
		}
	}
	s = settings(urls[:3]...)
	s.MaxTTL, s.Guard = 5*time.Second, 11*time.Second // lowered as docs/operations.md tells
	if found := of(doctor.Examine(t.Context(), s), doctor.Processes); len(found) != 1 || found[0].Level != doctor.Warning || strings.Contains(found[0].Text, "too short") {
		t.Errorf("%+v", found)
	}
	for _, l := range former {
		_ = l.Close()
	}
	s.MaxTTL, s.Guard = 3*time.Second, 20*time.Second
	short := []redlock.Option{redlock.WithTTL(2 * time.Second), redlock.WithMaxTTL(2 * time.Second), redlock.WithRestartGuard(3 * time.Second)}
	l := runs("web1/3", short...)
	advised(t, s, doctor.Processes, "web1/3 has a max_ttl of 2s, and this configuration one of 3s, for which a restart_guard is too short", "restart_guard to 4s in all processes")
	_ = l.Close()
	runs("web1/3", append(short, redlock.WithRestartGuard(4*time.Second))...)
	eventually(t, "the restart_guard that was advised is enough", func() bool {
		found := of(doctor.Examine(t.Context(), s), doctor.Processes)
		return len(found) == 1 && strings.HasPrefix(found[0].Text, "web1/3 ") && !strings.Contains(found[0].Text, "too short")
	})
}

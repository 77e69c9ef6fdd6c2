package redlock_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// BenchmarkManyKeys measures what looking at 50,000 keys costs, and how long the locks beside that take, compared with those beside work that
// has nothing to do with them.
func BenchmarkManyKeys(b *testing.B) {
	l := newLocker(b, []string{"memory://"}, redlock.WithTTL(30*time.Second), redlock.WithMaxTTL(30*time.Second))
	for i := range 50_000 {
		if _, err := l.TryLock(b.Context(), fmt.Sprintf("order:%05d", i), withRequest(&inspect.Request{Method: "POST", Path: "/"})); err != nil {
			b.Fatal(err)
		}
	}
	work := make([]byte, 32<<20)
	for _, look := range []struct {
		name string
		at   func()
	}{
		{"other", func() { sha256.Sum256(work) }},
		{"Status", func() { l.Status() }},
		{"Keys", func() { inspect.Keys(l, "") }},
	} {
		b.Run(look.name, func(b *testing.B) {
			ctx, stop := context.WithCancel(b.Context())
			var beside sync.WaitGroup
			var took []time.Duration
			beside.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					lockUnlock(b, l, "key")
					took = append(took, time.Since(began))
					time.Sleep(time.Millisecond)
				}
			})
			b.ReportAllocs()
			for b.Loop() {
				look.at()
			}
			stop()
			beside.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs/lock-p99")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "µs/slowest-lock")
		})
	}
}

// TestKeysWhileOthersComeAndGo: of many keys those that stay are listed once, and counted, whatever comes and goes meanwhile.
func TestKeysWhileOthersComeAndGo(t *testing.T) {
	t.Parallel()
	l := newLocker(t, []string{"memory://"})
	const stay = 500
	for i := range stay {
		mustLock(t, l, fmt.Sprintf("stay:%03d", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	for range 2 {
		beside.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				lockUnlock(t, l, fmt.Sprint("go:", i%1000))
			}
		})
	}
	for range 50 {
		keys := inspect.Keys(l, "stay:")
		for i, k := range keys {
			if want := fmt.Sprintf("stay:%03d", i); k.Key != want || !k.Held || k.Fence == 0 || k.Until.IsZero() || k.Waiting != 0 {
				t.Fatalf("at %d: %+v, want %s", i, k, want)
			}
		}
		if n := l.Status().Held; len(keys) != stay || n < stay {
			t.Fatalf("%d keys, %d held, want %d", len(keys), n, stay)
		}
	}
}

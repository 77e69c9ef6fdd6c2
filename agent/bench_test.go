//go:build unix

package agent_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// BenchmarkLock takes and releases a lock of three real masters: by the library, and by an agent in the same process, over one kept
// connection of a Unix socket. cpu-µs/op has the client and the agent, and not the masters.
func BenchmarkLock(b *testing.B) {
	locker := newLocker(b, redistest.URLs(redistest.Start(b, 3)))
	client := serve(b, "unix", agent.New(locker))
	b.Run("library", func(b *testing.B) {
		measure(b, func(i int) {
			lock, err := locker.Lock(b.Context(), fmt.Sprintf("k%d", i))
			if err != nil {
				b.Fatal(err)
			}
			if err := lock.Unlock(); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("agent", func(b *testing.B) {
		var line [256]byte
		w := dialWire(b, client)
		measure(b, func(i int) {
			w.send("/v1/lock", fmt.Sprintf("{\"key\":\"k%d\"}\n", i))
			answer := w.answer()
			if answer.StatusCode != http.StatusOK {
				b.Fatal(answer.Status)
			}
			if _, err := answer.Body.Read(line[:]); err != nil {
				b.Fatal(err)
			}
			w.end()
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// measure runs one again and again, and reports its CPU and its median.
func measure(b *testing.B, one func(i int)) {
	for i := range 200 {
		one(i)
	}
	took := make([]time.Duration, 0, b.N)
	before := cpu(b)
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		one(i)
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}

// cpu returns what the process has used.
func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

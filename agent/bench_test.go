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

// BenchmarkLock takes and releases locks of three real masters: by turns 50 by the library, and 50 by an agent in the same process, over one
// kept connection of a Unix socket, as others use the machine, too. The figures are medians for one lock. Those of the CPU have the
// client and the agent, and not the masters.
func BenchmarkLock(b *testing.B) {
	locker := newLocker(b, redistest.URLs(redistest.Start(b, 3)))
	w := dialWire(b, serve(b, "unix", agent.New(locker)))
	var line [256]byte
	ways := []struct {
		name      string
		one       func(i int)
		cpu, took []float64 // µs
	}{
		{name: "library", one: func(i int) {
			lock, err := locker.Lock(b.Context(), fmt.Sprintf("k%d", i))
			if err != nil {
				b.Fatal(err)
			}
			if err := lock.Unlock(); err != nil {
				b.Fatal(err)
			}
		}},
		{name: "agent", one: func(i int) {
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
		}},
	}
	const block = 50
	for range b.N {
		for n := range ways {
			way := &ways[n]
			before := cpu(b)
			for i := range block {
				start := time.Now()
				way.one(i)
				way.took = append(way.took, float64(time.Since(start).Microseconds()))
			}
			way.cpu = append(way.cpu, float64((cpu(b)-before).Microseconds())/block)
		}
	}
	for _, way := range ways {
		b.ReportMetric(median(way.cpu), way.name+"-cpu-µs")
		b.ReportMetric(median(way.took), way.name+"-p50-µs")
	}
	b.ReportMetric(0, "ns/op") // of both ways together, which says nothing
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// cpu returns what the process has used.
func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

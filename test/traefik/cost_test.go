package traefik_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// BenchmarkCost measures a request that gets its lock at once, with the plugin interpreted. The CPU time is that of this process, with
// the agent, but without the masters.
//
//	go test -run '^$' -bench . ./...
func BenchmarkCost(b *testing.B) {
	locker, err := redlock.Open(redistest.URLs(redistest.Start(b, 3)), redlock.WithRestartGuard(0), redlock.WithTimeout(5*time.Second))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	socket := filepath.Join(b.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- agent.New(locker).Serve(ctx, 0, listener) }()
	defer func() { end(); <-ended }()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	h, err := interpreted(b).New(context.Background(), next, map[string]any{"agent": "unix:" + socket, "key": "order:{path.1:int}"})
	if err != nil {
		b.Fatal(err)
	}
	for _, clients := range []int{1, 16} {
		b.Run("clients="+strconv.Itoa(clients), func(b *testing.B) {
			var order atomic.Int64
			before := cpu()
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for n := order.Add(1); n <= int64(b.N); n = order.Add(1) {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/"+strconv.FormatInt(n, 10), nil))
						if w.Code != http.StatusNoContent {
							b.Errorf("status %d: %s", w.Code, w.Body)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}

// cpu returns the CPU time that this process has used, in nanoseconds.
func cpu() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

package yaegitest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/plugintest"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

func compiled(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error) {
	config := traefik.CreateConfig()
	plugintest.Fill(reflect.ValueOf(config), settings)
	return traefik.New(ctx, next, config, "cost")
}

// BenchmarkCost measures a request that gets its lock at once: with the handler alone, with the plugin compiled, and with the plugin
// interpreted. The CPU time is that of this process, without the servers.
//
//	go test -run '^$' -bench . ./...
func BenchmarkCost(b *testing.B) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	newInterpreted := interpreted(b)
	for _, masters := range []int{1, 3} {
		servers := redistest.Start(b, masters)
		settings := map[string]any{"masters": redistest.URLs(servers), "key": "order:{path.1:int}", "restartGuard": "off", "wait": "10s"}
		for _, clients := range []int{1, 16} {
			for name, load := range map[string]plugintest.New{
				"next":        func(_ context.Context, next http.Handler, _ map[string]any) (http.Handler, error) { return next, nil },
				"compiled":    compiled,
				"interpreted": newInterpreted,
			} {
				b.Run(name+"/masters="+strconv.Itoa(masters)+"/clients="+strconv.Itoa(clients), func(b *testing.B) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					h, err := load(ctx, next, settings)
					if err != nil {
						b.Fatal(err)
					}
					h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/1/pay", nil)) // connects to the masters
					var order atomic.Int64
					b.SetParallelism((clients + 1) / 2) // times the processors
					before := cpu()
					b.ResetTimer()
					work := func() {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/"+strconv.FormatInt(order.Add(1), 10)+"/pay", nil))
						if w.Code != http.StatusNoContent {
							b.Errorf("status %d: %s", w.Code, w.Body)
						}
					}
					if clients == 1 {
						for range b.N {
							work()
						}
					} else {
						b.RunParallel(func(pb *testing.PB) {
							for pb.Next() {
								work()
							}
						})
					}
					b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "cpu-µs/op")
				})
			}
		}
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

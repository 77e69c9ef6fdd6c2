package metrics_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A server with net/http that shows its metrics at /metrics.
func Example() {
	m := metrics.New()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(m)
	locker, err := redlock.Open([]string{"memory://"}, redlock.WithObserver(m.Observer()))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	m.Watch(locker)

	pay := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	var mux http.ServeMux
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id:int}", middleware.Rule{Observer: m.Rules(), Name: "pay"})(pay))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
	scrape := httptest.NewRecorder()
	mux.ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(scrape.Body.String()) {
		if strings.Contains(line, `outcome="acquired"`) || strings.HasPrefix(line, "redlock_master_up") {
			fmt.Print(line)
		}
	}
	// Output:
	// redlock_master_up{master="memory://"} 1
	// redlock_requests_total{outcome="acquired",rule="pay"} 1
}

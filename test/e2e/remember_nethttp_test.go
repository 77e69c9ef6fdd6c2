package e2e

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// addNetHTTP has clients send a third of their requests to a net/http server, which has the same rules as the Caddys, and the same masters.
// Its log is theirs.
func (p *paying) addNetHTTP() {
	p.t.Helper()
	const name = "nethttp"
	b := &branch{caddyProcess: &caddyProcess{log: new(safeBuffer)}, name: name}
	logger := slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
			return slog.Float64("ts", float64(a.Value.Time().UnixMicro())/1e6)
		}
		return a
	}}))
	l, err := redlock.Open(redistest.URLs(p.servers), redlock.WithTimeout(calm), redlock.WithMaxTTL(paymentTTL), redlock.WithTTL(paymentTTL), redlock.WithRestartGuard(0), redlock.WithLogger(logger))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() })
	bank, err := url.Parse(p.bank.URL)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(bank)
		r.Out.Header.Set("Test-Caddy", name)
	}}
	rule := middleware.Rule{IdempotencyKey: "required", Scope: "{header.Authorization}", Remember: time.Hour}
	charges := middleware.New(l, "", rule)(proxy)
	rule.Wait = time.Minute
	payments := middleware.New(l, "account:{header.Account}", rule)(proxy)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, turn := middleware.NoteTurn(r.Context())
		defer func() { // also when the proxy breaks off a response
			got, _ := turn()
			logger.Info("handled request", "logger", "http.log.access", slog.Group("request", "headers", http.Header{"Test-Try": r.Header["Test-Try"]}),
				slog.Group("redlock", "outcome", string(got.Outcome)))
		}()
		if r.URL.Path == "/payments" {
			payments.ServeHTTP(w, r.WithContext(ctx))
		} else {
			charges.ServeHTTP(w, r.WithContext(ctx))
		}
	}))
	p.t.Cleanup(server.Close)
	b.url = server.URL
	p.started = append(p.started, b)
	p.branches[len(p.branches)-1].Store(b)
	p.hosts = len(p.branches)
}

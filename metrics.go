package caddyredlock

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/metrics"
)

// series are the metrics of the process. Each configuration has a registry of its own, in which they are shown; they outlive it,
// so that counters go on after a reload.
var series = metrics.New("caddy_redlock")

// showMetrics shows the metrics where this configuration shows Caddy's own: at /metrics of the admin endpoint, and in the handler
// metrics.
func (a *App) showMetrics(ctx caddy.Context) error {
	a.hideBudget = series.WatchBudget(a.bodies)
	err := ctx.GetMetricsRegistry().Register(series)
	if again := new(prometheus.AlreadyRegisteredError); err != nil && !errors.As(err, again) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// countRequests counts the requests of this handler's rule. A rule of the former configuration with the same name goes on with its
// series; those of a rule that no configuration has any more disappear.
func (h *Handler) countRequests() {
	observer, hide := series.Rule(h.serializer.Name)
	h.serializer.Observe(observer)
	h.hideRule = hide
}

// Cleanup ends the series of the rule, unless another configuration or handler has a rule of this name.
func (h *Handler) Cleanup() error {
	if h.hideRule != nil {
		h.hideRule()
	}
	return nil
}

package e2e

import (
	"context"
	"net/http"
	"reflect"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/plugintest"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestSlots has all hosts share slots. Traefik's plugin is compiled here, and interpreted in test/traefik.
func TestSlots(t *testing.T) {
	t.Parallel()
	clients := 200
	if testing.Short() {
		clients = 40
	}
	plugin := &plugintest.Plugin{New: func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error) {
		config := traefik.CreateConfig()
		plugintest.Fill(reflect.ValueOf(config), settings)
		return traefik.New(ctx, next, config, "slots")
	}}
	plugintest.ShareSlots(t, plugin, clients, func(servers []*redistest.Server, site string) string {
		return runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), site)).url
	})
}

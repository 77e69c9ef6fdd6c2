package traefik_test

import (
	"context"
	"net/http"
	"reflect"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/test/plugintest"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestCompiled runs the tests of the plugin on the compiled package.
func TestCompiled(t *testing.T) {
	plugintest.Run(t, func(t testing.TB) *plugintest.Plugin {
		return &plugintest.Plugin{Log: plugintest.Logged(t), New: func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error) {
			config := traefik.CreateConfig()
			plugintest.Fill(reflect.ValueOf(config), settings)
			return traefik.New(ctx, next, config, "test")
		}}
	})
}

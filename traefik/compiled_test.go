package traefik

import (
	"context"
	"net/http"
	"reflect"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/plugintest"
)

// TestPlugin runs the tests on the compiled package; module yaegitest does on the interpreted one.
func TestPlugin(t *testing.T) {
	plugintest.Run(t, func(t testing.TB) *plugintest.Plugin {
		return &plugintest.Plugin{Log: plugintest.Logged(t), New: func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error) {
			config := CreateConfig()
			plugintest.Fill(reflect.ValueOf(config), settings)
			return New(ctx, next, config, "test")
		}}
	})
}

// Package traefik_test runs the plugin compiled and, as Traefik does, in the interpreter Yaegi.
package traefik_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/plugintest"
	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
)

const importPath = "github.com/caddy-redlock/caddy-redlock/traefik"

// interpreted loads the plugin as Traefik does (pkg/plugins/middlewareyaegi.go).
func interpreted(t testing.TB) *plugintest.Plugin {
	if redistest.Race {
		t.Skip("the interpreter itself has data races; TestCompiled looks for those of the plugin")
	}
	gopath := t.TempDir()
	dir := filepath.Join(gopath, "src", importPath)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("../../traefik/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(source)), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stderr, logged := plugintest.NewBuffer()
	i := interp.New(interp.Options{GoPath: gopath, Env: os.Environ(), Stderr: stderr})
	if err := i.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Eval(fmt.Sprintf("import %q", importPath)); err != nil {
		t.Fatal(err)
	}
	newHandler, err := i.Eval("traefik.New")
	if err != nil {
		t.Fatal(err)
	}
	createConfig, err := i.Eval("traefik.CreateConfig")
	if err != nil {
		t.Fatal(err)
	}
	return &plugintest.Plugin{Log: logged, New: func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error) {
		config := createConfig.Call(nil)[0]
		plugintest.Fill(config, settings)
		results := newHandler.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(next), config, reflect.ValueOf("test")})
		if err, _ := results[1].Interface().(error); err != nil {
			return nil, err
		}
		return results[0].Interface().(http.Handler), nil
	}}
}

// TestInterpreted runs on the interpreted package what TestCompiled runs on the compiled one.
func TestInterpreted(t *testing.T) { plugintest.Run(t, interpreted) }

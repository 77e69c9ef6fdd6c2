package middleware_test

import (
	"errors"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/keycases"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestKeyCases(t *testing.T) {
	for i, c := range keycases.All() {
		template, err := middleware.ParseTemplate(c.Template, middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Key(c.Request)
		switch {
		case errors.Is(err, middleware.ErrMissingKey):
			got = keycases.Missing
		case errors.Is(err, middleware.ErrAmbiguousKey):
			got = keycases.Ambiguous
		case err != nil:
			got = keycases.Refused
		}
		if got != c.Want {
			t.Errorf("case %d: %q of %s %s with %v: %q, want %q (error %v)", i, c.Template, c.Request.Host, c.Request.RequestURI, c.Request.Header, got, c.Want, err)
		}
	}
}

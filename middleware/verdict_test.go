package middleware_test

import (
	"context"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/verdicts"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// TestVerdicts: the responses to requests that don't get their lock.
func TestVerdicts(t *testing.T) {
	for _, v := range verdicts.All {
		for _, cause := range []error{nil, context.DeadlineExceeded} {
			refusal := middleware.RefusalOf(t.Context(), v.Err(cause))
			if refusal.Status() != v.Status || string(refusal.Turn().Outcome) != v.Outcome || middleware.RetryAfter(refusal) == 0 {
				t.Errorf("%s, %v: %d %s, again after %v; want %d %s", v.Seen, cause, refusal.Status(), refusal.Turn().Outcome, middleware.RetryAfter(refusal), v.Status, v.Outcome)
			}
		}
	}
}

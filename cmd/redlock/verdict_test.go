//go:build unix

package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/verdicts"
)

// TestVerdicts: the exit codes of a job that doesn't get its lock, from the masters or from an agent.
func TestVerdicts(t *testing.T) {
	run := &runCommand{heldCode: codeHeld, skipCode: codeHeld}
	for _, v := range verdicts.All {
		for _, cause := range []error{nil, context.DeadlineExceeded} {
			w := httptest.NewRecorder()
			w.Header().Set("Redlock-Agent", "1")
			engine.RefusalOf(t.Context(), v.Err(cause)).Write(w)
			for door, err := range map[string]error{"masters": run.refused(v.Err(cause)), "an agent": run.refusedBy(&agentClient{}, w.Result())} {
				var got *coded
				if !errors.As(err, &got) || got.code != v.Exit {
					t.Errorf("%s, from %s, %v: %v, want %d", v.Seen, door, cause, got, v.Exit)
				}
			}
		}
	}
}

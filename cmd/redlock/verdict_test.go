package main

import (
	"context"
	"errors"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/verdicts"
)

// TestVerdicts: the exit codes of a job that doesn't get its lock.
func TestVerdicts(t *testing.T) {
	for _, v := range verdicts.All {
		for _, cause := range []error{nil, context.DeadlineExceeded} {
			var got *coded
			err := (&runCommand{heldCode: codeHeld, skipCode: codeHeld}).refused(v.Err(cause))
			if !errors.As(err, &got) || got.code != v.Exit {
				t.Errorf("%s, %v: %v, want %d", v.Seen, cause, got, v.Exit)
			}
		}
	}
}

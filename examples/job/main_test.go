package main

import (
	"context"
	"errors"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

func TestJobRunsOnOneMachine(t *testing.T) {
	locker := redlocktest.New(t)

	runs, failed := 0, errors.New("failed")
	err := run(t.Context(), locker, func(ctx context.Context) error {
		runs++
		if err := run(ctx, locker, func(context.Context) error { runs++; return nil }); err != nil {
			t.Errorf("second machine: %v", err)
		}
		return failed
	})
	if runs != 1 || !errors.Is(err, failed) {
		t.Errorf("%d runs, error %v, want one run and its error", runs, err)
	}
	_ = run(t.Context(), locker, func(context.Context) error { runs++; return nil })
	if runs != 2 {
		t.Error("the lock was not released")
	}
}

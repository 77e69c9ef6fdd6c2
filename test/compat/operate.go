package compat

import (
	"context"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func inspectKey(ctx context.Context, l *redlock.Locker, key string) (any, error) {
	return inspect.Key(ctx, l, key)
}

func force(ctx context.Context, l *redlock.Locker, key string, fence uint64) error {
	return inspect.Force(ctx, l, key, 0, fence)
}

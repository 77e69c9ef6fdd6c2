package redlock

import (
	"context"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Packages inspect and redlocktest reach a Locker's unexported parts only through this function.
func init() {
	hook.InsideOf = func(ctx context.Context, locker any) (hook.Inside, error) {
		l := locker.(*Locker)
		if err := l.usable(ctx); err != nil {
			return hook.Inside{}, err
		}
		return hook.Inside{
			Masters:          l.voters,
			MaxTTL:           l.maxTTL,
			StatusOf:         func(key string) any { return l.gates.statusOf(protocol.Key(l.prefix, key)) },
			EndByForce:       l.gates.endByForce,
			Lose:             func(key string) bool { return l.gates.lose(protocol.Key(l.prefix, key)) },
			UnlockForgetting: func(lock any) error { return lock.(*Lock).unlockForgetting() },
			Difference:       l.heart.difference,
		}, nil
	}
}

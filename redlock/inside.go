package redlock

import (
	"context"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// This module's own packages and programs reach unexported parts only through these functions.
func init() {
	inside.Of = func(locker any) inside.Locker {
		l := locker.(*Locker)
		return inside.Locker{Prefix: l.prefix, Instance: l.instance, MaxHold: l.maxHold, Logger: l.reporter.logger, Keyspace: l.keyspace()}
	}
	inside.Dial = func(access func() inside.Access, urls ...string) (any, error) { return dialAll(access, urls...) }
	inside.NewMemoryMaster = func(name string) any { return Master{newMemory(name, time.Now)} }
	inside.CheckTTL = func(locker any, ttl time.Duration) error {
		l := locker.(*Locker)
		if err := l.usable(context.Background()); err != nil {
			return err
		}
		_, err := l.with([]LockOption{WithTTL(ttl)})
		return err
	}
	inside.CheckOptions = func(options any) error {
		_, err := newOptions(options.([]Option))
		return err
	}
	inside.WithoutWarnings = option(func(o *options) { o.warned = true })
	inside.Overlap = func(ones, others any) bool { return overlap(ones.([]Master), others.([]Master)) }
	inside.Examine = func(ctx context.Context, master any, prefix string, patience time.Duration) *inside.Examination {
		return master.(Master).examine(ctx, prefix, patience)
	}
	inside.AcquisitionOf = func(lock any) inside.Acquisition { return lock.(*Lock).made().acquisition }
	inside.EndOf = func(lock any) inside.End { return lock.(*Lock).made().howEnded() }
	inside.WithRequest = func(r *inside.Request) any {
		return lockOption(func(o lockOptions) lockOptions { o.request = r; return o })
	}
	inside.DefaultMaxSkew, inside.DefaultRestartGuard = defaultMaxSkew, defaultRestartGuard
}

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
			Prefix:           l.prefix,
			Instance:         l.instance,
			Keys:             l.keys,
			StatusOf:         func(key string) []hook.KeyStatus { return l.gates.statusOf(protocol.Key(l.prefix, key)) },
			EndByForce:       l.gates.endByForce,
			Lose:             func(key string) bool { return l.gates.lose(protocol.Key(l.prefix, key)) },
			UnlockForgetting: func(lock any) error { return lock.(*Lock).unlockForgetting() },
			Difference:       l.heart.difference,
		}, nil
	}
}

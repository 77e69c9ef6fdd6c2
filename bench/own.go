package main

import (
	"context"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type own struct{ locker *redlock.Locker }

// openOwn opens this library. The restart guard is off: the servers have just started.
func openOwn(addrs []string) (Contestant, error) {
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "redis://" + addr
	}
	locker, err := redlock.Open(urls, redlock.WithTTL(ttl), redlock.WithRestartGuard(0))
	return own{locker}, err
}

func (o own) Lock(ctx context.Context, key string) (func() error, error) {
	lock, err := o.locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

func (o own) Close() error { return o.locker.Close() }

package main

import (
	"context"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type own struct{ locker *redlock.Locker }

func openOwn(addrs []string) (Contestant, error) { return openLocker(addrs) }

func openSlots(addrs []string) (Contestant, error) {
	return openLocker(addrs, redlock.WithConcurrency(atOnce))
}

// openLocker opens this library. The restart guard is off: the servers have just started.
func openLocker(addrs []string, more ...redlock.Option) (Contestant, error) {
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "redis://" + addr
	}
	locker, err := redlock.Open(urls, append(more, redlock.WithTTL(ttl), redlock.WithRestartGuard(0))...)
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

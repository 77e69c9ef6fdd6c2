package main

import (
	"context"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type own struct{ locker *redlock.Locker }

// openOwn opens this library. The restart guard is off: the servers have just started.
func openOwn(addrs []string) (Contestant, error) { return openOwnWith(addrs) }

// openOwnFar has the one setting for masters that are more than 80 ms away.
func openOwnFar(addrs []string) (Contestant, error) {
	return openOwnWith(addrs, redlock.WithTimeout(150*time.Millisecond))
}

func openOwnWith(addrs []string, more ...redlock.Option) (Contestant, error) {
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "redis://" + addr
	}
	locker, err := redlock.Open(urls, append(more, redlock.WithTTL(ttl), redlock.WithRestartGuard(0))...)
	return own{locker}, err
}

func (o own) Lock(ctx context.Context, key string) (func() error, error) {
	return unlockOf(o.locker.Lock(ctx, key))
}

func (o own) TryLock(ctx context.Context, key string) (func() error, error) {
	return unlockOf(o.locker.TryLock(ctx, key))
}

func unlockOf(lock *redlock.Lock, err error) (func() error, error) {
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

func (o own) Close() error { return o.locker.Close() }

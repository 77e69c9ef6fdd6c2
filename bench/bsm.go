package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type bsm struct {
	client *redis.Client
	locks  *redislock.Client
}

// openBsm opens bsm/redislock, which knows one server only.
func openBsm(addrs []string) (Contestant, error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0]})
	return bsm{client, redislock.New(client)}, nil
}

func (b bsm) Lock(ctx context.Context, key string) (func() error, error) {
	// 16 ms is the least that its documentation advises.
	lock, err := b.locks.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(16 * time.Millisecond)})
	if err != nil {
		return nil, err
	}
	return func() error { return lock.Release(context.Background()) }, nil
}

func (b bsm) Close() error { return b.client.Close() }

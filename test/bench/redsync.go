package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	rsgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	rsrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

type redsyncLocks struct {
	rs      *redsync.Redsync
	options []redsync.Option
	close   func() error
}

// redsyncOptions leave redsync's defaults, but Lock waits until its context ends: by default it gives
// up after 32 tries.
func redsyncOptions(more []redsync.Option) []redsync.Option {
	return append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32)}, more...)
}

func openRedsync(addrs []string) (Contestant, error) {
	return redsyncGoRedis(addrs, redis.Options{})
}

// openRedsync10 polls more often than redsync's default of 50 to 250 ms.
func openRedsync10(addrs []string) (Contestant, error) {
	return redsyncGoRedis(addrs, redis.Options{}, redsync.WithRetryDelayFunc(func(int) time.Duration {
		return 5*time.Millisecond + rand.N(10*time.Millisecond)
	}))
}

// openRedsync50 returns as soon as a quorum has answered, which may leave a key on the last master, and has our time-outs instead of
// go-redis's, which are seconds.
func openRedsync50(addrs []string) (Contestant, error) {
	const timeout = 50 * time.Millisecond
	return redsyncGoRedis(addrs, redis.Options{DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout},
		redsync.WithFailFast(true), redsync.WithTimeoutFactor(timeout.Seconds()/ttl.Seconds()))
}

func redsyncGoRedis(addrs []string, o redis.Options, more ...redsync.Option) (Contestant, error) {
	var pools []rsredis.Pool
	var closers []func() error
	for _, addr := range addrs {
		one := o
		one.Addr, one.ContextTimeoutEnabled = addr, true
		client := redis.NewClient(&one)
		pools = append(pools, rsgoredis.NewPool(client))
		closers = append(closers, client.Close)
	}
	return &redsyncLocks{redsync.New(pools...), redsyncOptions(more), closeAll(closers)}, nil
}

func openRueidis(addrs []string) (Contestant, error) {
	var pools []rsredis.Pool
	var closers []func() error
	for _, addr := range addrs {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			return nil, err
		}
		pools = append(pools, rsrueidis.NewPool(rueidiscompat.NewAdapter(client)))
		closers = append(closers, func() error { client.Close(); return nil })
	}
	return &redsyncLocks{redsync.New(pools...), redsyncOptions(nil), closeAll(closers)}, nil
}

func (r *redsyncLocks) Lock(ctx context.Context, key string) (func() error, error) {
	mutex := r.rs.NewMutex(key, r.options...)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		_, err := mutex.Unlock()
		return err
	}, nil
}

func (r *redsyncLocks) Close() error { return r.close() }

func closeAll(closers []func() error) func() error {
	return func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
}

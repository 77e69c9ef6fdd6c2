package main

import (
	"context"
	"time"
)

// Contestant is a lock, of a library or a floor, on some masters.
type Contestant interface {
	// Lock waits until it has the lock, or ctx ends.
	Lock(ctx context.Context, key string) (unlock func() error, err error)
	Close() error
}

// tryer is a Contestant that can also ask once. The floors' Lock does nothing else.
type tryer interface {
	TryLock(ctx context.Context, key string) (unlock func() error, err error)
}

type lockFunc = func(ctx context.Context, key string) (unlock func() error, err error)

// ttl is that of every contestant's locks.
const ttl = 10 * time.Second

// contestantKind says how to open a contestant, and what to know about it.
type contestantKind struct {
	name string
	open func(addrs []string) (Contestant, error)
	// sends are the commands that the client sends while it locks. Redis counts those that scripts
	// call in the same statistics: a command that is both would be counted too often, and
	// TestSends fails.
	sends []string
}

const (
	nameOwn         = "caddy-redlock"
	nameOwnFar      = "caddy-redlock, timeout 150 ms"
	nameRedsync     = "redsync/go-redis"
	nameRedsync10   = "redsync/go-redis, 5–15 ms"
	nameRedsyncFast = "redsync/go-redis, FailFast"
	nameRedsync50   = "redsync/go-redis, FailFast, 50 ms"
	nameRueidis     = "redsync/rueidis"
	nameRueidisFast = "redsync/rueidis, FailFast"
	nameRueLock     = "rueidislock"
	nameBsm         = "bsm/redislock"
	nameRaw         = "raw floor"
	nameGoRedis     = "go-redis floor"
	nameFIFO        = "FIFO floor"
)

var redsyncSends = []string{"set", "evalsha", "eval"}

var kinds = []contestantKind{
	{nameOwn, openOwn, []string{"evalsha", "eval", "lrem", "subscribe", "ping"}},
	{nameOwnFar, openOwnFar, []string{"evalsha", "eval", "lrem", "subscribe", "ping"}},
	{nameRedsync, openRedsync, redsyncSends},
	{nameRedsync10, openRedsync10, redsyncSends},
	{nameRedsyncFast, openRedsyncFast, redsyncSends},
	{nameRedsync50, openRedsync50, redsyncSends},
	{nameRueidis, openRueidis, redsyncSends},
	{nameRueidisFast, openRueidisFast, redsyncSends},
	{nameRueLock, openRueidislock, []string{"evalsha", "eval"}},
	{nameBsm, openBsm, []string{"evalsha", "eval"}},
	{nameGoRedis, openGoRedisFloor, []string{"set", "evalsha"}},
	{nameFIFO, openFIFO, []string{"set", "evalsha"}},
	{nameRaw, openRaw, []string{"set", "evalsha"}},
}

func kindOf(name string) contestantKind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no contestant " + name)
}

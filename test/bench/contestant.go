package main

import (
	"context"
	"time"
)

// Contestant is a lock, of a library or the floor, on some masters.
type Contestant interface {
	// Lock waits until it has the lock, or ctx ends.
	Lock(ctx context.Context, key string) (unlock func() error, err error)
	Close() error
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
	nameOwn       = "caddy-redlock"
	nameRueidis   = "redsync/rueidis"
	nameRedsync   = "redsync/go-redis"
	nameRedsync10 = "redsync/go-redis, 5–15 ms"
	nameRedsync50 = "redsync/go-redis, FailFast, 50 ms"
	nameRaw       = "raw floor"

	nameSlots     = "caddy-redlock, 3 masters"
	nameSlotsOf1  = "caddy-redlock, 1 master"
	nameSortedSet = "sorted set"
	nameCounter   = "counter"
	nameSemaphore = "x/sync/semaphore"
)

var (
	ownSends     = []string{"evalsha", "eval", "lrem", "subscribe", "ping"}
	redsyncSends = []string{"set", "evalsha", "eval"}
)

var kinds = []contestantKind{
	{nameOwn, openOwn, ownSends},
	{nameRueidis, openRueidis, redsyncSends},
	{nameRedsync, openRedsync, redsyncSends},
	{nameRedsync10, openRedsync10, redsyncSends},
	{nameRedsync50, openRedsync50, redsyncSends},
	{nameRaw, openRaw, []string{"set", "evalsha"}},
	{nameSlots, openSlots, ownSends},
	{nameSlotsOf1, func(addrs []string) (Contestant, error) { return openSlots(addrs[:1]) }, ownSends},
	{nameSortedSet, openSortedSet, []string{"evalsha", "eval", "zrem"}},
	{nameCounter, openCounter, []string{"incr", "decr", "pexpire"}},
	{nameSemaphore, openSemaphore, nil},
}

func kindOf(name string) contestantKind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no contestant " + name)
}

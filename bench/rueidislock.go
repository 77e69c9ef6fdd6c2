package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidisLocks struct{ locker rueidislock.Locker }

// openRueidislock opens rueidislock with as many keys as masters, each on its own master.
func openRueidislock(addrs []string) (Contestant, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		KeyPrefix:      ruePrefix,
		KeyValidity:    ttl,
		KeyMajority:    int32(len(addrs)/2 + 1),
		TryNextAfter:   100 * time.Millisecond, // the default, 20 ms, is too short for 256 callers on two CPUs
		NoLoopTracking: true,                   // as its README advises from Redis 7.0.5 on
		ClientOption:   rueidis.ClientOption{InitAddress: addrs},
		ClientBuilder:  newRouter,
	})
	if err != nil {
		return nil, err
	}
	return rueidisLocks{locker}, nil
}

func (r rueidisLocks) Lock(ctx context.Context, key string) (func() error, error) {
	_, cancel, err := r.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return func() error { cancel(); return nil }, nil
}

func (r rueidisLocks) Close() error { r.locker.Close(); return nil }

const ruePrefix = "rl"

// router is a rueidis.Client that sends key i of a lock, "rl:i:name", to master i. The library takes
// one client; its own way to several masters is a cluster whose slots spread the keys by chance.
type router struct {
	rueidis.Client // of the first master, for all that has no key
	masters        []rueidis.Client
}

func newRouter(option rueidis.ClientOption) (rueidis.Client, error) {
	r := &router{}
	for _, addr := range option.InitAddress {
		one := option
		one.InitAddress, one.ForceSingleClient = []string{addr}, true
		client, err := rueidis.NewClient(one)
		if err != nil {
			return nil, err
		}
		r.masters = append(r.masters, client)
	}
	r.Client = r.masters[0]
	return r, nil
}

func (r *router) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	args := cmd.Commands() // EVALSHA sha 1 key …
	if len(args) < 4 || !strings.HasPrefix(args[3], ruePrefix+":") {
		panic(fmt.Sprintf("rueidislock sends %q: where to?", args))
	}
	number, _, _ := strings.Cut(args[3][len(ruePrefix)+1:], ":")
	i, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	return r.masters[i].Do(ctx, cmd)
}

func (r *router) Close() {
	for _, client := range r.masters {
		client.Close()
	}
}

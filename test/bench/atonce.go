package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"
)

// atOnce is how many may hold a key at the same time, for those contestants that allow several. A child is told by a flag.
var atOnce = 3

// onServer is a lock of atOnce holders on one server, as posts and books describe it: who finds no room asks again later.
type onServer struct {
	client *redis.Client
	enter  func(ctx context.Context, key, member string) (bool, error)
	leave  func(ctx context.Context, key, member string) error
}

func (o onServer) Lock(ctx context.Context, key string) (func() error, error) {
	member := strconv.FormatUint(rand.Uint64(), 36)
	for {
		entered, err := o.enter(ctx, key, member)
		switch {
		case err != nil:
			return nil, err
		case entered:
			return func() error { return o.leave(context.Background(), key, member) }, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5*time.Millisecond + rand.N(10*time.Millisecond)):
		}
	}
}

func (o onServer) Close() error { return o.client.Close() }

// openCounter counts the holders. What a process that dies has counted stays, while others keep the count alive.
func openCounter(addrs []string) (Contestant, error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true})
	leave := func(ctx context.Context, key, _ string) error { return client.Decr(ctx, key).Err() }
	enter := func(ctx context.Context, key, member string) (bool, error) {
		var count *redis.IntCmd
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			count = p.Incr(ctx, key)
			p.PExpire(ctx, key, ttl)
			return nil
		})
		if err != nil || int(count.Val()) <= atOnce {
			return err == nil, err
		}
		return false, leave(context.WithoutCancel(ctx), key, member)
	}
	return onServer{client, enter, leave}, nil
}

// openSortedSet keeps the holders with the ends of their leases.
func openSortedSet(addrs []string) (Contestant, error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true})
	script := redis.NewScript(`
		redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
		if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
		redis.call('ZADD', KEYS[1], ARGV[2], ARGV[4])
		redis.call('PEXPIREAT', KEYS[1], ARGV[2])
		return 1`)
	return onServer{
		client: client,
		enter: func(ctx context.Context, key, member string) (bool, error) {
			now := time.Now()
			return script.Run(ctx, client, []string{key}, now.UnixMilli(), now.Add(ttl).UnixMilli(), atOnce, member).Bool()
		},
		leave: func(ctx context.Context, key, member string) error { return client.ZRem(ctx, key, member).Err() },
	}, nil
}

// semaphores are the floor: they know nothing of other processes.
type semaphores struct {
	mu    sync.Mutex
	byKey map[string]*semaphore.Weighted
}

func openSemaphore([]string) (Contestant, error) {
	return &semaphores{byKey: make(map[string]*semaphore.Weighted)}, nil
}

func (s *semaphores) Lock(ctx context.Context, key string) (func() error, error) {
	s.mu.Lock()
	of := s.byKey[key]
	if of == nil {
		of = semaphore.NewWeighted(int64(atOnce))
		s.byKey[key] = of
	}
	s.mu.Unlock()
	if err := of.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() error { of.Release(1); return nil }, nil
}

func (s *semaphores) Close() error { return nil }

// holders returns how many held the key at the same time: at most, and on average while the last quarter of a slice ran.
func holders(holds []hold) (most int, average float64) {
	type change struct {
		at int64
		by int
	}
	var changes []change
	for _, h := range holds {
		changes = append(changes, change{h.Locked, 1}, change{h.Freeing, -1})
	}
	if len(changes) == 0 {
		return 0, 0
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	first, last := changes[0].at, changes[len(changes)-1].at
	from := last - (last-first)/4
	now, area := 0, int64(0)
	for i, c := range changes {
		now += c.by
		most = max(most, now)
		if i+1 < len(changes) {
			area += int64(now) * max(0, changes[i+1].at-max(from, c.at))
		}
	}
	return most, float64(area) / float64(max(last-from, 1))
}

// killOne puts the load on all processes, and kills the last one after a sixteenth of the time. What that one did isn't known: the sample
// is of the others.
func (e *entrant) killOne(load slice) (sample, error) {
	last := len(e.processes) - 1
	victim, others := e.processes[last], *e
	e.processes = e.processes[:last]
	others.processes = e.processes
	ended := make(chan struct{})
	go func() {
		_, _ = victim.put(load)
		close(ended)
	}()
	time.AfterFunc(load.Time/16, func() { _ = victim.cmd.Process.Kill() })
	s, err := others.measure(load)
	<-ended
	_ = victim.cmd.Wait()
	return s, err
}

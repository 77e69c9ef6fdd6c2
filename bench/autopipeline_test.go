package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// autoFloor is the go-redis floor with go-redis's own batcher.
type autoFloor struct {
	clients []*redis.Client
	pipes   []*redis.AutoPipeliner
}

func openAutoFloor(addrs []string, fullDuplex bool) (Contestant, error) {
	f := &autoFloor{}
	for _, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		if err := client.ScriptLoad(context.Background(), releaseScript).Err(); err != nil {
			return nil, err
		}
		options := redis.DefaultAutoPipelineOptions()
		options.FullDuplex = fullDuplex
		pipe, err := client.AsyncAutoPipelineWithOptions(options)
		if err != nil {
			return nil, err
		}
		f.clients, f.pipes = append(f.clients, client), append(f.pipes, pipe)
	}
	return f, nil
}

func (f *autoFloor) Lock(ctx context.Context, key string) (func() error, error) {
	token := newToken()
	release := func() error {
		if !f.round(ctx, int64(1), "EVALSHA", releaseSHA, "1", key, token) {
			return errNotOur
		}
		return nil
	}
	if !f.round(ctx, "OK", "SET", key, token, "NX", "PX", ttlText) {
		_ = release()
		return nil, errHeld
	}
	return release, nil
}

// round asks all masters, and waits for them: nothing tells which answers first.
func (f *autoFloor) round(ctx context.Context, want any, args ...any) bool {
	answers, yes := make([]*redis.Cmd, len(f.pipes)), 0
	for i, pipe := range f.pipes {
		answers[i] = pipe.Do(ctx, args...)
	}
	for _, answer := range answers {
		if answer.Val() == want {
			yes++
		}
	}
	return yes > len(answers)/2
}

func (f *autoFloor) Close() error {
	for i, client := range f.clients {
		_ = f.pipes[i].Close()
		_ = client.Close()
	}
	return nil
}

// BenchmarkBatchers compares ways to share pipelines among callers: go test -run - -bench Batchers -count 5.
func BenchmarkBatchers(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for name, open := range map[string]func([]string) (Contestant, error){
			"own":                       openGoRedisFloor,
			"AutoPipeline, half duplex": func(addrs []string) (Contestant, error) { return openAutoFloor(addrs, false) },
			"AutoPipeline, full duplex": func(addrs []string) (Contestant, error) { return openAutoFloor(addrs, true) },
		} {
			b.Run(fmt.Sprintf("%s, %d callers", name, callers), func(b *testing.B) {
				servers, err := startServers(3)
				if err != nil {
					b.Fatal(err)
				}
				defer stopServers(servers)
				c, err := open(addrs(servers))
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				var turns atomic.Int64
				var all sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				before, _ := usage()
				for caller := range callers {
					all.Go(func() {
						for turn := turns.Add(1); turn <= int64(b.N); turn = turns.Add(1) {
							unlock, err := c.Lock(context.Background(), fmt.Sprintf("key:%d:%d", caller, turn%128))
							if err == nil {
								err = unlock()
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				after, _ := usage()
				b.ReportMetric(float64((after-before).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// goRedisFloor is what the classic algorithm costs on go-redis, with a batcher for each master.
type goRedisFloor struct {
	clients []*redis.Client
	queues  []chan floorCall
}

type floorCall struct {
	ballot     *ballot
	key, token string
	release    bool
}

func openGoRedisFloor(addrs []string) (Contestant, error) {
	f := &goRedisFloor{}
	for _, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		if err := client.ScriptLoad(context.Background(), releaseScript).Err(); err != nil {
			return nil, err
		}
		queue := make(chan floorCall, 4096)
		go batch(client, queue)
		f.clients, f.queues = append(f.clients, client), append(f.queues, queue)
	}
	return f, nil
}

// batch sends what is queued in one pipeline, and what has come meanwhile in the next.
func batch(client *redis.Client, queue chan floorCall) {
	ctx := context.Background()
	var calls []floorCall
	var answers []*redis.Cmd
	for call := range queue {
		calls = append(calls[:0], call)
		for len(queue) > 0 && len(calls) < 256 {
			calls = append(calls, <-queue)
		}
		pipe := client.Pipeline()
		answers = answers[:0]
		for _, c := range calls {
			if c.release {
				answers = append(answers, pipe.EvalSha(ctx, releaseSHA, []string{c.key}, c.token))
			} else {
				answers = append(answers, pipe.Do(ctx, "SET", c.key, c.token, "NX", "PX", ttlText))
			}
		}
		_, _ = pipe.Exec(ctx) // each answer has its error
		for i, c := range calls {
			won := answers[i].Val() == "OK" || answers[i].Val() == int64(1)
			c.ballot.vote(answers[i].Err() == nil && won)
		}
	}
}

func (f *goRedisFloor) round(c floorCall) bool {
	c.ballot = newBallot(len(f.queues))
	for _, queue := range f.queues {
		queue <- c
	}
	return c.ballot.wait()
}

func (f *goRedisFloor) Lock(_ context.Context, key string) (func() error, error) {
	token := newToken()
	release := func() error {
		if !f.round(floorCall{key: key, token: token, release: true}) {
			return errNotOur
		}
		return nil
	}
	if !f.round(floorCall{key: key, token: token}) {
		_ = release()
		return nil, errHeld
	}
	return release, nil
}

func (f *goRedisFloor) Close() error {
	var errs []error
	for i, client := range f.clients {
		close(f.queues[i])
		errs = append(errs, client.Close())
	}
	return errors.Join(errs...)
}

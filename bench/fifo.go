package main

import (
	"context"
	"slices"
	"sync"
)

// fifo is the floor of a hand-off in one process: callers wait in a queue, without the masters, and
// its head takes and frees the key on the raw floor.
type fifo struct {
	*raw
	mu     sync.Mutex
	queues map[string][]chan struct{} // of those that wait; there is none where the key is free
}

func openFIFO(addrs []string) (Contestant, error) {
	r, err := newRaw(addrs)
	return &fifo{raw: r, queues: make(map[string][]chan struct{})}, err
}

func (f *fifo) Lock(ctx context.Context, key string) (func() error, error) {
	if err := f.enter(ctx, key); err != nil {
		return nil, err
	}
	unlock, err := f.raw.Lock(ctx, key)
	if err != nil {
		f.leave(key)
		return nil, err
	}
	return func() error {
		err := unlock()
		f.leave(key)
		return err
	}, nil
}

func (f *fifo) enter(ctx context.Context, key string) error {
	f.mu.Lock()
	queue, taken := f.queues[key]
	if !taken {
		f.queues[key] = nil
		f.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	f.queues[key] = append(queue, turn)
	f.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	i := slices.Index(f.queues[key], turn)
	if i >= 0 {
		f.queues[key] = slices.Delete(f.queues[key], i, i+1)
	}
	f.mu.Unlock()
	if i < 0 { // the turn has come meanwhile
		f.leave(key)
	}
	return ctx.Err()
}

func (f *fifo) leave(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if queue := f.queues[key]; len(queue) > 0 {
		f.queues[key] = queue[1:]
		close(queue[0])
		return
	}
	delete(f.queues, key)
}

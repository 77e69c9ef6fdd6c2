package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// messages keeps what go-redis logs.
type messages struct {
	mu    sync.Mutex
	texts []string
}

func (m *messages) Printf(_ context.Context, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.texts = append(m.texts, fmt.Sprintf(format, args...))
}

// TestCanceledIsQuiet: go-redis has nothing to say, on standard error, of a connection, a question or a subscription that is
// given up at any moment.
func TestCanceledIsQuiet(t *testing.T) {
	var logged messages
	redis.SetLogger(&logged)
	defer logging.Enable()
	server := redistest.Start(t, 1)[0]
	master := dial(t, server.URL())
	cluster := NewCluster(redis.ClusterOptions{Addrs: []string{server.Addr()}})
	began := time.Now()
	_, _ = cluster.Ask(t.Context(), server.Addr())
	usual := time.Since(began)
	for _, do := range []func(context.Context){
		func(ctx context.Context) { _, _ = cluster.Ask(ctx, server.Addr()) },
		func(ctx context.Context) {
			if c, err := master.Connect(ctx, nil); err == nil {
				c.Close()
			}
		},
		func(ctx context.Context) { _ = master.Listen(ctx, "process", time.Minute, func() {}, nil) },
	} {
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 500 {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*usual))
					do(ctx)
					cancel()
				}
			})
		}
		callers.Wait()
	}
	if len(logged.texts) > 0 {
		t.Errorf("%d messages, as %q", len(logged.texts), logged.texts[0])
	}
}

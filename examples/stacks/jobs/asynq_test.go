package jobs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/caddy-redlock/caddy-redlock/examples/stacks/jobs"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestAsynq: two workers get each invoice three times, and send it once; one that can't be sent at first is sent by the next task.
func TestAsynq(t *testing.T) {
	t.Parallel()
	queue, err := asynq.ParseRedisURI(redistest.Start(t, 1)[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	tried, sent := make(map[string]int), make(map[string]int)
	send := func(ctx context.Context, task *asynq.Task) error {
		invoice := string(task.Payload())
		mu.Lock()
		defer mu.Unlock()
		if tried[invoice]++; invoice == "3" && tried[invoice] == 1 {
			return errors.Join(errors.New("the printer is on fire"), asynq.SkipRetry)
		}
		sent[invoice]++
		return ctx.Err()
	}
	key := func(task *asynq.Task) string { return "invoice:" + string(task.Payload()) }
	for _, l := range machines(t, 2) {
		mux := asynq.NewServeMux()
		mux.Use(jobs.Unique(l, key, time.Hour, 2*time.Minute))
		mux.HandleFunc("invoice", send)
		worker := asynq.NewServer(queue, asynq.Config{Concurrency: 5, LogLevel: asynq.FatalLevel})
		if err := worker.Start(mux); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(worker.Shutdown)
	}
	client, inspector := asynq.NewClient(queue), asynq.NewInspector(queue)
	t.Cleanup(func() { _, _ = client.Close(), inspector.Close() })
	for range 3 {
		for _, invoice := range []string{"1", "2", "3"} {
			if _, err := client.EnqueueContext(t.Context(), asynq.NewTask("invoice", []byte(invoice)), asynq.Timeout(5*time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		if info.ProcessedTotal == 9 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, invoice := range []string{"1", "2", "3"} {
		if sent[invoice] != 1 {
			t.Errorf("invoice %s was sent %d times", invoice, sent[invoice])
		}
	}
}

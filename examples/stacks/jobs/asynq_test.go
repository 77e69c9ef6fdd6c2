package jobs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/caddy-redlock/caddy-redlock/examples/stacks/jobs"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// invoices are sent by jobs; the first try of 3 fails.
type invoices struct {
	mu          sync.Mutex
	tried, sent map[string]int
}

func (i *invoices) send(ctx context.Context, invoice string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sent == nil {
		i.tried, i.sent = make(map[string]int), make(map[string]int)
	}
	if i.tried[invoice]++; invoice == "3" && i.tried[invoice] == 1 {
		return errors.New("the printer is on fire")
	}
	i.sent[invoice]++
	return ctx.Err()
}

func (i *invoices) requireSentOnce(t *testing.T) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, invoice := range []string{"1", "2", "3"} {
		if i.sent[invoice] != 1 {
			t.Errorf("invoice %s was sent %d times", invoice, i.sent[invoice])
		}
	}
}

// TestAsynq: two workers get each invoice three times, and send it once; one that can't be sent at first is sent by the next task.
func TestAsynq(t *testing.T) {
	t.Parallel()
	queue, err := asynq.ParseRedisURI(redistest.Start(t, 1)[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	var invoices invoices
	key := func(task *asynq.Task) string { return "invoice:" + string(task.Payload()) }
	for _, l := range machines(t, 2) {
		mux := asynq.NewServeMux()
		mux.Use(jobs.Unique(l, key, time.Hour, 2*time.Minute))
		mux.HandleFunc("invoice", func(ctx context.Context, task *asynq.Task) error { return invoices.send(ctx, string(task.Payload())) })
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
			if _, err := client.EnqueueContext(t.Context(), asynq.NewTask("invoice", []byte(invoice)), asynq.Timeout(5*time.Minute), asynq.MaxRetry(0)); err != nil {
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
	invoices.requireSentOnce(t)
}

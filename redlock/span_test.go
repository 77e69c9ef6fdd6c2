package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSpanOfDo: each way to run a function under a lock has a span for the time in which the lock is taken, that says what became of it.
func TestSpanOfDo(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	l, closed := newLocker(t, []string{"memory://"}), newLocker(t, []string{"memory://"})
	mustLock(t, l, "held")
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	work := func(context.Context, *redlock.Lock) error { return nil }
	label := redlock.WithLabel("job")
	do := func(l *redlock.Locker, key string) func(context.Context) error {
		return func(ctx context.Context) error { return l.TryDo(ctx, key, work, label) }
	}
	oncePer := func(ctx context.Context) error {
		_, err := l.OncePer(ctx, "s3cret: once per", time.Hour, work, label)
		return err
	}
	for _, c := range []struct {
		outcome string
		status  codes.Code
		call    func(context.Context) error
	}{
		{"acquired", codes.Unset, func(ctx context.Context) error { return l.Do(ctx, "s3cret", work, label) }},
		{"acquired", codes.Unset, do(l, "s3cret")},
		{"held", codes.Unset, do(l, "held")},
		{"failed", codes.Error, do(closed, "s3cret")},
		{"acquired", codes.Unset, oncePer},
		{"done", codes.Unset, oncePer},
		{"acquired", codes.Unset, func(ctx context.Context) error {
			_, err := l.Once(ctx, "s3cret: once", time.Hour, func(context.Context, *redlock.Lock) ([]byte, error) { return nil, nil }, label)
			return err
		}},
	} {
		exporter.Reset()
		ctx, parent := provider.Tracer("test").Start(t.Context(), "caller")
		err := c.call(ctx)
		parent.End()
		spans := exporter.GetSpans()
		if len(spans) != 2 || spans[0].Name != "redlock.acquire" || spans[0].Parent.SpanID() != parent.SpanContext().SpanID() || spans[0].Status.Code != c.status {
			t.Errorf("%s: %+v after %v, want a span below the caller's with status %v", c.outcome, spans, err, c.status)
			continue
		}
		told := make(map[string]string)
		for _, a := range spans[0].Attributes {
			told[string(a.Key)] = a.Value.String()
			if strings.Contains(a.Value.String(), "s3cret") {
				t.Errorf("%s: %s shows the key", c.outcome, a.Key)
			}
		}
		if _, fenced := told["redlock.fence"]; told["redlock.outcome"] != c.outcome || told["redlock.rule"] != "job" || fenced != (c.outcome == "acquired") {
			t.Errorf("%v after %v, want the outcome %s", told, err, c.outcome)
		}
	}
	exporter.Reset()
	if err := do(l, "held")(t.Context()); !errors.Is(err, redlock.ErrHeld) || len(exporter.GetSpans()) != 0 {
		t.Errorf("%v, and %d spans without one around them", err, len(exporter.GetSpans()))
	}
}

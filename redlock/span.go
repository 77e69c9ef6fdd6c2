package redlock

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// span is the OpenTelemetry span of the time in which Do and its kin get their lock. Package middleware makes the same for requests,
// with more to tell.
type span struct {
	trace.Span // nil if the caller's context has no span that is recorded
	label      string
}

// startSpan starts a span below the context's, if that is recorded.
func (l *Locker) startSpan(ctx context.Context, opts []LockOption) span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return span{}
	}
	o, _ := l.with(opts) // Lock tells the error
	_, s := parent.TracerProvider().Tracer("github.com/caddy-redlock/caddy-redlock/redlock").Start(ctx, "redlock.acquire")
	return span{s, o.label}
}

// end ends the span with what has become of the call. It shows neither the key nor an address of a master.
func (s span) end(lock *Lock, err error) {
	if s.Span == nil {
		return
	}
	outcome, failed := "acquired", false
	switch {
	case err == nil:
		got := lock.Acquisition()
		s.SetAttributes(attribute.Int("redlock.position", got.Position), attribute.String("redlock.via", string(got.Via)), attribute.Int("redlock.granted", got.Granted),
			attribute.Int64("redlock.fence", int64(lock.Fence()))) // below 2^53
	case errors.Is(err, ErrDone):
		outcome = "done"
	case errors.Is(err, ErrHeld):
		outcome = "held"
	case errors.Is(err, ErrNoQuorum):
		outcome, failed = "no_quorum", true
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		outcome = "canceled"
	default:
		outcome, failed = "failed", true
	}
	s.SetAttributes(attribute.String("redlock.rule", s.label), attribute.String("redlock.outcome", outcome))
	if failed {
		s.SetStatus(codes.Error, outcome)
	}
	s.End()
}

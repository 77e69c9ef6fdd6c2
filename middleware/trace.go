package middleware

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// tracerName is the instrumentation scope of the spans.
const tracerName = "github.com/caddy-redlock/caddy-redlock/middleware"

// startSpan starts the span of the time in which the request gets its lock, or doesn't. It returns nil if the request itself
// has no span that is recorded.
func (s *serving) startSpan() trace.Span {
	if !s.span.IsRecording() {
		return nil
	}
	_, span := s.span.TracerProvider().Tracer(tracerName).Start(s.r.Context(), "redlock.acquire")
	return span
}

// endSpan ends the span when the outcome is known. Only what the server is to blame for is an error.
func (s *serving) endSpan(span trace.Span) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("redlock.rule", s.turn.Rule), attribute.String("redlock.outcome", string(s.turn.Outcome)),
		attribute.Float64("redlock.wait", s.turn.Waited.Seconds()))
	if lock := s.own; s.turn.Outcome == OutcomeAcquired {
		got := lock.Acquisition()
		span.SetAttributes(attribute.Int("redlock.position", got.Position), attribute.String("redlock.via", string(got.Via)), attribute.Int("redlock.granted", got.Granted),
			attribute.Int64("redlock.fence", int64(lock.Fence()))) // below 2^53
		if slot, ok := s.turn.Slot(); ok {
			span.SetAttributes(attribute.Int("redlock.slot", slot))
		}
	} else {
		span.SetAttributes(attribute.String("redlock.detail", s.turn.Detail))
	}
	if ofServer(s.turn.Outcome) {
		span.SetStatus(codes.Error, s.turn.Detail)
	}
	span.End()
}

// traceLoss adds an event to the request's span when the lock is lost. The function that it returns is called when the handler
// has returned, before the lock is released.
func (s *serving) traceLoss() (stop func()) {
	span, lock, rule := s.span, s.own, s.turn.Rule
	if !span.IsRecording() {
		return func() {}
	}
	lost := sync.OnceFunc(func() {
		span.AddEvent("redlock.lost", trace.WithAttributes(attribute.String("redlock.rule", rule),
			attribute.String("redlock.detail", detailOf(OutcomeLost, lock.Err()))))
	})
	unhook := context.AfterFunc(lock.Context(), lost)
	return func() {
		unhook()
		if lock.Err() != nil {
			lost() // or waits for it
		}
	}
}

const (
	maxShownPath = 200 // bytes
	maxShownID   = 64
)

// shownRequest returns what operators are told of the request. Its query, its other headers and its body may have secrets.
func (s *serving) shownRequest() *redlock.Request {
	r := s.r
	q := &redlock.Request{Method: cut(r.Method, maxShownID), ID: cut(r.Header.Get("X-Request-Id"), maxShownID), Delivery: s.turn.claimKey}
	if s.rule.ShowClient {
		q.Client = s.rule.sender(r)
	}
	if r.URL != nil {
		q.Path = cut(r.URL.Path, maxShownPath)
	}
	if span := s.span.SpanContext(); span.HasTraceID() {
		q.TraceID = span.TraceID().String()
	} else if parent := r.Header.Get("Traceparent"); strings.Count(parent, "-") >= 3 {
		q.TraceID = cut(strings.SplitN(parent, "-", 3)[1], maxShownID)
	}
	return q
}

// sender returns who has sent a request: whom authentication has found, if it has, and from where.
func (rule *Serializer) sender(r *http.Request) string {
	address := rule.clientAddress(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	user := ""
	if rule.User != nil {
		user = cut(rule.User(r), maxShownID)
	}
	if user != "" && address != "" {
		user += " at "
	}
	return user + cut(address, maxShownID)
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// identity is by what the lines of the log about one turn can be joined: the fencing token, and the hashes of what it locks, that of
// a delivery last.
func (t *Turn) identity() (attrs []slog.Attr) {
	var hashes []string
	for _, key := range t.keys {
		hashes = append(hashes, redlock.KeyHash(key))
	}
	if t.claimKey != "" {
		hashes = append(hashes, redlock.KeyHash(t.claimKey))
	}
	if len(hashes) > 0 {
		attrs = append(attrs, slog.String("key_hash", strings.Join(hashes, " ")))
	}
	if t.Lock != nil {
		attrs = append(attrs, slog.Uint64("fence", t.Lock.Fence()))
	}
	if slot, ok := t.Slot(); ok {
		attrs = append(attrs, slog.Int("slot", slot))
	}
	return attrs
}

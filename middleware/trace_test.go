package middleware_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// startSpan starts the span of a request, as otelhttp does. end ends the span, and returns what was exported: that span comes last.
func startSpan(t *testing.T, opts ...trace.TracerProviderOption) (ctx context.Context, end func() tracetest.SpanStubs) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(append(opts, trace.WithSyncer(exporter))...)
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) })
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	return ctx, func() tracetest.SpanStubs {
		span.End()
		return exporter.GetSpans()
	}
}

// traced serves a request under a span, and returns what was exported.
func traced(t *testing.T, h http.Handler, sampler trace.Sampler) tracetest.SpanStubs {
	t.Helper()
	ctx, end := startSpan(t, trace.WithSampler(sampler))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	r.Header.Set("Order", "s3cret")
	h.ServeHTTP(httptest.NewRecorder(), r)
	return end()
}

func attributeOf(attributes []attribute.KeyValue, name string) string {
	for _, a := range attributes {
		if a.Key == attribute.Key(name) {
			return a.Value.String()
		}
	}
	return "none"
}

// Each request that reaches a rule has a span for that, below its own. Only what the server is to blame for is an error.
func TestSpanOfAcquire(t *testing.T) {
	t.Parallel()
	l, noQuorum := newLocker(t, live), newLocker(t, dead)
	hold(t, l, "held:s3cret")
	name := "orders"
	for outcome, test := range map[string]struct {
		handler http.Handler
		status  codes.Code
		want    map[string]string
	}{
		"acquired": {middleware.New(l, "order:{header.Order}", middleware.Rule{Name: name})(http.HandlerFunc(ok)), codes.Unset, map[string]string{
			"redlock.position": "0", "redlock.via": "free", "redlock.granted": "2", "redlock.detail": "none"}},
		"held": {middleware.New(l, "held:{header.Order}", middleware.Rule{Name: name})(http.HandlerFunc(ok)), codes.Unset, map[string]string{
			"redlock.fence": "none", "redlock.detail": "another request holds the lock"}},
		"no_quorum": {middleware.New(noQuorum, "order:{header.Order}", middleware.Rule{Name: name, OnNoQuorum: middleware.Pass})(http.HandlerFunc(ok)), codes.Error, map[string]string{
			"redlock.via": "none", "redlock.detail": "too few masters are usable"}},
		"missing_key": {middleware.New(l, "order:{header.None}", middleware.Rule{Name: name})(http.HandlerFunc(ok)), codes.Unset, map[string]string{
			"redlock.wait": "0", "redlock.detail": "key part {header.None}: missing or empty"}},
		"bad_key": {middleware.New(l, "order:{header.Order:int}", middleware.Rule{Name: name})(http.HandlerFunc(ok)), codes.Unset, map[string]string{
			"redlock.fence": "none"}},
		"dry_run": {middleware.New(l, "order:{header.Order}", middleware.Rule{Name: name, DryRun: true})(http.HandlerFunc(ok)), codes.Unset, map[string]string{
			"redlock.fence": "none", "redlock.detail": "none"}},
	} {
		spans := traced(t, test.handler, trace.AlwaysSample())
		if len(spans) != 2 {
			t.Errorf("%s: %d spans, want two", outcome, len(spans))
			continue
		}
		acquire, request := spans[0], spans[1]
		if acquire.Name != "redlock.acquire" || acquire.Parent.SpanID() != request.SpanContext.SpanID() || acquire.Status.Code != test.status || acquire.EndTime.After(request.EndTime) {
			t.Errorf("%s: %q below %v with status %v", outcome, acquire.Name, acquire.Parent.SpanID(), acquire.Status)
		}
		want := map[string]string{"redlock.rule": "orders", "redlock.outcome": outcome}
		for key, value := range test.want {
			want[key] = value
		}
		for key, value := range want {
			if got := attributeOf(acquire.Attributes, key); got != value {
				t.Errorf("%s: %s is %q, want %q", outcome, key, got, value)
			}
		}
		if fence := attributeOf(acquire.Attributes, "redlock.fence"); (outcome == "acquired") == (fence == "none") || attributeOf(acquire.Attributes, "redlock.wait") == "none" {
			t.Errorf("%s: fence %s, attributes %v", outcome, fence, acquire.Attributes)
		}
		for _, a := range acquire.Attributes {
			if text := a.Value.String() + acquire.Status.Description; strings.Contains(text, "s3cret") || strings.Contains(text, "127.0.0.1") {
				t.Errorf("%s: %s shows %q", outcome, a.Key, text)
			}
		}
	}
}

// A lost lease is an event of the request's own span, if it is lost while the handler runs.
func TestSpanOfLoss(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for want, handler := range map[string]http.HandlerFunc{
		"the request held its lock for max_hold": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"none":                                   ok,
	} {
		hold := longTTL
		if want != "none" {
			hold = time.Millisecond
		}
		spans := traced(t, orders(l, handler, middleware.Rule{MaxHold: hold}), trace.AlwaysSample())
		request := spans[len(spans)-1]
		detail := "none"
		if i := slices.IndexFunc(request.Events, func(e trace.Event) bool { return e.Name == "redlock.lost" }); i >= 0 {
			detail = attributeOf(request.Events[i].Attributes, "redlock.detail")
		}
		if detail != want || len(request.Events) > 1 {
			t.Errorf("events %v, want one of %q", request.Events, want)
		}
	}
}

// For a request that is not sampled no span is even begun.
func TestNoSpan(t *testing.T) {
	t.Parallel()
	sampler := &never{Sampler: trace.NeverSample()}
	if spans := traced(t, orders(newLocker(t, live), ok, middleware.Rule{}), sampler); len(spans) != 0 || sampler.asked != 1 {
		t.Errorf("%d spans, %d begun; want only that of the request begun", len(spans), sampler.asked)
	}
}

// never counts the spans that it doesn't sample.
type never struct {
	trace.Sampler
	asked int
}

func (n *never) ShouldSample(p trace.SamplingParameters) trace.SamplingResult {
	n.asked++
	return n.Sampler.ShouldSample(p)
}

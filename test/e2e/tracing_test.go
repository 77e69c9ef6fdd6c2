package e2e

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// spans receives what Caddy exports, as an OpenTelemetry collector does (OTLP over HTTP).
type spans struct {
	mu  sync.Mutex
	all []*trace.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(text, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// named returns the spans of a name whose attribute has this value. An empty attribute means all.
func (s *spans) named(name, attribute, value string) (found []*trace.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.all {
		if span.Name == name && (attribute == "" || attributeOf(span.Attributes, attribute) == value) {
			found = append(found, span)
		}
	}
	return found
}

func attributeOf(attributes []*common.KeyValue, name string) string {
	for _, a := range attributes {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// TestTracing exports the spans of Caddy's directive tracing to a receiver: below the span of each request is one of its lock.
func TestTracing(t *testing.T) {
	received := new(spans)
	receiver := httptest.NewServer(received)
	t.Cleanup(receiver.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", receiver.URL+"/v1/traces")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100") // ms

	servers := redistest.Start(t, 1)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		tracing /traced* {
			span request
		}
		redlock /traced/lost order:{path.1} {
			name lost
			max_hold 200ms
		}
		redlock order:{path.1} {
			name orders
		}
		`+b.proxy()))
	wait := b.hold(t, c.url+"/traced/42", c.url+"/untraced/43")
	requireStatus(t, post(t, c.url+"/traced/42"), http.StatusLocked)
	requireStatus(t, post(t, c.url+"/traced/lost"), http.StatusInternalServerError)
	release()
	for _, a := range wait() {
		requireStatus(t, a, http.StatusOK)
	}
	servers[0].Kill()
	eventually(t, "Caddy notices that the master is gone", func() bool { return post(t, c.url+"/traced/44").status == http.StatusConflict })

	for outcome, status := range map[string]trace.Status_StatusCode{
		"acquired":  trace.Status_STATUS_CODE_UNSET,
		"held":      trace.Status_STATUS_CODE_UNSET,
		"no_quorum": trace.Status_STATUS_CODE_ERROR,
	} {
		eventually(t, "a span with the outcome "+outcome, func() bool { return len(received.named("redlock.acquire", "redlock.outcome", outcome)) > 0 })
		for _, span := range received.named("redlock.acquire", "redlock.outcome", outcome) {
			rule := attributeOf(span.Attributes, "redlock.rule")
			if rule != "orders" && rule != "lost" || span.GetStatus().GetCode() != status || (outcome == "acquired") != (attributeOf(span.Attributes, "redlock.via") == "free") {
				t.Errorf("%s: span of rule %q with status %v and attributes %v", outcome, rule, span.Status, span.Attributes)
			}
			if text := span.String(); strings.Contains(text, servers[0].Addr()) {
				t.Errorf("the span names the master: %s", text)
			}
			eventually(t, "the request's span around that of its lock", func() bool {
				for _, request := range received.named("request", "", "") {
					if string(request.SpanId) == string(span.ParentSpanId) && string(request.TraceId) == string(span.TraceId) {
						return true
					}
				}
				return false
			})
		}
	}
	lost := 0
	for _, request := range received.named("request", "", "") {
		for _, event := range request.Events {
			if event.Name == "redlock.lost" && attributeOf(event.Attributes, "redlock.rule") == "lost" && attributeOf(event.Attributes, "redlock.detail") != "" {
				lost++
			}
		}
	}
	if lost != 1 {
		t.Errorf("%d spans of requests have the event of a lost lease, want one", lost)
	}
	if n := len(received.named("redlock.acquire", "redlock.outcome", "acquired")); n != 2 {
		t.Errorf("%d requests with a lock have a span, want the two that are traced", n)
	}
}

package middleware

import (
	"log/slog"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	maxShownPath = 200 // bytes
	maxShownID   = 64
)

// requestOf returns what operators are told of a request. Its query, its other headers and its body may have secrets.
func requestOf(r *http.Request) *redlock.Request {
	q := &redlock.Request{Method: cut(r.Method, maxShownID), ID: cut(r.Header.Get("X-Request-Id"), maxShownID)}
	if r.URL != nil {
		q.Path = cut(r.URL.Path, maxShownPath)
	}
	if span := trace.SpanContextFromContext(r.Context()); span.HasTraceID() {
		q.TraceID = span.TraceID().String()
	} else if fields := strings.SplitN(r.Header.Get("Traceparent"), "-", 4); len(fields) == 4 {
		q.TraceID = cut(fields[1], maxShownID)
	}
	return q
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

package caddyredlock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

func init() { caddy.RegisterModule(&stuckLog{}) }

// stuckLog is a writer of Caddy's log that blocks on the messages of the Redis client.
type stuckLog struct{}

func (*stuckLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.stuck", New: func() caddy.Module { return &stuckLog{} }}
}

func (*stuckLog) String() string { return "a log that blocks" }

func (*stuckLog) WriterKey() string { return fmt.Sprintf("stuck %p", stuckLines) }

func (*stuckLog) OpenWriter() (io.WriteCloser, error) { return stuckLines, nil }

// stuckWriter keeps what has been written, and the messages of the Redis client wait until it is open.
type stuckWriter struct {
	open chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

var stuckLines *stuckWriter // of the test that runs

func (w *stuckWriter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("redlock.client")) {
		<-w.open
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

func (w *stuckWriter) Close() error { return nil }

func (w *stuckWriter) written() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// TestClientLogThatBlocks: the messages of the Redis client wait for Caddy's log in their order, in one goroutine, which ends when
// they are written. Who has made them doesn't wait.
func TestClientLogThatBlocks(t *testing.T) {
	const messages = 500
	stuckLines = &stuckWriter{open: make(chan struct{})}
	config := `{"admin": {"disabled": true}, "logging": {"logs": {"default": {"level": "DEBUG", "encoder": {"format": "json"}, "writer": {"output": "stuck"}}}}}`
	if err := caddy.Load([]byte(config), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	before := runtime.NumGoroutine()
	for i := range messages {
		clientLog{}.Printf(context.Background(), "message %d.", i)
	}
	if more := runtime.NumGoroutine() - before; more > 5 { // Caddy's own come and go
		t.Errorf("%d goroutines more, while the log blocks", more)
	}
	close(stuckLines.open)
	text := ""
	for range 3000 {
		if text = stuckLines.written(); strings.Contains(text, fmt.Sprintf("message %d.", messages-1)) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	at := 0
	for i := range messages {
		next := strings.Index(text[at:], fmt.Sprintf("message %d.", i))
		if next < 0 {
			t.Fatalf("message %d is missing, or not in its place", i)
		}
		at += next
	}
}

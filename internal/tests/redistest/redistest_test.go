package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

func TestServer(t *testing.T) {
	ctx := context.Background()
	s := redistest.Start(t, 1)[0]
	if err := s.Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if keys := s.Keys(); len(keys) != 1 || keys[0] != "k" {
		t.Errorf("keys %q, want k", keys)
	}
	if n := s.Connections(); n != 0 {
		t.Errorf("%d connections, want none but the inspecting ones", n)
	}

	s.Pause()
	hung, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Client().WithTimeout(50 * time.Millisecond).Ping(hung).Err(); err == nil {
		t.Error("a paused server answers")
	}
	s.Resume()

	s.Kill()
	s.Restart()
	redistest.RequireNoKeys(t, []*redistest.Server{s})
}

package link

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// heir is a Whole that takes over what its parts leave.
type heir struct{ took []string }

func (h *heir) Elsewhere(_ *Stream, c *Command) bool {
	if errors.Is(c.Reply.Err, protocol.ErrUnsent) && errors.Is(c.Reply.Err, ErrClosed) {
		h.took = append(h.took, c.Key)
	}
	return true
}

func (*heir) Has(*Stream, string) bool { return true }

// TestPartEnds: what a part hasn't sent when it ends, and what comes after that, is for the other parts.
func TestPartEnds(t *testing.T) {
	m, logger, whole := redis.New(goredis.Options{Addr: "127.0.0.1:1"}), slog.New(slog.DiscardHandler), new(heir)
	seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger})
	s := NewPart(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seats.Add(m), whole, new(sync.Mutex))
	release := func(key string) { s.Push(Forced(protocol.Command{Op: protocol.OpRelease, Key: key}, nil)) }
	release("before")
	if err := s.Close(0); err != nil {
		t.Error(err)
	}
	release("after")
	if !slices.Equal(whole.took, []string{"before", "after"}) {
		t.Errorf("%q went elsewhere", whole.took)
	}
}

package link

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// TestNoRenewalUnderAFault: where this process may not lock, or the master's clock is wrong, no renewal counts, whatever else the master has answered
// in the same batch.
func TestNoRenewalUnderAFault(t *testing.T) {
	mayNot := errors.New("this process may not lock")
	logger := slog.New(slog.DiscardHandler)
	for name, besides := range map[string]*Command{
		"an acquire":                    replied(protocol.OpAcquire, nil),
		"an acquire on a full master":   replied(protocol.OpAcquire, protocol.ErrUnusable),
		"a trial on a full master":      replied(protocol.OpTrial, protocol.ErrUnusable),
		"a beat on a full master":       replied(protocol.OpBeat, protocol.ErrUnusable),
		"a beat that has no permission": replied(protocol.OpBeat, protocol.ErrRefused),
	} {
		m := redis.New(goredis.Options{Addr: "127.0.0.1:1"})
		seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger, Refused: func() error { return mayNot }})
		s := makeStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seats.Add(m), nil, new(sync.Mutex))
		renewal := replied(protocol.OpExtend, nil)
		_, _ = s.verdict(&batch{sentAt: time.Now(), commands: []*Command{renewal, besides}}, time.Now())
		if !errors.Is(renewal.Reply.Err, mayNot) {
			t.Errorf("a renewal beside %s counts: %v", name, renewal.Reply.Err)
		}
	}
}

func replied(op protocol.Op, err error) *Command {
	return &Command{Command: protocol.Command{Op: op, Reply: protocol.Reply{Err: err}}}
}

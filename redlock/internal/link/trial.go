package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// probe returns what an idle connection is asked: the time, or, of a server that has refused locks, whether it takes
// them again. Callers hold mu.
func (s *Stream) probe() protocol.Command {
	if errors.Is(s.reported, protocol.ErrUnusable) {
		if key := s.trialKey(); key != "" {
			return protocol.Command{Op: protocol.OpTrial, Key: key, Process: s.Prefix + ":wake:", TTL: time.Second}
		}
	}
	return protocol.Command{Op: protocol.OpPing}
}

// trialKey returns a key that nobody locks and that this server has, or "" if it has no slot of its Redis Cluster.
// Callers hold mu.
func (s *Stream) trialKey() string {
	for i := range 4 * redis.Slots {
		key := fmt.Sprintf("%s:trial:{%d}", s.Prefix, i)
		if s.cluster == nil || s.cluster.at(key) == s {
			return key
		}
	}
	return ""
}

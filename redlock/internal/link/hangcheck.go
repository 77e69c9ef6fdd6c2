package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// hangCheck finds out why a connection gives no answers. Either the server hangs: then the connection is kept,
// because the server will read our commands in their order when it wakes up. Or something in between has
// forgotten the connection (a firewall, an address that has moved): then the server answers on a new one.
type hangCheck struct {
	stream      *Stream
	ctx         context.Context
	replacement chan protocol.Conn // gets the new connection, if the server answers on that only
	running     sync.WaitGroup

	// The stream's mu guards these.
	trying bool
	next   time.Time // no trial before
	pause  time.Duration
}

func (s *Stream) newHangCheck(ctx context.Context) *hangCheck {
	return &hangCheck{stream: s, ctx: ctx, replacement: make(chan protocol.Conn, 1)}
}

// start starts a trial of a second connection, unless one is running or it is too soon, and returns when to
// call it again. The stream's mu is held.
func (h *hangCheck) start(now time.Time) time.Time {
	_, able := h.stream.master.(protocol.Connector)
	switch {
	case !able || h.trying:
		return now.Add(admission.ProbeGap)
	case now.Before(h.next):
		return h.next
	}
	h.trying = true
	h.running.Go(h.try)
	return now.Add(admission.ProbeGap)
}

// try makes a second connection, and gives the first one some more time to answer.
func (h *hangCheck) try() {
	s := h.stream
	fresh, err := s.connect(h.ctx)
	before := s.lastAnswer()
	if err == nil {
		// If the server was only hung and has just woken up, it will answer on the first connection too.
		timer := time.NewTimer(2 * s.latency.timeout())
		select {
		case <-timer.C:
		case <-h.ctx.Done():
		}
		timer.Stop()
		if h.ctx.Err() == nil && before.Equal(s.lastAnswer()) {
			h.replacement <- fresh
			return
		}
		fresh.Close()
	}
	s.mu.Lock()
	h.trying = false
	h.pause = min(max(2*h.pause, leastPause), MostPause)
	h.next = time.Now().Add(h.pause)
	s.mu.Unlock()
	Signal(s.tend)
}

// end waits for a running trial, whose context has ended, and closes what it leaves.
func (h *hangCheck) end() {
	h.running.Wait()
	select {
	case fresh := <-h.replacement:
		fresh.Close()
	default:
	}
}

func (s *Stream) lastAnswer() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answeredAt
}

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

package admission

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestRestartWithWrongUptime: a server that has visibly restarted waits for the guard by our own clock, whatever uptime it reports: also
// a node of a Redis Cluster.
func TestRestartWithWrongUptime(t *testing.T) {
	m := memory.New("m", time.Now)
	master := New(1, Settings{MaxTTL: time.Second, Guard: time.Minute, Logger: slog.New(slog.DiscardHandler)}).Add(m)
	for name, s := range map[string]*Seat{"a server": master, "a node": master.AddNode(m)} {
		s.OnReached = func(protocol.Server) {}
		now := time.Now()
		greet := func(run string) error {
			return s.Admit(protocol.Server{RunID: run, HasUptime: true, Uptime: time.Hour, Time: now.UnixMicro(), Sent: now, Received: now})
		}
		if err := greet(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.Disconnected()
		now = now.Add(10 * time.Second)
		if err := greet(name + ", restarted"); !errors.Is(err, ErrRestarted) {
			t.Errorf("%s that has restarted: %v", name, err)
		}
	}
}

// TestReplica: a replica has no vote. Nor has it one at once when it is promoted: it may lack locks that its master has granted.
func TestReplica(t *testing.T) {
	s := New(1, Settings{MaxTTL: time.Second, Guard: time.Minute, Logger: slog.New(slog.DiscardHandler)}).Add(memory.New("m", time.Now))
	s.OnReached = func(protocol.Server) {}
	now := time.Now()
	for _, is := range []struct {
		role string
		want error
	}{{"master", nil}, {"slave", ErrNoVote}, {"master", ErrReplaced}} {
		if err := s.Admit(protocol.Server{Role: is.role, RunID: "run", HasUptime: true, Uptime: time.Hour, Time: now.UnixMicro(), Sent: now, Received: now}); !errors.Is(err, is.want) {
			t.Errorf("a %s: %v, want %v", is.role, err, is.want)
		}
	}
}

// TestGuardIsOver: an error that is shown after the guard's end, as that of a master that is unreachable since, has no time before now.
func TestGuardIsOver(t *testing.T) {
	if text := (&GuardError{Until: time.Now().Add(-time.Minute), Why: ErrRestarted}).Error(); !strings.HasSuffix(text, "its restart guard is over") {
		t.Error(text)
	}
}

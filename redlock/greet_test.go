package redlock

import (
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// TestTimeIsKnownFromTheGreeting: a Locker knows its masters' clocks before anybody asks it for a lock.
func TestTimeIsKnownFromTheGreeting(t *testing.T) {
	l, err := Open(redistest.URLs(redistest.Start(t, 3))) // all masters have just started: none votes, and all tell the time
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, s := range l.voters.Streams {
		for deadline := time.Now().Add(10 * time.Second); !knows(s); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s has not told the time", s)
			}
		}
	}
}

// knows reports whether a master's clock is known.
func knows(s vote.Stream) bool {
	_, known := s.Shows(time.Now())
	return known
}

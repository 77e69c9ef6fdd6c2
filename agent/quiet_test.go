package agent_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestQuiet: a client that reads nothing while it works, as a script in PHP does, keeps its lock for hours, and then hears of it by a mark.
func TestQuiet(t *testing.T) {
	t.Parallel()
	for body, keeps := range map[string]bool{`{"key":"k","quiet":true}`: true, `{"key":"k"}`: false} {
		t.Run(body, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locker := newLocker(t, []string{"memory://"})
				p := newPipes()
				client := p.client(t)
				client.Timeout = 0
				serveOn(t, agent.New(locker), p)
				h := post(t, client, "/v1/lock", body)
				h.first()
				time.Sleep(5 * time.Hour)
				if lock, err := locker.TryLock(t.Context(), "k"); errors.Is(err, redlock.ErrHeld) != keeps {
					t.Errorf("another holder after hours: %v, %v", lock, err)
				}
				if keeps {
					h.mark()
					if l, err := h.next(); err != nil || l.Mark != 1 || l.ValidMS <= 0 {
						t.Errorf("%+v, %v, want the answer to the mark", l, err)
					}
					h.end()
				}
			})
		})
	}
}

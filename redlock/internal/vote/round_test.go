package vote

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestStarvedRound: masters have their time although a busy machine keeps this process from running, in which it learns late that a time is over, and
// reads replies after that.
func TestStarvedRound(t *testing.T) {
	const timeout, step = 50 * time.Millisecond, 50 * time.Millisecond / spanSteps
	for name, c := range map[string]struct {
		starved, read time.Duration // until when the process doesn't run; when it reads a reply
		want          Ending
		took          time.Duration
	}{
		"nothing comes":                     {0, time.Hour, TimeOver, timeout},
		"a reply in time":                   {0, timeout - 1, Answered, timeout - 1},
		"a reply to a starved process":      {time.Minute, time.Minute + timeout/2, Answered, time.Minute + timeout/2},
		"nothing comes, and it was starved": {time.Minute, time.Hour, TimeOver, time.Minute + timeout - step},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, within := time.Now(), NewSpan(timeout)
				m := &Masters{Streams: make([]Stream, 1)}
				m.alarms.New = func() any {
					late := &alarm{}
					late.timer = time.AfterFunc(time.Hour, func() {
						time.Sleep(time.Until(start.Add(c.starved)))
						if in := late.rings.Load(); in != nil {
							in.ring()
						}
					})
					return late
				}
				r := m.NewRound(protocol.OpAcquire, 1)
				time.AfterFunc(c.read, func() { r.Replies.Receive(&link.Command{Command: protocol.Command{Op: protocol.OpAcquire}}) })
				got := r.Collect(t.Context(), nil, &within, 1, func(*link.Command, int) bool { return true })
				if took := time.Since(start); got != c.want || took != c.took {
					t.Errorf("%v after %v, want %v after %v", got, took, c.want, c.took)
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// TestGuardsOver: the rest of a guard that is over is none, and no time before now.
func TestGuardsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(3, "", 0, 0, nil)
		m.Streams = make([]Stream, 3)
		guarded := func(rest time.Duration) Failure {
			return Failure{Err: &admission.GuardError{Until: time.Now().Add(rest), Why: admission.ErrRestarted}}
		}
		for _, c := range []struct{ one, other, want time.Duration }{
			{time.Minute, time.Hour, time.Minute},
			{-time.Minute, time.Hour, 0},
			{-time.Hour, -time.Minute, 0},
		} {
			if got := m.GuardsOver([]Failure{guarded(c.one), guarded(c.other)}); got != c.want {
				t.Errorf("%+v: %v", c, got)
			}
		}
	})
}

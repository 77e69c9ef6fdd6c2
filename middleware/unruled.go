package middleware

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// unruled is the parts.Unruled. Its rule serves no requests.
type unruled struct{ rule *compiled }

func newUnruled(rule Rule, possible []Outcome) unruled {
	c := byDefault(rule)
	can := Possible{Outcomes: possible}
	if slices.Contains(possible, OutcomeAcquired) {
		can.Concurrency, can.Waits = 1, true // the handler may allow more requests to hold a key, for each key another number
	}
	if c.Observer != nil {
		c.Observer.Begin(c.Name, can)
	}
	return unruled{c}
}

func (u unruled) Waits() (over func()) {
	u.rule.observeWaits(1)
	return func() { u.rule.observeWaits(-1) }
}

func (u unruled) Refused(keys []string, outcome Outcome, detail string, status int, err error) {
	if outcomes[outcome].title != "" {
		u.rule.logOutcome("request is refused", Turn{Rule: u.rule.Name, Outcome: outcome, Detail: detail, keys: keys}, err, slog.Int("status", status))
	}
	u.rule.observeDone(outcome, 0)
}

func (u unruled) Acquired(keys []string, lock *redlock.Lock) (release func(lost error)) {
	s := &serving{rule: u.rule, own: lock, span: trace.SpanFromContext(context.Background())}
	s.turn = Turn{Rule: u.rule.Name, Outcome: OutcomeAcquired, Lock: lock, keys: keys, concurrency: 1}
	s.noteAcquired()
	return func(lost error) {
		err := lock.Unlock()
		turn := s.turn.now()
		if lost != nil {
			turn.Outcome, turn.Detail = OutcomeLost, lost.Error()
		}
		if s.ended = turn.Outcome; s.ended == OutcomeLost && inside.EndOf(lock) != inside.EndGone { // logRelease logs that end
			u.rule.logOutcome("request lost its lock after its response had begun", turn, cmp.Or(lost, lock.Err()))
		}
		s.logRelease(lock, err)
		s.observeReleased()
	}
}

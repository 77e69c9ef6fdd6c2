package middleware

import (
	"errors"
	"slices"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// dryRuns are the keys and deliveries of the requests that run without the locks on them.
type dryRuns struct {
	mu      sync.Mutex
	running map[string]int // number of requests
}

// enter returns what the locks would have answered a request: nil, ErrHeld or a duplicateError. The request counts as running
// until leave is called.
func (d *dryRuns) enter(s *serving) (leave func(), err error) {
	all := s.turn.keys
	if s.delivery.ID != "" {
		all = append(all[:len(all):len(all)], s.delivery.Key())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.delivery.ID != "" && d.running[all[len(all)-1]] > 0 {
		err = &duplicateError{}
	} else if i := slices.IndexFunc(s.turn.keys, func(key string) bool { return d.running[key] >= s.turn.mostOf(key) }); i >= 0 {
		err = &redlock.HeldError{Slots: s.turn.mostOf(s.turn.keys[i])}
	}
	if d.running == nil {
		d.running = make(map[string]int)
	}
	for _, key := range all {
		d.running[key]++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, key := range all {
			if d.running[key]--; d.running[key] == 0 {
				delete(d.running, key)
			}
		}
	}, err
}

// dryRun serves the request without a lock, and notes what would have become of it. err is why it was not admitted, or nil.
func (s *serving) dryRun(err error) error {
	outcome := OutcomeDryRun
	what := "refused"
	if err == nil {
		var leave func()
		leave, err = s.rule.dryRuns.enter(s)
		defer leave()
	}
	var duplicate *duplicateError
	switch {
	case err == nil:
	case errors.As(err, &duplicate):
		outcome = OutcomeDuplicate
		if s.rule.waitsForResponses() {
			what = "delayed"
		}
	case errors.Is(err, redlock.ErrHeld):
		outcome = OutcomeHeld
		if s.rule.Wait > 0 {
			what = "delayed"
		}
	default:
		outcome = refusalBeforeLock(s.r.Context(), err).Turn.Outcome
	}
	s.setOutcome(outcome, err)
	if err != nil {
		s.rule.Logger.Info("dry run: the request would have been "+what, "rule", s.turn.Rule, "outcome", s.turn.Outcome, "detail", s.turn.Detail)
	}
	return s.pass()
}

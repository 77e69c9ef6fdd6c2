package middleware

import (
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// DryRun is the outcome of a request that would have got its lock at once, as far as its rule can tell.
const DryRun Outcome = "dry_run"

// dryRuns are the keys and deliveries of the requests that run without the locks on them.
type dryRuns struct {
	mu      sync.Mutex
	running map[string]int // how many requests
}

// enter says what the locks would have said to a request: nil, ErrHeld or a duplicateError. It counts
// until leave is called.
func (d *dryRuns) enter(keys []string, id string) (leave func(), err error) {
	delivery := claimKey(keys, id)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch busy := func(key string) bool { return d.running[key] > 0 }; {
	case id != "" && busy(delivery):
		err = &duplicateError{}
	case slices.ContainsFunc(keys, busy):
		err = redlock.ErrHeld
	}
	if d.running == nil {
		d.running = make(map[string]int)
	}
	all := append(keys[:len(keys):len(keys)], delivery)
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

// dryRun serves every request, and tells what would have become of it.
func (rule *Rule) dryRun(turn Turn, id string, err error, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	turn.Outcome = DryRun
	what := "refused"
	if err == nil {
		var leave func()
		leave, err = rule.dryRuns.enter(turn.keys, id)
		defer leave()
	}
	var duplicate *duplicateError
	switch {
	case err == nil:
	case errors.As(err, &duplicate):
		turn.Outcome = Duplicate
	case errors.Is(err, redlock.ErrHeld):
		turn.Outcome = Held
		if rule.Wait > 0 {
			what = "delayed"
		}
	default:
		turn.Outcome = reject(r.Context(), err).Turn.Outcome
	}
	if err != nil {
		rule.logger().Info("dry run: the request would have been "+what, "outcome", turn.Outcome, "error", err)
	}
	return rule.pass(turn, w, r, next)
}

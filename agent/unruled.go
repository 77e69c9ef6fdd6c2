package agent

import (
	"errors"
	"net/http"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// unruled logs and counts requests that come to no rule of a gateway.
type unruled struct{ engine.Unruled }

var (
	// ownOutcomes are the outcomes of requests that the agent itself refuses before they ask for a lock.
	ownOutcomes = []middleware.Outcome{middleware.OutcomeBadKey, middleware.OutcomeBodyBroken, middleware.OutcomeBodyTimeout, middleware.OutcomeBodyTooLarge,
		middleware.OutcomeFailed, middleware.OutcomeStopping}
	// lockOutcomes are the outcomes of requests for /v1/lock.
	lockOutcomes = slices.Concat(ownOutcomes, []middleware.Outcome{middleware.OutcomeAcquired, middleware.OutcomeCanceled, middleware.OutcomeHeld, middleware.OutcomeLost,
		middleware.OutcomeNoQuorum, middleware.OutcomeReplayed, middleware.OutcomeTooManyWaiters, middleware.OutcomeUnreadable})
)

// unruled returns an unruled for the requests for a path. They are logged and counted as those of a rule with the path as its name, because no label
// may have something that a client has sent.
func (a *Agent) unruled(path string, outcomes []middleware.Outcome) unruled {
	rule := middleware.Rule{Name: path, Logger: a.logger}
	if a.observers != nil {
		rule.Observer, _ = a.observers(path) // for as long as the agent is there
	}
	return unruled{engine.NewUnruled(rule, outcomes...)}
}

// refused logs and counts a request that gets no lock. It returns err in the form that responseOf writes to the client.
func (u unruled) refused(x *exchange, keys []string, err error) error {
	var own *problem
	if !errors.As(err, &own) {
		refusal := engine.RefusalOf(x.wait, err)
		u.Refused(keys, refusal.Turn().Outcome, refusal.Turn().Detail, refusal.Status(), err)
		return refusal
	}
	outcome, detail := own.outcome(), own.Detail
	if outcome == middleware.OutcomeBadKey { // the detail for the client may quote what it has sent
		detail = "the request isn't as docs/protocol.md says: its client was told why"
	}
	u.Refused(keys, outcome, detail, own.Status, own)
	return own
}

// outcome returns the outcome as which the problem counts.
func (p *problem) outcome() middleware.Outcome {
	switch {
	case p == errStopping:
		return middleware.OutcomeStopping
	case p == errEndsEarly:
		return middleware.OutcomeBodyBroken
	case p.done:
		return middleware.OutcomeReplayed
	}
	switch p.Status {
	case http.StatusRequestTimeout:
		return middleware.OutcomeBodyTimeout
	case http.StatusRequestHeaderFieldsTooLarge:
		return middleware.OutcomeBodyTooLarge
	case http.StatusServiceUnavailable:
		return middleware.OutcomeFailed
	}
	return middleware.OutcomeBadKey
}

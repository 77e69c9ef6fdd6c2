package middleware

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Explanation is what a rule makes of a request.
type Explanation struct {
	Keys     []string // that would be locked, hashed where the rule says so
	Delivery string   // the ID that is compared with those of other deliveries; empty for none
	Err      error    // why the request would be refused before a lock is asked for, or nil

	rule *Rule
	turn Turn
}

// Explain tells the keys that New with this template and options would lock for a request, without
// a Locker. It reads the body, if New would. It panics where New does.
func Explain(template string, r *http.Request, opts ...Option) Explanation {
	rule := withOptions(opts)
	if err := rule.Check(); err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return rule.Explain(rule.templates(template).Keys, r)
}

// Explain tells the keys that Serve would lock for a request. It reads the body, if Serve would. The
// signature is judged too, but the keys are told even if it is wrong.
func (rule *Rule) Explain(derive KeysFunc, r *http.Request) Explanation {
	e := Explanation{rule: rule}
	rule.receive(nil, r)
	if b, ok := r.Body.(*body); ok {
		b.budget = NewBudget(rule.maxBody()) // its own: the body stays there to be read
	}
	var err error
	e.Delivery, err = rule.identify(&e.turn, derive, r)
	e.Keys, e.Err = e.turn.keys, cmp.Or(rule.permit(r), err)
	return e
}

// String is for people, with a line for each fact. It shows the keys.
func (e Explanation) String() string {
	var text strings.Builder
	for _, key := range e.Keys {
		fmt.Fprintf(&text, "key       %s\n", key)
	}
	if e.Delivery != "" {
		fmt.Fprintf(&text, "delivery  %s\n", e.Delivery)
	}
	switch {
	case e.Err != nil:
		refusal := reject(context.Background(), e.Err)
		if refusal.Turn.Outcome == MissingKey && e.rule.PassMissingKey {
			fmt.Fprintf(&text, "served    without a lock: %v\n", e.Err)
		} else {
			fmt.Fprintf(&text, "refused   %d %s: %v\n", refusal.Status, refusal.Turn.Outcome, e.Err)
		}
	case e.rule.DryRun:
		fmt.Fprintln(&text, "served    without a lock: dry run")
	default:
		fmt.Fprintf(&text, "if held   waits %v, then %d\n", e.rule.Wait.Round(time.Millisecond), cmp.Or(e.rule.HeldStatus, http.StatusLocked))
	}
	return text.String()
}

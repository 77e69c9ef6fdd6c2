package middleware

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
)

// explanation says what a rule would do with a request.
type explanation struct {
	Keys     []string // the keys that would be locked; a hash in place of a key of more than 200 bytes
	Delivery string   // the ID that is compared with the IDs of other deliveries; empty for none
	Host     string   // the ID counts for this host only; empty for any host
	Site     string   // replaces Host if the rule has a Site
	Place    string   // the ID counts for this method, path and query only; empty for all
	Err      error    // the error for which the request gets no lock, or nil; Refused says whether the request would be refused

	rule *compiled
	most map[string]int
}

func (c *compiled) explain(r *http.Request) explanation {
	req := &serving{rule: c, r: r}
	req.receive()
	if b, ok := r.Body.(*body); ok {
		b.budget = NewBudget(c.MaxBody) // a budget of its own: the body stays in memory to be read again, and would keep its room in the rule's budget
	}
	err := req.identify()
	d := req.delivery
	return explanation{Keys: req.turn.keys, Delivery: d.ID, Host: d.Host, Site: d.Site, Place: d.Place, Err: cmp.Or(req.permit(), err), rule: c, most: req.turn.most}
}

// String returns the explanation as text for people, with one fact on each line. It contains the keys.
func (e explanation) String() string {
	var text strings.Builder
	for _, key := range e.Keys {
		fmt.Fprintf(&text, "key       %s\n", key)
		if n := e.most[lockname.Of(key)]; n > 1 {
			fmt.Fprintf(&text, "slots     %d: so many requests at a time with this key\n", n)
		}
	}
	for _, line := range [][2]string{{"delivery", e.Delivery}, {"host", e.Host}, {"site", e.Site}, {"place", e.Place}} {
		if line[1] != "" {
			fmt.Fprintf(&text, "%-9s %s\n", line[0], line[1])
		}
	}
	if n := e.rule.Concurrency; len(n) == 1 && n[0] > 1 {
		fmt.Fprintf(&text, "slots     %d: so many requests at a time\n", n[0])
	}
	if what, why, failed := strings.Cut(e.failure(), " "); failed {
		fmt.Fprintf(&text, "%-9s %s\n", what, why)
	} else {
		fmt.Fprintf(&text, "if held   waits %v, then %d\n", e.rule.Wait.Round(time.Millisecond), e.rule.HeldStatus)
		for _, key := range e.Keys {
			if most := e.rule.Concurrency; len(most) == 1 && most[0] == 1 || e.most[lockname.Of(key)] == 1 { // a command would take one slot of several
				fmt.Fprintf(&text, "by hand   redlock run '%s' -- command\n", strings.ReplaceAll(key, "'", `'\''`))
			}
		}
	}
	return text.String()
}

// Brief is for a list, with one line for each rule.
func (e explanation) Brief() string { return cmp.Or(e.failure(), "locks "+strings.Join(e.Keys, " ")) }

// failure returns a short text about why the request gets no lock, or "" if it would get a lock.
func (e explanation) failure() string {
	if e.Err == nil {
		if e.rule.DryRun {
			return "served without a lock: dry run"
		}
		return ""
	}
	refusal, served := e.outcome()
	if served {
		return fmt.Sprintf("served without a lock: %v", e.Err)
	}
	return fmt.Sprintf("refused %d %s: %v", refusal.status, refusal.turn.Outcome, e.Err)
}

// Refused reports whether the request is refused before it asks for its lock.
func (e explanation) Refused() bool {
	if e.Err == nil || e.rule.DryRun {
		return false
	}
	_, served := e.outcome()
	return !served
}

// outcome returns the refusal for Err, and whether the rule serves the request without a lock instead.
func (e explanation) outcome() (refusal *refusalError, served bool) {
	refusal = refusalBeforeLock(context.Background(), e.Err)
	return refusal, refusal.turn.Outcome == OutcomeMissingKey && e.rule.passes(e.Err)
}

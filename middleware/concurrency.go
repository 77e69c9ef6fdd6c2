package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// SlotHeader is the request header in which the upstream finds the slot of a rule with Concurrency. Every rule removes what a client
// sends under that name.
const SlotHeader = "Redlock-Slot"

// errNarrower reports a request that would wait for its own lock.
var errNarrower = &refusalReason{OutcomeFailed, http.StatusInternalServerError, "a rule around this one has a larger concurrency for the same key"}

// checkConcurrency returns why a rule can't have its Concurrency.
func (rule *Serializer) checkConcurrency() error {
	switch {
	case rule.Concurrency < 1 || rule.Concurrency > redlock.MaxConcurrency:
		return fmt.Errorf("concurrency %d: must be from 1 to %d", rule.Concurrency, redlock.MaxConcurrency)
	case rule.Concurrency == 1:
		return nil
	case rule.derive == nil:
		return errors.New("concurrency: needs a key; an ID is locked for one request at a time")
	}
	return nil
}

// Slot returns which of the rule's slots the request has, from 0 on: no other request with the same key has it at the same time. It
// reports false under a rule without Concurrency, and for a request without a lock, or with several keys: Lock.SlotOf has those.
func (t Turn) Slot() (slot int, ok bool) {
	if t.concurrency < 2 || t.Lock == nil || len(t.keys) != 1 {
		return 0, false
	}
	return t.Lock.Slot(), true
}

// showSlot shows the upstream the slot of this rule, or else of one around it.
func (t *Turn) showSlot(r *http.Request) {
	for ; t != nil; t = t.outer {
		if slot, ok := t.Slot(); ok {
			r.Header.Set(SlotHeader, strconv.Itoa(slot))
			return
		}
	}
}

// widens reports whether a rule around this one holds a key that has no holder for this rule, as it does so beside more requests than
// this rule lets in.
func (t *Turn) widens(key string) bool {
	wider := *t
	wider.concurrency = redlock.MaxConcurrency
	return wider.holder(key) != nil
}

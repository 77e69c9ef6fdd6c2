package middleware

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Turn is one request's hold on its lock, from acquire to release. A handler finds its own with TurnFromContext.
type Turn struct {
	Key     string        // the lock key, hashed if the rule demands it; several are separated by spaces; empty if the request has none
	Rule    string        // the name of the rule
	Outcome Outcome       // OutcomeAcquired, or why the request is served without a lock
	Detail  string        // why it has no lock, for clients: which part of the key is missing, for example; never a value, never a master
	Waited  time.Duration // from the request's arrival until it had its lock
	Lock    *redlock.Lock // nil if the request is served without a lock

	keys        []string
	concurrency int            // of each key
	most        map[string]int // of the keys, where the rule has a number for each
	locker      *redlock.Locker
	fenceHeader string
	keyHeader   string
	shown       map[string][]string // in the keyHeader: the values that are locked, by placeholder
	outer       *Turn               // of the rule around this one

	claimed  *redlock.Lock // on the delivery; nil for none
	claimKey string
}

type turnKey struct{}

// TurnFromContext returns the turn in which a request is served, given the request's context. It reports false for a request
// that did not come through the middleware.
func TurnFromContext(ctx context.Context) (Turn, bool) {
	if turn, ok := ctx.Value(turnKey{}).(*Turn); ok {
		return *turn, true
	}
	return Turn{}, false
}

// Fence returns the fencing token of the lock, a number that is larger than that of every lock on the key before. It reports
// false if the request is served without a lock, as with OnNoQuorum or DryRun, so that there is no token.
func (t Turn) Fence() (token uint64, ok bool) {
	if t.Lock == nil {
		return 0, false
	}
	return t.Lock.Fence(), true
}

// holder returns the turn around this one that holds a key beside at most this many requests, or nil.
func (t *Turn) holder(key string, most int) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.Lock.Err() == nil && outer.locker == t.locker && slices.Contains(outer.keys, key) && outer.mostOf(key) <= most {
			return outer
		}
	}
	return nil
}

// claimer returns the turn around this one that has claimed the same delivery, or nil.
func (t *Turn) claimer() *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.claimed != nil && outer.claimed.Err() == nil && outer.locker == t.locker && outer.claimKey == t.claimKey {
			return outer
		}
	}
	return nil
}

// keysToLock returns the keys that no rule around this one holds for the request. The lock on the others stands for all until these are locked too.
func (t *Turn) keysToLock() (keys []string, err error) {
	if t.outer == nil {
		return t.keys, nil
	}
	for _, key := range t.keys {
		if holder := t.holder(key, t.mostOf(key)); holder != nil {
			t.Lock = holder.Lock
		} else if t.holder(key, redlock.MaxConcurrency) != nil {
			return nil, errNarrower
		} else {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func (t *Turn) setFence(r *http.Request) {
	r.Header.Set(t.fenceHeader, strconv.FormatUint(t.Lock.Fence(), 10))
}

// setOuterFence restores the fence of a rule around this one, which was removed along with those that the client sent.
func (t *Turn) setOuterFence(r *http.Request, header string) {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && fold.SameHeader(outer.fenceHeader, header) {
			outer.setFence(r)
			return
		}
	}
}

// note is the place where a middleware around this one finds the turn of its request.
type note struct{ turn atomic.Pointer[Turn] } // a handler may outlive its request, as behind http.TimeoutHandler

type noteKey struct{}

// NoteTurn is for a middleware around this one, such as an access log. For a request with the returned context, the function returns the turn once
// the request has been served or refused. With nested rules, it is the turn of the innermost rule that the request has reached, or of a rule around
// it that has lost its lock. It reports false for a request that has reached no rule.
//
//	ctx, turn := middleware.NoteTurn(r.Context())
//	next.ServeHTTP(w, r.WithContext(ctx))
//	if turn, ok := turn(); ok {
//		slog.Info("handled request", "path", r.URL.Path, "redlock", turn)
//	}
func NoteTurn(ctx context.Context) (context.Context, func() (Turn, bool)) {
	n := new(note)
	return context.WithValue(ctx, noteKey{}, n), func() (Turn, bool) {
		turn := n.turn.Load()
		if turn == nil {
			return Turn{}, false
		}
		return turn.Now(), true
	}
}

// set notes a turn that has ended, unless an inner rule's turn is noted, which says more.
func (n *note) set(turn *Turn) {
	if turn.Outcome != "" && (n.turn.Load() == nil || turn.Now().Outcome == OutcomeLost) {
		n.turn.Store(turn)
	}
}

// Now returns the turn with the present state of its lock: OutcomeLost in place of OutcomeAcquired if the lock was lost, even if only its release has
// found that, with the reason in Detail.
func (t Turn) Now() Turn {
	if t.Outcome == OutcomeAcquired && t.Lock != nil {
		if end := t.Lock.End(); end.Lost() || end == redlock.EndClosed {
			t.Outcome, t.Detail = OutcomeLost, detailOfLost(end)
		}
	}
	return t
}

// LogValue returns the turn for a log of package slog: its rule, outcome, wait in seconds, fencing token, slot and detail, as of Now. It leaves out
// the key, which may be personal data: log Turn.Key yourself if you want it.
func (t Turn) LogValue() slog.Value {
	t = t.Now()
	attrs := []slog.Attr{slog.String("rule", t.Rule), slog.String("outcome", string(t.Outcome)), slog.Float64("waited", t.Waited.Seconds())}
	if fence, ok := t.Fence(); ok {
		attrs = append(attrs, slog.Uint64("fence", fence))
	}
	if slot, ok := t.Slot(); ok {
		attrs = append(attrs, slog.Int("slot", slot))
	}
	if t.Detail != "" {
		attrs = append(attrs, slog.String("detail", t.Detail))
	}
	return slog.GroupValue(attrs...)
}

// uncontended is how long it takes to get a free lock: a request waits only if it hasn't got its lock by then.
const uncontended = 10 * time.Millisecond

// SlotHeader is the request header with the slot, for the upstream of a rule with Concurrency. Every rule removes such a header from a client.
const SlotHeader = "Redlock-Slot"

// errNarrower reports a request that would wait for its own lock.
var errNarrower = &refusalReason{OutcomeFailed, "a rule around this one has a larger concurrency for the same key"}

// Slot returns which of the rule's slots the request has, from 0 on: no other request with the same key has it at the same time. It
// reports false under a rule without Concurrency, and for a request without a lock, or with several keys: Lock.SlotOf has those.
func (t Turn) Slot() (slot int, ok bool) {
	if t.Lock == nil || len(t.keys) != 1 || t.mostOf(t.keys[0]) < 2 {
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

// mostOf returns how many requests may hold a key of the turn.
func (t *Turn) mostOf(key string) int {
	if n, ok := t.most[key]; ok {
		return n
	}
	return t.concurrency
}

// showing returns the rule around this one that shows its key in this header, or nil.
func (t *Turn) showing(header string) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.keyHeader != "" && fold.SameHeader(outer.keyHeader, header) {
			return outer
		}
	}
	return nil
}

// identity joins the log lines about one turn: the fencing token, and the hashes of the locked keys, the delivery's last.
func (t *Turn) identity() (attrs []slog.Attr) {
	var hashes []string
	for _, key := range t.keys {
		hashes = append(hashes, redlock.KeyHash(key))
	}
	if t.claimKey != "" {
		hashes = append(hashes, redlock.KeyHash(t.claimKey))
	}
	if len(hashes) > 0 {
		attrs = append(attrs, slog.String("key_hash", strings.Join(hashes, " ")))
	}
	if t.Lock != nil {
		attrs = append(attrs, slog.Uint64("fence", t.Lock.Fence()))
	}
	if slot, ok := t.Slot(); ok {
		attrs = append(attrs, slog.Int("slot", slot))
	}
	return attrs
}

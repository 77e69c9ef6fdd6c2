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

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Turn says how one rule has treated one request: which keys it has locked, or why it has locked none. A handler finds the turn of its request with
// TurnFromContext.
type Turn struct {
	Key     string        // the lock keys, separated by spaces; a key of more than 200 bytes is hashed
	Rule    string        // the name of the rule
	Outcome Outcome       // OutcomeAcquired, or why the request has no lock
	Detail  string        // the reason why there is no lock, such as a missing part of the key; without values and masters, so clients may see it
	Waited  time.Duration // the time from the request's arrival until it had its lock, or was refused
	Lock    *redlock.Lock // nil if the request is served without a lock

	keys        []string
	concurrency int            // how many requests may hold each key
	most        map[string]int // how many requests may hold each key, if the rule has a number for each key
	locker      *redlock.Locker
	fenceHeader string
	keyHeader   string
	shown       map[string][]string // the locked values that the KeyHeader shows, by placeholder
	outer       *Turn               // the turn of the rule around this one
	keyed       bool                // the rule has keys, and not IDs alone
	dryRun      bool                // the rule refuses nothing

	claimed  *redlock.Lock // the lock on the delivery; nil for none
	claimKey string        // the lock key of the delivery
}

type turnKey struct{}

// TurnFromContext returns the turn of the request to which a context belongs. It reports false if the request didn't come through the
// middleware.
func TurnFromContext(ctx context.Context) (Turn, bool) {
	if turn, ok := ctx.Value(turnKey{}).(*Turn); ok {
		return *turn, true
	}
	return Turn{}, false
}

// Fence returns the fencing token of the lock, a number that is larger than the token of every earlier lock on the key. It reports
// false if the request is served without a lock, as with OnNoQuorum or DryRun.
func (t Turn) Fence() (token uint64, ok bool) {
	if t.Lock == nil {
		return 0, false
	}
	return t.Lock.Fence(), true
}

// holder returns the turn of an outer rule that holds the key and lets at most this many requests hold it at a time, or nil.
func (t *Turn) holder(key string, most int) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.Lock.Err() == nil && outer.locker == t.locker && outer.hasKey(key) && outer.mostOf(key) <= most {
			return outer
		}
	}
	return nil
}

// hasKey reports whether one of the turn's keys has the same lock as this key.
func (t *Turn) hasKey(key string) bool {
	return slices.ContainsFunc(t.keys, func(own string) bool { return lockname.Of(own) == lockname.Of(key) })
}

// claimer returns the turn of an outer rule that has locked the same delivery, or nil.
func (t *Turn) claimer() *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.claimed != nil && outer.claimed.Err() == nil && outer.locker == t.locker && outer.claimKey == t.claimKey {
			return outer
		}
	}
	return nil
}

// keysToLock returns the keys of the request that no rule around this one holds. If a rule around this one holds a key, the turn has that rule's lock
// until it gets its own.
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

// setOuterFence sets the header to the fence of the rule around this one that uses the same header, if there is such a rule.
func (t *Turn) setOuterFence(r *http.Request, header string) {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && fold.SameHeader(outer.fenceHeader, header) {
			outer.setFence(r)
			return
		}
	}
}

// note keeps the turn of a request for the function that NoteTurn has returned.
type note struct{ turn atomic.Pointer[Turn] } // atomic because a handler may outlive its request, as behind http.TimeoutHandler

type noteKey struct{}

// noteIn stores the turn in the note of the request, if a middleware has called NoteTurn for this request.
func (t *Turn) noteIn(ctx context.Context) {
	if note, ok := ctx.Value(noteKey{}).(*note); ok {
		note.set(t)
	}
}

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
		return turn.now(), true
	}
}

// set notes a turn that has ended. It keeps the turn of an inner rule that was noted before, because that says more, unless this turn has lost its
// lock.
func (n *note) set(turn *Turn) {
	if turn.Outcome != "" && (n.turn.Load() == nil || turn.now().Outcome == OutcomeLost) {
		n.turn.Store(turn)
	}
}

// now returns the turn with the present state of its lock. If the lock was lost, the Outcome is OutcomeLost in place of OutcomeAcquired, and Detail
// has the reason. This includes a loss that only the release has shown.
func (t Turn) now() Turn {
	if t.Outcome == OutcomeAcquired && t.Lock != nil {
		if end := inside.EndOf(t.Lock); end.Lost() || end == inside.EndClosed {
			t.Outcome, t.Detail = OutcomeLost, detailOfLost(end)
		}
	}
	return t
}

// LogValue returns the turn for a log of package slog: its rule, outcome, wait in seconds, fencing token, slot and detail. A lock that was lost
// meanwhile has the outcome OutcomeLost. The key is left out, because it may be personal data: log Turn.Key yourself if you want it.
func (t Turn) LogValue() slog.Value {
	t = t.now()
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

// uncontended is how long it usually takes at most to get a lock that nobody holds. A request that waits longer reads its body ahead, and gives up
// when the server is about to stop.
const uncontended = 10 * time.Millisecond

// SlotHeader is the request header with the slot, for the upstream of a rule with Concurrency. Every rule removes this header from requests of
// clients.
const SlotHeader = "Redlock-Slot"

// errNarrower is the error for a request whose key a rule around this one has locked with a larger concurrency. Under this rule the request could
// wait for its own lock.
var errNarrower = &refusalReason{outcome: OutcomeFailed, text: "a rule around this one has a larger concurrency for the same key"}

// Slot returns the slot of the request, from 0 on: no other request with the same key has the same slot at the same time. It reports false under a
// rule without Concurrency, for a request without a lock, and for a request with several keys. For several keys, see Lock.Slot.
func (t Turn) Slot() (slot int, ok bool) {
	if t.Lock == nil || len(t.keys) != 1 || t.mostOf(t.keys[0]) < 2 {
		return 0, false
	}
	return t.Lock.Slot(), true
}

// showSlot sets the SlotHeader to the slot of this rule, or of a rule around it.
func (t *Turn) showSlot(r *http.Request) {
	for ; t != nil; t = t.outer {
		if slot, ok := t.Slot(); ok {
			r.Header.Set(SlotHeader, strconv.Itoa(slot))
			return
		}
	}
}

func (t *Turn) mostOf(key string) int {
	if n, ok := t.most[lockname.Of(key)]; ok {
		return n
	}
	return t.concurrency
}

// showing returns the turn of the outer rule that shows its locked values in this header, or nil.
func (t *Turn) showing(header string) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.keyHeader != "" && fold.SameHeader(outer.keyHeader, header) {
			return outer
		}
	}
	return nil
}

// identity returns attributes by which the log lines about one turn can be found: the fencing token, and the hashes of the locked keys, with the hash
// of the delivery's key at the end.
func (t *Turn) identity() (attrs []slog.Attr) {
	var hashes []string
	for _, key := range t.keys {
		hashes = append(hashes, lockname.Hash(key))
	}
	if t.claimKey != "" {
		hashes = append(hashes, lockname.Hash(t.claimKey))
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

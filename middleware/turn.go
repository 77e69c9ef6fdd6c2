package middleware

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func newTurn(ctx context.Context, locker *redlock.Locker) Turn {
	turn := Turn{locker: locker}
	if found, ok := TurnOf(ctx); ok {
		outer := found // on the heap, if there is one
		turn.outer = &outer
	}
	return turn
}

// request is that which the handler gets: TurnOf finds the turn in it.
func (t Turn) request(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), turnKey{}, t))
}

// holder is the turn around this one that holds a key, or nil.
func (t *Turn) holder(key string) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.Lock.Err() == nil && outer.locker == t.locker && slices.Contains(outer.keys, key) {
			return outer
		}
	}
	return nil
}

// notHeld are the keys which the request doesn't hold already, through another rule around this one; and
// the lock on the others.
func (t *Turn) notHeld() (keys []string, around *redlock.Lock) {
	for _, key := range t.keys {
		if holder := t.holder(key); holder != nil {
			around = holder.Lock
		} else {
			keys = append(keys, key)
		}
	}
	return keys, around
}

// handOver serves a request that has its lock, and tells whether anything was written.
func (rule *Rule) handOver(turn Turn, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) (written bool, err error) {
	turn.fenceHeader = rule.fenceHeader()
	turn.setFence(r)
	ctx, cancel := rule.handlerContext(turn, r)
	defer cancel()
	w, writes := trackWrites(w, rule.RunToEnd)
	err = next(w, r.WithContext(ctx))
	return writes.begun, err
}

func (t *Turn) setFence(r *http.Request) {
	r.Header.Set(t.fenceHeader, strconv.FormatUint(t.Lock.Fence(), 10))
}

// pass serves a request without a lock of this rule. The fence of a rule around it, removed with those that
// the client sent, is put back.
func (rule *Rule) pass(turn Turn, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	for outer := turn.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && sameHeader(outer.fenceHeader, rule.fenceHeader()) {
			outer.setFence(r)
			break
		}
	}
	return next(w, turn.request(r))
}

// handlerContext ends when the lock does, or one around it; and when the client leaves, unless the
// handler shall run to its end.
func (rule *Rule) handlerContext(turn Turn, r *http.Request) (context.Context, context.CancelFunc) {
	if rule.RunToEnd && turn.outer == nil { // the lock's context has the values of the request's, but not its end
		return context.WithValue(turn.Lock.Context(), turnKey{}, turn), func() {}
	}
	ctx := context.WithValue(r.Context(), turnKey{}, turn)
	if !rule.RunToEnd {
		return turn.Lock.WithContext(ctx)
	}
	ctx, cancel := turn.Lock.WithContext(context.WithoutCancel(ctx))
	for outer := turn.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && !errors.Is(outer.Lock.Err(), context.Canceled) { // of work that outlived it, the lock is no bound
			inner := cancel
			var cancelOuter context.CancelFunc
			ctx, cancelOuter = outer.Lock.WithContext(ctx)
			cancel = func() { cancelOuter(); inner() }
		}
	}
	return ctx, cancel
}

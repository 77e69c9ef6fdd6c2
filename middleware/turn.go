package middleware

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func newTurn(ctx context.Context, locker *redlock.Locker) Turn {
	turn := Turn{locker: locker}
	if outer, ok := TurnOf(ctx); ok {
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
		if outer.Lock != nil && outer.locker == t.locker && slices.Contains(outer.keys, key) {
			return outer
		}
	}
	return nil
}

// notHeld are the keys which the request doesn't hold already, through another rule around this one.
func (t *Turn) notHeld() []string {
	return slices.DeleteFunc(slices.Clone(t.keys), func(key string) bool { return t.holder(key) != nil })
}

// runInside serves a request that holds all its keys already. Who took them frees them.
func (rule *Rule) runInside(turn Turn, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	turn.Outcome, turn.Lock = Acquired, turn.holder(turn.keys[0]).Lock
	r.Header.Set(rule.fenceHeader(), strconv.FormatUint(turn.Lock.Fence(), 10))
	return next(w, turn.request(r))
}

// handlerContext ends when the lock does, or one around it; and when the client leaves, unless the
// handler shall run to its end.
func (rule *Rule) handlerContext(turn Turn, r *http.Request) (context.Context, context.CancelFunc) {
	ctx := context.WithValue(r.Context(), turnKey{}, turn)
	if !rule.RunToEnd {
		return turn.Lock.WithContext(ctx)
	}
	ctx, cancel := turn.Lock.WithContext(context.WithoutCancel(ctx))
	for outer := turn.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil {
			inner := cancel
			var cancelOuter context.CancelFunc
			ctx, cancelOuter = outer.Lock.WithContext(ctx)
			cancel = func() { cancelOuter(); inner() }
		}
	}
	return ctx, cancel
}

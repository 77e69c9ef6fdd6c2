package middleware

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// note is where a middleware around this one finds the turn of its request.
type note struct{ turn atomic.Pointer[Turn] } // a handler may outlive its request, as behind http.TimeoutHandler

type noteKey struct{}

// NoteTurn is for a middleware around this one, such as one that writes an access log. For a request with the returned context
// the function returns the turn once the request has been served or refused. If several rules are nested, it is that of the
// innermost one that the request has reached, or of one around it that has lost its lock. It reports false for a request that
// has reached none.
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

// take notes a turn that has ended, unless that of a rule inside is noted, which says more.
func (n *note) take(turn *Turn) {
	if turn.Outcome != "" && (n.turn.Load() == nil || turn.Now().Outcome == OutcomeLost) {
		n.turn.Store(turn)
	}
}

// Now returns the turn with what has become of its lock since the handler was called: OutcomeLost in place of OutcomeAcquired
// if the lock was lost, with the reason in Detail.
func (t Turn) Now() Turn {
	if t.Outcome == OutcomeAcquired && t.Lock != nil {
		if err := t.Lock.Err(); err != nil && err != context.Canceled { // which it is after the release
			t.Outcome, t.Detail = OutcomeLost, detailOf(OutcomeLost, err)
		}
	}
	return t
}

// LogValue returns the turn for a log of package slog: its rule, outcome, wait in seconds, fencing token, slot and detail, as it is
// Now. Its key is left out, as it may be personal data: log Turn.Key yourself if you want it.
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

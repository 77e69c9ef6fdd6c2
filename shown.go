package caddyredlock

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// turnVar names the variable of a request that holds what is shown of it.
const turnVar = "http.redlock"

// shown is what the placeholders and the access log show of a request. Their values are only computed when they are read.
type shown struct {
	turns []ruleTurn // of the rules that the request has reached, the latest last
	room  [1]ruleTurn
}

type ruleTurn struct {
	middleware.Turn
	rule    *Handler
	refused bool
}

// show has the placeholders show this turn from now on, instead of that of another rule, and adds it to the access log.
func (h *Handler) show(r *http.Request, turn middleware.Turn, refused bool) {
	ctx := r.Context()
	s, ok := caddyhttp.GetVar(ctx, turnVar).(*shown)
	if !ok {
		s = new(shown)
		s.turns = s.room[:0]
		caddyhttp.SetVar(ctx, turnVar, s)
		ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer).Map(s.get)
		server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
		if extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok && server != nil && server.Logs != nil {
			extra.Add(zap.Object("redlock", s))
		}
	}
	s.turns = slices.DeleteFunc(s.turns, func(t ruleTurn) bool { return t.rule == h })
	s.turns = append(s.turns, ruleTurn{turn, h, refused})
}

func (s *shown) latest() middleware.Turn { return s.turns[len(s.turns)-1].Now() }

func (s *shown) get(name string) (any, bool) {
	switch name {
	case "http.redlock.key":
		return s.latest().Key, true
	case "http.redlock.fence":
		if fence, ok := s.latest().Fence(); ok {
			return fence, true
		}
	case "http.redlock.slot":
		if slot, ok := s.latest().Slot(); ok {
			return slot, true
		}
	case "http.redlock.wait":
		return s.latest().Waited.Seconds(), true
	case "http.redlock.outcome":
		return s.String(), true
	case "http.redlock.detail":
		return s.latest().Detail, true
	case "http.redlock.rule":
		return s.latest().Rule, true
	}
	return nil, false
}

// String returns the outcome alone: {http.vars.http.redlock} shows it, and must not show the key.
func (s *shown) String() string { return string(s.latest().Outcome) }

// MarshalLogObject writes the group redlock of the access log: the rule that has refused the request, or else the latest, which
// is the innermost. The other rules that the request has reached follow in a list.
func (s *shown) MarshalLogObject(into zapcore.ObjectEncoder) error {
	decided := slices.IndexFunc(s.turns, func(t ruleTurn) bool { return t.refused })
	if decided < 0 {
		decided = len(s.turns) - 1
	}
	addTurn(into, s.turns[decided].Turn)
	if len(s.turns) == 1 {
		return nil
	}
	return into.AddArray("others", zapcore.ArrayMarshalerFunc(func(list zapcore.ArrayEncoder) error {
		for i, t := range s.turns {
			if i == decided {
				continue
			}
			_ = list.AppendObject(zapcore.ObjectMarshalerFunc(func(into zapcore.ObjectEncoder) error {
				addTurn(into, t.Turn)
				return nil
			}))
		}
		return nil
	}))
}

func addTurn(into zapcore.ObjectEncoder, turn middleware.Turn) {
	for _, attr := range turn.LogValue().Group() {
		switch value := attr.Value; value.Kind() {
		case slog.KindFloat64:
			into.AddFloat64(attr.Key, value.Float64())
		case slog.KindInt64:
			into.AddInt64(attr.Key, value.Int64())
		case slog.KindUint64:
			into.AddUint64(attr.Key, value.Uint64())
		default:
			into.AddString(attr.Key, value.String())
		}
	}
}

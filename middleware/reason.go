package middleware

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/answer"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Reason is why the answer to a delivery is not remembered, under a rule that remembers answers.
type Reason string

// The reasons.
const (
	ReasonNotFinal  Reason = "not_final"      // its status is none that is remembered
	ReasonBrokenOff Reason = "broken_off"     // the handler has failed, or given up on its upstream
	ReasonTruncated Reason = answer.Truncated // its body is not as long as was declared
	ReasonStream    Reason = answer.Streamed  // it is a stream of events, or has trailers
	ReasonHijacked  Reason = answer.Hijacked  // its connection was taken over, as for WebSocket
	ReasonTooLarge  Reason = "too_large"      // it is larger than may be remembered: a repeat isn't served, and learns only its status
	ReasonLostLease Reason = "lost_lease"     // the lock was lost before it was complete
	ReasonNoQuorum  Reason = "no_quorum"      // no majority of the masters has confirmed it, or the request was served without a lock
	ReasonQuota     Reason = "quota"          // the answers of its rule, or of its scope, take as much of the masters as they may
	ReasonNoRoom    Reason = "no_room"        // too many other answers were being stored; or there was no room for it in memory, and only its status is remembered
	ReasonFailed    Reason = "failed"         // it can't be encrypted, or the Locker is closed
)

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{ReasonNotFinal, ReasonBrokenOff, ReasonTruncated, ReasonStream, ReasonHijacked, ReasonTooLarge, ReasonLostLease, ReasonNoQuorum, ReasonQuota, ReasonNoRoom, ReasonFailed}
}

// reasonOf returns why an answer is not remembered that the masters were asked to remember, or "".
func reasonOf(err error) Reason {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, redlock.ErrNoRoom):
		return ReasonNoRoom
	case errors.Is(err, redlock.ErrNoQuorum):
		return ReasonNoQuorum
	case errors.Is(err, redlock.ErrClosed):
		return ReasonFailed
	case errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner):
		return ReasonLostLease
	}
	return ReasonFailed
}

// noteRemembered tells the log and the Observer how many bytes of the answer the masters remember, and why not all of it.
func (s *serving) noteRemembered(bytes int, why Reason, err error) {
	if s.rule.Observer != nil {
		s.rule.Observer.Remembered(s.rule.Name, bytes, why)
	}
	if why == "" {
		return
	}
	message, level := "answer is not remembered: a repeat runs again", slog.LevelWarn
	switch {
	case bytes > 0:
		message, level = "answer is remembered without its body and headers: a repeat gets the status alone", slog.LevelInfo
	case slices.Contains([]Reason{ReasonNotFinal, ReasonBrokenOff, ReasonStream, ReasonHijacked}, why):
		level = slog.LevelInfo
	}
	s.rule.logSometimes(level, message, string(why), append([]slog.Attr{slog.String("reason", string(why)), slog.Any("error", err)}, s.turn.identity()...)...)
}

// logSometimes logs a line about the rule, unless one of this kind was logged just now. Attributes with a nil error are left out.
func (rule *Serializer) logSometimes(level slog.Level, message, kind string, attrs ...slog.Attr) {
	if !rule.Logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := rule.lines.due("about "+kind, time.Now())
	if !ok {
		return
	}
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindAny && a.Value.Any() == nil })
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	rule.Logger.LogAttrs(context.Background(), level, message, append([]slog.Attr{slog.String("rule", rule.Name)}, attrs...)...)
}

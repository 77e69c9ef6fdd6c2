package middleware

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linePause is the time between two lines of the log about one outcome under one rule.
const linePause = 10 * time.Second

// lines limits how much a rule logs about its requests: a storm of refusals must not become a storm of lines.
type lines struct {
	mu   sync.Mutex
	last map[string]line // by what they are about
}

// line is the last one about something.
type line struct {
	at     time.Time
	missed int // requests since then
}

// due reports whether a line about something, such as an outcome, may be logged now, and about how many requests none was since the last
// one.
func (l *lines) due(about string, now time.Time) (missed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, logged := l.last[about]
	if logged && now.Sub(last.at) < linePause {
		last.missed++
		l.last[about] = last
		return 0, false
	}
	if l.last == nil {
		l.last = make(map[string]line)
	}
	l.last[about] = line{at: now}
	return last.missed, true
}

// logOutcome logs what became of a request, unless that was logged just now for another one. The line has neither the key, but for its hash, nor
// a value of the request; err, which may name masters, is logged only if they are to blame.
func (rule *Serializer) logOutcome(message string, turn Turn, err error, more ...slog.Attr) {
	logger, level := rule.Logger, levelOf(turn.Outcome)
	if !logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := rule.lines.due(string(turn.Outcome), time.Now())
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("rule", turn.Rule), slog.String("outcome", string(turn.Outcome)), slog.String("detail", turn.Detail)}
	attrs = append(attrs, turn.identity()...)
	attrs = append(attrs, more...)
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	if ofServer(turn.Outcome) {
		attrs = append(attrs, slog.Any("error", err))
	}
	logger.LogAttrs(context.Background(), level, message, attrs...)
}

// levelOf returns the level at which an outcome is logged. What other requests and impatient clients cause is normal.
func levelOf(outcome Outcome) slog.Level {
	switch outcome {
	case OutcomeNoQuorum, OutcomeLost, OutcomeFailed, OutcomeBodyBudget, OutcomeBadSignature:
		return slog.LevelWarn
	case OutcomeCanceled, OutcomeStopping:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// ofServer reports whether the server, and not the client or another request, is the reason for an outcome.
func ofServer(outcome Outcome) bool {
	return outcome == OutcomeNoQuorum || outcome == OutcomeLost || outcome == OutcomeFailed
}

package middleware

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
)

// DefaultAnswerTimeout is how long a client may keep an answer waiting unless something else is set.
const DefaultAnswerTimeout = 10 * time.Second

// wrap returns the writer for the handler, and what it writes to.
func (s *serving) wrap() (http.ResponseWriter, *response.Writer) {
	o := response.Options{ToEnd: s.rule.runsToEnd(), Patience: s.rule.AnswerTimeout}
	if *s.rule.BufferAnswer && s.r.Method != http.MethodHead && !upgrades(s.r) {
		room := s.rule.BodyBudget.portion(s.rule.client(s.r), s.rule.MaxBody)
		o.Buffer = &response.Buffer{Most: s.rule.MaxBody, Take: room.trySpare, Settle: room.settle}
	}
	return response.Wrap(s.w, o)
}

// noteSlowClient logs, if it was not logged just now, that a client has kept its answer, and so perhaps the lock, waiting.
func (s *serving) noteSlowClient(written *response.Writer) {
	message := "client took its answer too slowly, and was cut off"
	switch {
	case written.GaveUp():
	case written.HandlerWaited():
		message = "answer was too large to be buffered, or body_budget was used up: the lock was held until the client had taken the rest"
	default:
		return
	}
	missed, ok := s.rule.lines.due(message, time.Now())
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("rule", s.turn.Rule)}
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	s.rule.Logger.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
}

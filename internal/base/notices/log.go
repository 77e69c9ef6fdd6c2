package notices

import (
	"context"
	"log/slog"
)

// Default returns the default log, in which each line names this project.
func Default() *slog.Logger { return slog.Default().With("logger", "redlock") }

// Line is a line of a log.
type Line struct {
	to     slog.Handler
	record slog.Record
}

// Log puts a queue, which is otherwise unused, in front of a log. The first logger never asks whether a level is enabled, as that may block, too; the
// second one does, which saves the work for lines that nobody wants.
func Log(lines *Queue[Line], to slog.Handler) (unasked, asking *slog.Logger) {
	lines.Receive = func(l Line) {
		if ctx := context.Background(); l.to.Enabled(ctx, l.record.Level) {
			_ = l.to.Handle(ctx, l.record)
		}
	}
	lines.Missed = func(n uint64) {
		slog.New(to).Warn("lines are missing in this log: it was too slow, or failed", "lines", n)
	}
	return slog.New(queued{lines, to, false}), slog.New(queued{lines, to, true})
}

// queued is a slog.Handler that queues lines.
type queued struct {
	lines *Queue[Line]
	to    slog.Handler
	asks  bool
}

func (q queued) Enabled(ctx context.Context, level slog.Level) bool {
	return !q.asks || q.to.Enabled(ctx, level)
}

func (q queued) Handle(_ context.Context, record slog.Record) error {
	q.lines.Push(Line{q.to, record.Clone()})
	return nil
}

func (q queued) WithAttrs(attrs []slog.Attr) slog.Handler {
	q.to = q.to.WithAttrs(attrs)
	return q
}

func (q queued) WithGroup(name string) slog.Handler {
	q.to = q.to.WithGroup(name)
	return q
}

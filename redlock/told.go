package redlock

import (
	"context"
	"log/slog"

	"github.com/caddy-redlock/caddy-redlock/internal/notices"
)

// told are those whom a Locker tells what happens, the logger, the Observer and the tracer, each behind a queue of its own: none of them can
// hold up a lease, a call, a master or the others.
type told struct {
	logger *slog.Logger // without a queue: for callers that it may hold up, such as package middleware
	lines  notices.Queue[line]
	events notices.Queue[observed]
	traces notices.Queue[Attempt]
}

// newTold puts the queues in front of the logger and the Observer of these options.
func newTold(o *options) *told {
	t := &told{logger: o.logger}
	logger, observer := slog.New(queuedLog{&t.lines, o.logger.Handler()}), o.observer
	t.lines.Receive = func(l line) {
		if ctx := context.Background(); l.to.Enabled(ctx, l.record.Level) {
			_ = l.to.Handle(ctx, l.record)
		}
	}
	t.lines.Missed = func(n uint64) {
		t.logger.Warn("lines are missing in this log: it was too slow, or failed", "lines", n)
	}
	o.logger = logger
	if o.trace != nil {
		t.traces.Receive, o.trace = o.trace, t.traces.Push
		t.traces.Missed = func(n uint64) {
			logger.Warn("the tracer was not told of all attempts: it was too slow, or failed", "attempts", n)
		}
	}
	if _, nobody := observer.(NopObserver); nobody {
		return t
	}
	t.events.Receive = func(e observed) { e.tell(observer, e) }
	t.events.Missed = func(n uint64) {
		logger.Warn("the observer was not told of all events: it was too slow, or failed", "events", n)
	}
	o.observer = queuedObserver{&t.events}
	return t
}

// close delivers what is left, but doesn't wait long for one that blocks.
func (t *told) close() {
	t.traces.Close()
	t.events.Close()
	t.lines.Close()
}

// line is a line of the log.
type line struct {
	to     slog.Handler
	record slog.Record
}

// queuedLog is a slog.Handler that queues lines.
type queuedLog struct {
	lines *notices.Queue[line]
	to    slog.Handler
}

// Enabled doesn't ask the handler, which may block.
func (q queuedLog) Enabled(context.Context, slog.Level) bool { return true }

func (q queuedLog) Handle(_ context.Context, record slog.Record) error {
	q.lines.Push(line{q.to, record.Clone()})
	return nil
}

func (q queuedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return queuedLog{q.lines, q.to.WithAttrs(attrs)}
}

func (q queuedLog) WithGroup(name string) slog.Handler {
	return queuedLog{q.lines, q.to.WithGroup(name)}
}

// observed is a call of an Observer.
type observed struct {
	tell     func(Observer, observed)
	acquired Acquisition
	err      error
	status   MasterStatus
}

// queuedObserver is an Observer that queues its calls.
type queuedObserver struct{ events *notices.Queue[observed] }

func (q queuedObserver) Acquired(a Acquisition) {
	q.events.Push(observed{acquired: a, tell: func(o Observer, e observed) { o.Acquired(e.acquired) }})
}

func (q queuedObserver) Renewed(err error) {
	q.events.Push(observed{err: err, tell: func(o Observer, e observed) { o.Renewed(e.err) }})
}

func (q queuedObserver) LeaseLost(err error) {
	q.events.Push(observed{err: err, tell: func(o Observer, e observed) { o.LeaseLost(e.err) }})
}

func (q queuedObserver) MasterDown(status MasterStatus) {
	q.events.Push(observed{status: status, tell: func(o Observer, e observed) { o.MasterDown(e.status) }})
}

func (q queuedObserver) MasterUp(master string) {
	q.events.Push(observed{status: MasterStatus{Name: master}, tell: func(o Observer, e observed) { o.MasterUp(e.status.Name) }})
}

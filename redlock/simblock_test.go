package redlock

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// unmoved is that a log, an Observer or a connection that blocks keeps nobody from anything.
const unmoved = "nobody waits for a log, an Observer or a connection that blocks"

// block is what blocks in a process: its "log", its "observer" or its first "connection", for long from a time on.
type block struct {
	what     string
	from, to time.Duration
	world    *world
}

// block has something of one process block. No call waits for longer than that lasts.
func (w *world) block(r *rand.Rand) {
	p := w.processes[r.IntN(len(w.processes))]
	from := between(r, w.faults.from, w.faults.to)
	what := []string{"log", "observer", "connection"}[r.IntN(3)]
	if w.quiet || len(p.routes) < 3 { // the other masters must be a quorum
		what = "log"
	}
	p.blocks = block{what, from, w.faults.to + time.Hour, w}
}

// wait blocks until the end of the block.
func (b *block) wait() {
	if now := b.world.now(); now < b.from || now > b.to {
		return
	}
	timer := time.NewTimer(b.to - b.world.now())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.world.ended:
	}
}

// blocked returns the options of a process whose log blocks.
func (p *process) blocked() []Option {
	if p.blocks.what != "log" {
		return nil
	}
	return []Option{WithLogger(slog.New(blockedLog{&p.blocks}))}
}

type blockedLog struct{ *block }

func (blockedLog) Enabled(context.Context, slog.Level) bool { return true }
func (l blockedLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l blockedLog) WithGroup(string) slog.Handler          { return l }
func (l blockedLog) Handle(context.Context, slog.Record) error {
	l.wait()
	return nil
}

// observer returns the Observer of a process, which may block.
func (p *process) observer() Observer {
	o := Observer{Attempted: func(a fmt.Stringer) {
		select {
		case <-p.started:
			p.world.attempts.Add(1)
		default:
		}
		p.world.event("process %d: %v", p.index, a)
	}}
	if p.blocks.what == "observer" {
		block := &p.blocks
		o.Acquired = func(time.Duration, string) { block.wait() }
		o.Renewed = func(error) { block.wait() }
		o.LeaseLost = func(error) { block.wait() }
		o.MasterDown = func(MasterStatus) { block.wait() }
		o.MasterUp = func(string) { block.wait() }
	}
	return o
}

// blockMutants have what must not be held up wait for what blocks.
var blockMutants = []mutant{
	{
		name: "the log is written by who has something to say", breaks: unmoved,
		shape:   func(w *world) { w.blocks("log") },
		started: func(p *process) { p.locker.reporter.lines.Close() },
	},
	{
		name: "the Observer is told by who has something to tell", breaks: unmoved,
		shape:   func(w *world) { w.blocks("observer") },
		started: func(p *process) { p.locker.reporter.events.Close() },
	},
	{
		name: "callers send on a connection that may block", breaks: unmoved, prompt: true,
		shape: func(w *world) { w.blocks("connection") },
	},
}

// blocks has the log, the Observer or a connection of the first process block.
func (w *world) blocks(what string) {
	w.processes[0].blocks = block{what, w.faults.from, w.faults.to + time.Hour, w}
}

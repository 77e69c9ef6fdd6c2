package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// link is a process's master: its connection to a server.
type link struct {
	server      *simServer
	process     *process
	random      *rand.Rand // of Do alone
	ear         *rand.Rand // of Listen
	far         time.Duration
	loss        int     // per cent of the batches that break the connection
	there, back windows // in which nothing passes
	admit       func(server) error
	epoch       int // of the server it is connected to; -1 if to none
	acquiring   atomic.Bool
	once        sync.Once
	closed      chan struct{}
}

func (l *link) String() string { return fmt.Sprint("sim://", l.server.index) }

func (l *link) admitWith(admit func(server) error) { l.admit = admit }

func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

var (
	errBroken = errors.New("the connection broke")
	errDown   = errors.New("connection refused")
)

// Do sends copies of the commands: what is executed late must not touch the caller's.
func (l *link) Do(cmds []*Command) {
	sent := make([]Command, len(cmds))
	for i, cmd := range cmds {
		sent[i] = *cmd
		if cmd.Op == OpAcquire {
			sent[i].Fence += l.process.skew.Microseconds() // as a client whose clock is wrong
		}
		if cmd.Op == OpExtend {
			l.server.world.renewing(cmd.Token)
		}
		if change := l.server.mutant.send; change != nil {
			change(l, &sent[i])
		}
	}
	l.acquiring.Store(slices.ContainsFunc(cmds, func(cmd *Command) bool { return cmd.Op == OpAcquire }))
	answered, err := l.trip(sent)
	l.acquiring.Store(false)
	for i, cmd := range cmds {
		cmd.Reply = sent[i].Reply
		if i >= answered {
			cmd.Reply = Reply{Err: err}
		}
		if change := l.server.mutant.answer; change != nil {
			change(l, cmd)
		}
	}
}

// trip brings commands to the server and the answers back. It says how many answers came.
func (l *link) trip(cmds []Command) (answered int, err error) {
	w, r := l.server.world, l.random
	if err := l.connect(); err != nil {
		return 0, err
	}
	epoch := l.epoch
	there, back := l.delay(l.random), l.delay(l.random)
	if change := l.server.mutant.delayed; change != nil {
		sent := w.now()
		read := arrival(sent+there, l.there, l.server.hangs)
		change(cmds, arrival(read+back, l.back, l.process.pauses)-sent)
	}
	execute := func(cmds []Command) bool { return l.server.execute(l, cmds, epoch) }
	broken := func() (int, error) {
		l.epoch = -1
		return 0, errBroken
	}
	later := func() {
		cmds, after := append([]Command(nil), cmds...), upTo(r, w.late)
		go func() {
			time.Sleep(after)
			execute(cmds)
		}()
	}
	lossy := w.now() >= w.faults.from && !w.calm.Load() && chance(r, l.loss)
	fate := r.IntN(5)
	if !l.pass(there, l.there, l.server.hangs) {
		return broken()
	}
	if lossy {
		switch {
		case fate == 0: // the request is lost
			return broken()
		case fate == 1 && w.now() < w.faults.to: // it waits in the old connection
			later()
			return broken()
		case fate == 2 && w.now() < w.faults.to: // it comes twice
			later()
		case fate == 3: // it is lost from somewhere on
			part := cmds[:r.IntN(len(cmds)+1)]
			execute(part)
			_, _ = broken()
			return len(part) * r.IntN(2), errBroken
		}
	}
	if early := l.server.mutant.ahead; early != nil && early(&cmds[0]) {
		go func(cmds []Command) {
			time.Sleep(2 * (there + back))
			execute(cmds)
		}(append([]Command(nil), cmds...))
		return 0, errBroken
	}
	if !execute(cmds) || !l.pass(back, l.back, l.process.pauses) || lossy && fate == 4 {
		return broken()
	}
	if now, up, _ := l.server.life(); !up || now != epoch {
		return broken()
	}
	return len(cmds), nil
}

// Listen hears what the server publishes until the connection breaks. Some messages come late, twice
// or never.
func (l *link) Listen(ctx context.Context, process string, ready func(), message func(WakeUp)) error {
	w := l.server.world
	ctx, end := context.WithCancel(ctx)
	defer end()
	epoch, up, _ := l.server.life()
	if l.process.dead() || !l.pass(l.delay(l.ear), l.there, l.server.hangs, l.process.pauses) || !up {
		return errDown
	}
	memory := l.server.at(epoch)
	if memory == nil {
		return errBroken
	}
	ends := time.Hour
	for _, down := range l.server.downs {
		if down.from > w.now() {
			ends = min(ends, down.from-w.now())
		}
	}
	if !l.process.halfOpen {
		ends = min(ends, l.process.dies-w.now())
	}
	if l.loss > 0 && w.now() < w.faults.to { // it breaks at some time
		ends = min(ends, upTo(l.ear, w.ttl))
	}
	timer := time.AfterFunc(ends, end)
	defer timer.Stop()
	defer func() {
		if l.process.halfOpen && l.process.dead() { // the server believes that it still listens
			memory.mu.Lock()
			defer memory.mu.Unlock()
			memory.listeners[process] = func(WakeUp) {}
		}
	}()
	return memory.Listen(ctx, process, func() {
		if l.process.dead() {
			return
		}
		ready()
	}, func(wake WakeUp) {
		if change := w.mutant.hear; change != nil && !change(l, wake) {
			return
		}
		copies := 1
		if w.now() < w.faults.to && chance(l.ear, l.loss) {
			copies = l.ear.IntN(3)
		}
		for range copies {
			delay := l.delay(l.ear)
			if copies > 1 {
				delay += upTo(l.ear, w.late)
			}
			go func() {
				if l.pass(delay, l.back, l.process.pauses) && !l.process.dead() {
					message(wake)
				}
			}()
		}
	})
}

// connect makes a connection, unless there is one, and lets the Locker judge the server.
func (l *link) connect() error {
	if l.process.dead() || !l.pass(0, l.process.pauses) {
		return errBroken
	}
	epoch, up, _ := l.server.life()
	if l.epoch == epoch && up {
		return nil
	}
	stale := l.epoch >= 0
	l.epoch = -1
	if stale && chance(l.random, 50) {
		return errBroken // seen only when it is used
	}
	refused := func(err error) error { return unsent(fmt.Errorf("%w: %w", errUnreachable, err)) }
	if !l.pass(l.delay(l.random), l.there, l.server.hangs) {
		return errBroken
	}
	epoch, up, uptime := l.server.life()
	if !up {
		return refused(errDown)
	}
	if !l.pass(l.delay(l.random), l.back) {
		return errBroken
	}
	told := (uptime + upTo(l.random, 990*time.Millisecond)).Truncate(time.Second)
	if err := l.admit(server{runID: fmt.Sprint(l.server.index, ".", epoch), uptime: told, role: "master"}); err != nil {
		return refused(err)
	}
	l.epoch = epoch
	return nil
}

// delay is how long a message travels: mostly as long as the way is, at times much longer.
func (l *link) delay(r *rand.Rand) time.Duration {
	if w := l.server.world; chance(r, 5) && w.now() < w.faults.to && !w.quiet {
		return upTo(r, 4*w.timeout)
	}
	return l.far/2 + upTo(r, l.far)
}

// arrival is when a message comes that would come at this time, but is held up in these windows.
func arrival(at time.Duration, held ...windows) time.Duration {
	for before := time.Duration(-1); before != at; {
		before = at
		for _, ws := range held {
			at = ws.end(at)
		}
	}
	return at
}

// pass waits for a message that travels for so long, and is held up in these windows. It is false
// if the connection is closed meanwhile.
func (l *link) pass(d time.Duration, held ...windows) bool {
	until := arrival(l.server.world.now()+d, held...)
	if until == l.server.world.now() {
		return true
	}
	timer := time.NewTimer(until - l.server.world.now())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closed:
		return false
	}
}

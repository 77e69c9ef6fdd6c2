package redlock

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

var errDown = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)

// simConn is a connection of a route: what is sent on it arrives in order, and so do the replies,
// however many batches are under way. When it breaks, what is under way to the server may still arrive,
// and in that order; the replies are lost.
type simConn struct {
	route  *route
	on     reached
	sent   chan *simBatch
	back   chan *simBatch
	closed chan struct{}
	end    func()
	direct simDirect

	coming *simBatch    // whose reply is under way to who waits for it
	oldest *simBatch    // whose reply has come
	failed bool         // no reply counts any more: a mutant is told of those that won't come
	due    atomic.Int64 // batches that have no reply yet
	busy   atomic.Bool  // somebody sends
	// Of Send alone: when the last batch arrives.
	arrives time.Duration
}

type simBatch struct {
	cmds    []protocol.Command // copies: what is executed late must not touch the caller's
	arrives time.Duration      // at the server
	done    time.Duration      // when it was executed
	travels time.Duration      // back
	loss    simLoss
	err     error // which is the reply
}

// simLoss is what goes wrong with a batch.
type simLoss int

const (
	arrivesWell simLoss = iota
	lost                // the connection breaks before it, and what is sent behind it is lost too
	late                // the connection breaks, and it is executed late
	twice               // it is executed again, late
	partly              // the connection breaks within it
	unanswered          // the connection breaks when it has been executed
)

// Connect makes a connection, and lets the Locker judge the server. One for results has other delays and losses.
func (l *route) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	if seat, locks := admits.(*admission.Seat); locks {
		l.seat.Store(seat)
		defer l.acquiring.Store(0)
	}
	return l.connect(ctx, admits)
}

func (l *route) connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	broken := protocol.Unreachable(protocol.ErrBroken)
	if l.process.world.mutant.refuses {
		broken = protocol.Unreachable(errDown)
	}
	on, _ := l.reaches()
	sent := time.Now()
	if l.process.dead() || !l.pass(ctx, 0, l.process.pauses) || !l.pass(ctx, l.delay(l.random), l.there, on.server.hangs) {
		return nil, broken
	}
	on, up := l.reaches()
	l.server.Store(on.server)
	if !up {
		return nil, protocol.Unreachable(errDown)
	}
	greeting := on.server.greeting(on.epoch)
	if !l.pass(ctx, l.delay(l.random), l.back) {
		return nil, broken
	}
	greeting.Sent, greeting.Received = sent, time.Now()
	if change := l.process.world.mutant.greet; change != nil {
		change(l, &greeting)
	}
	if err := admits.Admit(greeting); err != nil {
		return nil, protocol.Unreachable(err)
	}
	c := &simConn{route: l, on: on, sent: make(chan *simBatch, protocol.MaxWindow), back: make(chan *simBatch, protocol.MaxWindow), closed: make(chan struct{})}
	c.Resume()
	ends := min(l.process.dies-l.process.world.now(), l.breaks(on))
	c.end = sync.OnceFunc(func() { close(c.closed) })
	timer := time.AfterFunc(ends, c.end)
	go func() {
		defer timer.Stop()
		c.serve()
	}()
	return c, nil
}

func (c *simConn) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: protocol.MaxWindow, Prompt: c.isPrompt(), Direct: c}
}

func (c *simConn) Close() { c.end() }

// isPrompt is false for what may block a sender.
func (c *simConn) isPrompt() bool {
	return c.route.process.blocks.what != "connection" || c.route.process.world.mutant.prompt
}

func (c *simConn) Send(cmds []*protocol.Command) (answered bool, err error) {
	if c.busy.Swap(true) {
		panic("two send on one connection at once")
	}
	defer c.busy.Store(false)
	runtime.Gosched() // as a system call would
	if c.route.address == 0 && c.route.process.blocks.what == "connection" {
		c.route.process.blocks.wait(c.closed)
	}
	l := c.route
	w, r := l.process.world, l.random
	b := &simBatch{cmds: make([]protocol.Command, len(cmds))}
	for i, cmd := range cmds {
		b.cmds[i] = *cmd
		if cmd.Op == protocol.OpAcquire {
			b.cmds[i].Fence += l.process.skew.Microseconds() // as a client whose clock is wrong
		}
		if cmd.Op == protocol.OpExtend {
			w.renewing(cmd.Token)
		}
		if change := w.mutant.send; change != nil {
			change(l, &b.cmds[i])
		}
	}
	if slices.ContainsFunc(cmds, func(cmd *protocol.Command) bool { return cmd.Op == protocol.OpAcquire }) {
		l.acquiring.Add(1)
	}
	now := arrival(w.now(), l.process.pauses)
	b.arrives = max(c.arrives, arrival(now+l.delay(r), l.there, c.on.server.hangs))
	c.arrives, b.travels = b.arrives, l.delay(r)
	if change := w.mutant.delayed; change != nil {
		change(b.cmds, arrival(b.arrives+b.travels, l.back, l.process.pauses)-w.now())
	}
	fate := simLoss(1 + r.IntN(5))
	if now >= w.faults.from && !w.calm.Load() && chance(r, l.loss) && (now < w.faults.to || fate != late && fate != twice) {
		b.loss = fate
	}
	if l.drops.end(now) != now {
		b.loss = lost
	}
	if early := w.mutant.ahead; early != nil && early(&b.cmds[0]) {
		b.loss, b.err = twice, protocol.ErrBroken
	}
	select {
	case <-c.closed:
		return false, protocol.ErrBroken
	case c.sent <- b:
		c.due.Add(1)
		return false, nil
	}
}

// serve is the server's side, until the connection is closed and what was sent has arrived.
func (c *simConn) serve() {
	l := c.route
	w, r := l.process.world, l.ear
	afterwards := time.Duration(0)
	for {
		var b *simBatch
		select {
		case b = <-c.sent:
		default:
			select {
			case b = <-c.sent:
			case <-c.closed:
				return
			}
		}
		time.Sleep(b.arrives + afterwards - w.now())
		if l.process.dead() && afterwards == 0 && chance(r, 50) {
			c.Close()
			return
		}
		switch {
		case b.err != nil: // a mutant's
			again := slices.Clone(b.cmds)
			time.AfterFunc(2*b.travels+l.far, func() { c.on.server.execute(l, again, c.on.epoch) })
			b.done = w.now()
			c.back <- b
			continue
		case b.loss == lost:
			c.Close()
			return
		case b.loss == late:
			c.Close()
			afterwards = upTo(r, w.late)
			time.Sleep(afterwards)
		case b.loss == twice:
			again, after := slices.Clone(b.cmds), upTo(r, w.late)
			time.AfterFunc(after, func() { c.on.server.execute(l, again, c.on.epoch) })
		case b.loss == partly:
			b.cmds = b.cmds[:r.IntN(len(b.cmds)+1)]
		}
		if !c.on.server.execute(l, b.cmds, c.on.epoch) {
			c.Close()
			return
		}
		if b.loss == unanswered {
			c.Close()
		}
		b.done = w.now()
		c.back <- b
	}
}

// Wait blocks until the replies to the oldest batch are there.
func (c *simConn) Wait() error {
	if c.await(nil) {
		return nil
	}
	return c.broken()
}

// await reports whether the replies to the oldest batch are there, unless it is interrupted or the connection ends before.
func (c *simConn) await(interrupted <-chan struct{}) bool {
	l := c.route
	w := l.process.world
	if c.failed { // what still comes is of batches that have failed
		return false
	}
	if c.coming == nil {
		select {
		case <-interrupted:
			return false
		case <-c.closed:
			return false
		case c.coming = <-c.back:
		}
	}
	b := c.coming
	timer := time.NewTimer(arrival(b.done+b.travels, l.back, l.process.pauses) - w.now())
	defer timer.Stop()
	over := false
	select {
	case <-timer.C:
	case <-interrupted:
		return false
	case <-c.closed:
		over = true
	}
	c.coming = nil
	if slices.ContainsFunc(b.cmds, func(cmd protocol.Command) bool { return cmd.Op == protocol.OpAcquire }) {
		l.acquiring.Add(-1)
	}
	if now, up := l.reaches(); over || !up || now != c.on {
		c.failed = true // whoever waits next, also if a caller was first
		return false
	}
	c.oldest = b
	c.due.Add(-1)
	return true
}

// broken ends the connection. A mutant that changes replies changes those too that will not come.
func (c *simConn) broken() error {
	if c.route.process.world.mutant.answer == nil || c.due.Add(-1) < 0 {
		return protocol.ErrBroken
	}
	c.failed, c.oldest = true, &simBatch{err: protocol.ErrBroken}
	return nil
}

func (c *simConn) Receive(cmds []*protocol.Command) error {
	b := c.oldest
	answered := len(b.cmds)
	if b.loss == partly {
		answered *= c.route.ear.IntN(2)
	}
	for i, cmd := range cmds {
		switch {
		case b.err != nil:
			cmd.Reply = protocol.Reply{Err: b.err}
		case i < answered:
			cmd.Reply = b.cmds[i].Reply
		default:
			cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
		}
		if change := c.route.process.world.mutant.answer; change != nil {
			change(c.route, cmd)
		}
	}
	if b.loss == partly {
		return protocol.ErrBroken
	}
	return nil
}

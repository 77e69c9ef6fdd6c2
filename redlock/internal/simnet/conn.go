package simnet

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// conn is a connection. Batches arrive in the order in which they are sent, and so do their replies. When the client closes the connection, batches
// under way to the server still arrive, but the replies are lost.
type conn struct {
	address *Address
	server  *Server
	run     int
	sent    chan *batch
	replied chan *batch
	heard   chan heard
	closed  chan struct{}
	end     func()

	lost, forgotten, subscribed, holds atomic.Bool
	held                               atomic.Pointer[valve]
	interrupt                          atomic.Pointer[chan struct{}]
	sends, awaits                      atomic.Bool // whether a goroutine is in Send, or in Await

	arrives time.Time // when the last batch arrives; only Send uses it
	coming  *batch    // the batch whose reply is under way to the waiting goroutine
	oldest  *batch    // the batch whose reply has come
}

func newConn(a *Address) *conn {
	c := &conn{address: a, closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	c.Resume()
	return c
}

func (c *conn) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: protocol.MaxWindow, Prompt: !c.address.tunnel.Load(), Direct: c}
}

// Close closes the client's side of the connection.
func (c *conn) Close() { c.end() }

func (c *conn) ended() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *conn) Send(cmds []*protocol.Command) (answered bool, err error) {
	if c.sends.Swap(true) {
		panic("two send on one connection at once")
	}
	defer c.sends.Store(false)
	runtime.Gosched() // a real write is a system call, which also lets other goroutines run
	if !c.address.stuck.pass(c.closed, nil) || c.ended() {
		return false, protocol.ErrBroken
	}
	b := &batch{cmds: make([]protocol.Command, len(cmds)), arrives: c.address.arrival(false)}
	if b.arrives.Before(c.arrives) {
		b.arrives = c.arrives
	}
	c.arrives = b.arrives
	for i, cmd := range cmds {
		b.cmds[i] = *cmd
	}
	b.fate = c.address.fate(b.cmds)
	c.sent <- b
	return false, nil
}

func (c *conn) serve() {
	for {
		var b *batch
		select {
		case b = <-c.sent: // first, even if the connection has ended, too
		default:
			select {
			case b = <-c.sent:
			case <-c.closed:
				return
			}
		}
		if !c.arrive(b) {
			continue
		}
		if c.lost.Load() || !c.meet(b) {
			c.Close()
			return
		}
		b.back = c.address.arrival(true)
		if !c.forgotten.Load() {
			c.replied <- b
		}
	}
}

// meet executes a batch as its fate says, and reports whether the server has executed it.
func (c *conn) meet(b *batch) bool {
	switch f := b.fate; {
	case f.Lost:
		return false
	case f.Late > 0:
		c.Close()
		time.Sleep(f.Late)
	case f.Again > 0:
		again := slices.Clone(b.cmds)
		time.AfterFunc(f.Again, func() { c.server.execute(c, again) })
	case f.Unanswered:
		defer c.Close()
	case f.Partly:
		return c.server.execute(c, b.cmds[:f.Executed])
	}
	return c.server.execute(c, b.cmds)
}

// arrive waits until the server reads a batch, and reports whether it does.
func (c *conn) arrive(b *batch) bool {
	sleepUntil(b.arrives, nil, nil)
	if c.forgotten.Load() {
		return false
	}
	c.address.requests.pass(nil, nil)
	if held := c.held.Load(); held != nil {
		c.holds.Store(true)
		held.pass(nil, nil)
	}
	c.server.hangs.pass(nil, nil)
	return true
}

// Wait blocks until the reply to the oldest batch is there.
func (c *conn) Wait() error {
	if !c.await(nil) {
		return protocol.ErrBroken
	}
	return nil
}

// Await is Wait by the sender of the batch.
func (c *conn) Await() bool {
	if c.awaits.Swap(true) {
		panic("two wait on one connection at once")
	}
	defer c.awaits.Store(false)
	return c.await(*c.interrupt.Load())
}

func (c *conn) Interrupt() { close(*c.interrupt.Load()) }

func (c *conn) Resume() {
	if c.awaits.Load() {
		panic("a caller still waits on the connection")
	}
	next := make(chan struct{})
	c.interrupt.Store(&next)
}

// await waits for the reply to the oldest batch. It returns false if it is interrupted, or if the connection ends first.
func (c *conn) await(interrupted <-chan struct{}) bool {
	for {
		if c.coming == nil {
			select {
			case c.coming = <-c.replied:
			case <-interrupted:
				return false
			case <-c.closed:
				return false
			}
		}
		if !sleepUntil(c.coming.back, interrupted, c.closed) || !c.address.replies.pass(interrupted, c.closed) || c.ended() {
			return false
		}
		c.oldest, c.coming = c.coming, nil
		if !c.forgotten.Load() {
			return true
		}
	}
}

func (c *conn) Receive(cmds []*protocol.Command) (err error) {
	answered := len(cmds)
	switch {
	case c.address.garbled.Load():
		answered, err = 0, protocol.ErrMalformed
	case c.oldest.fate.Partly:
		answered, err = c.oldest.fate.Answered, protocol.ErrBroken
	}
	for i, cmd := range cmds {
		if cmd.Reply = c.oldest.cmds[i].Reply; i >= answered {
			cmd.Reply = protocol.Reply{Err: err}
		}
	}
	return err
}

// heard is a message, or a sign of life, that arrives on a subscription.
type heard struct {
	at      time.Time
	message *protocol.WakeUp
}

// hear sends a message to the client. The server calls it.
func (c *conn) hear(w protocol.WakeUp) { c.tell(heard{c.address.arrival(true), &w}) }

func (c *conn) tell(h heard) {
	if c.forgotten.Load() {
		return
	}
	select {
	case c.heard <- h:
	default: // Redis also closes the connection of a client that reads so slowly
		c.Close()
	}
}

func (c *conn) listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	c.subscribed.Store(true)
	c.heard = make(chan heard, protocol.MaxWindow)
	if !c.server.subscribe(c, process) {
		return protocol.ErrBroken
	}
	defer c.server.unsubscribe(c, process)
	ready()
	for asked := false; ; {
		silence := time.NewTimer(quiet)
		if asked {
			silence.Reset(patience)
		}
		select {
		case <-ctx.Done():
			silence.Stop()
			return ctx.Err()
		case <-c.closed:
			silence.Stop()
			return protocol.ErrBroken
		case h := <-c.heard:
			silence.Stop()
			if !sleepUntil(h.at, ctx.Done(), c.closed) || !c.address.replies.pass(ctx.Done(), c.closed) {
				return protocol.ErrBroken
			}
			if asked = false; h.message != nil {
				message(*h.message)
			}
		case <-silence.C:
			if asked {
				return errSilent
			}
			asked = true
			go c.ask(ctx)
		}
	}
}

func (c *conn) ask(ctx context.Context) {
	if c.address.there(ctx) && c.server.hangs.pass(ctx.Done(), c.closed) && !c.ended() {
		c.tell(heard{at: c.address.arrival(true)})
	}
}

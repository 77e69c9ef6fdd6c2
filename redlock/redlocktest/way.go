package redlocktest

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// way is the way of one Locker to a master in memory, which can be closed.
type way struct {
	*memory.Master

	mu  sync.Mutex
	up  context.Context // ends when the way is closed
	end context.CancelFunc
}

var errAway = fmt.Errorf("SetAvailable(false): %w", syscall.ECONNREFUSED)

func newWay(to *memory.Master, isOpen bool) *way {
	w := &way{Master: to}
	w.up, w.end = context.WithCancel(context.Background())
	w.set(isOpen)
	return w
}

func (w *way) set(isOpen bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !isOpen:
		w.end()
	case w.up.Err() != nil:
		w.up, w.end = context.WithCancel(context.Background())
	}
}

// open returns a context that ends when the way is closed, or has ended if it is.
func (w *way) open() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up
}

func (w *way) Connect(context.Context, protocol.Admission) (protocol.Conn, error) {
	open := w.open()
	if open.Err() != nil {
		return nil, protocol.Unreachable(errAway)
	}
	c := &conn{Immediate: protocol.NewImmediate(w.Do)}
	c.open, c.end = context.WithCancel(open)
	return c, nil
}

func (w *way) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	open := w.open()
	if open.Err() != nil {
		return errAway
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(open, func() { cancel(errAway) })()
	return w.Master.Listen(ctx, process, patience, ready, message)
}

// conn is a connection that ends with the way.
type conn struct {
	*protocol.Immediate
	open context.Context
	end  context.CancelFunc
}

func (c *conn) Send(cmds []*protocol.Command) (answered bool, err error) {
	if c.open.Err() != nil {
		return false, protocol.ErrBroken
	}
	return c.Immediate.Send(cmds)
}

func (c *conn) Wait() error {
	<-c.open.Done()
	return protocol.ErrBroken
}

func (c *conn) Close() { c.end() }

package link

import (
	"context"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// connect makes a connection to any kind of master.
func (s *Stream) connect(ctx context.Context) (protocol.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.connectTime())
	defer cancel()
	if s.cluster != nil && s.cluster.front == s {
		return s.cluster.connect(ctx)
	}
	if m, ok := s.master.(protocol.Connector); ok {
		return m.Connect(ctx)
	}
	return NewStepwise(s.master.(protocol.Doer)), nil
}

// NewStepwise returns a connection to a master that runs one batch after the other.
func NewStepwise(m protocol.Doer) protocol.Conn {
	c := &stepwise{Doer: m, sent: make(chan struct{}, 1), closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c
}

// stepwise is a connection to a master that runs one batch after the other.
type stepwise struct {
	protocol.Doer
	sent   chan struct{}
	closed chan struct{}
	end    func()
}

func (c *stepwise) Send([]*protocol.Command) (answered bool, err error) {
	c.sent <- struct{}{}
	return false, nil
}

func (c *stepwise) Wait() error {
	select {
	case <-c.sent:
		return nil
	case <-c.closed:
		return protocol.ErrBroken
	}
}

func (c *stepwise) Receive(cmds []*protocol.Command) error {
	c.Do(cmds)
	return nil
}

func (c *stepwise) Window() int { return 1 }

func (c *stepwise) Close() { c.end() }

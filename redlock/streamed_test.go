package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Stepwise is a master that runs one batch after the other, as those of tests do.
type Stepwise interface {
	protocol.Master
	Do(cmds []*protocol.Command)
}

// MasterOf makes a master of an implementation.
func MasterOf(impl Stepwise) Master { return Master{oneByOne{impl}} }

// oneByOne is a Stepwise as a master.
type oneByOne struct{ Stepwise }

func (oneByOne) Capabilities() protocol.Capabilities { return protocol.Capabilities{} }

func (m oneByOne) Connect(context.Context, protocol.Admission) (protocol.Conn, error) {
	if far, ok := m.Stepwise.(interface{ Refuses() bool }); ok && far.Refuses() {
		return nil, protocol.Unreachable(errors.New("connection is refused"))
	}
	return newStepwise(m.Stepwise), nil
}

// newStepwise returns a connection to a master that runs one batch after the other.
func newStepwise(m Stepwise) protocol.Conn {
	c := &stepwise{master: m, sent: make(chan struct{}, 1), closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c
}

// stepwise is a connection to a master that runs one batch after the other.
type stepwise struct {
	master Stepwise
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
	c.master.Do(cmds)
	return nil
}

func (c *stepwise) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: 1, Prompt: true}
}

func (c *stepwise) Close() { c.end() }

// Impl returns the implementation of a master.
func (m Master) Impl() Stepwise {
	if m, ok := m.impl.(oneByOne); ok {
		return m.Stepwise
	}
	return m.impl.(Stepwise)
}

// Streamed returns a master whose Do sends its commands as a Locker does.
func Streamed(master Master) Stepwise {
	m := master.impl
	o, err := newOptions([]Option{WithRestartGuard(0), WithTimeout(5 * time.Second)})
	if err != nil {
		panic(err)
	}
	return &streamed{Master: m, stream: master.connect(o.link(m, newReporter(&o)), admission.New(1, o.admission()).Add(m))}
}

type streamed struct {
	protocol.Master
	stream vote.Stream
}

// Do has the stream send the commands, and waits for the replies.
func (m *streamed) Do(cmds []*protocol.Command) {
	var r replies
	r.all.Add(len(cmds))
	calls := make([]*link.Command, len(cmds))
	for i, cmd := range cmds {
		calls[i] = link.Forced(*cmd, &r)
		m.stream.Enqueue(calls[i])
	}
	m.stream.SendSoon()
	r.all.Wait()
	for i, cmd := range cmds {
		cmd.Reply, cmd.Alone = calls[i].Reply, calls[i].Alone
	}
}

type replies struct{ all sync.WaitGroup }

func (r *replies) Receive(*link.Command) { r.all.Done() }

func (m *streamed) Close() error { return m.stream.Close(time.Second) }

// keyNames are the companions of a lock's key.
type keyNames struct{ fence, queue, leases string }

func companions(key string) keyNames {
	line, _ := protocol.SlotOf(key)
	return keyNames{key + ":fence", line + ":queue", line + ":leases"}
}

package link

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// unconnected is the stream of a master to which there is no connection: the test takes what it would send.
func unconnected() *Stream {
	m := memory.New("", time.Now)
	logger := slog.New(slog.DiscardHandler)
	seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger})
	return makeStream(m, Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seats.Add(m), nil, new(sync.Mutex))
}

// nobody is told nothing.
type nobody struct{}

func (nobody) Up(string)  {}
func (nobody) Down(State) {}

// sends takes what the stream would send once it has these commands too.
func sends(s *Stream, calls ...*Command) *batch {
	s.queue = append(s.queue, calls...)
	b, _ := s.nextBatch()
	return b
}

// queues is an acquire with a ticket, on its way.
func queues(s *Stream) (*Command, *batch) {
	acquire := NewAcquire(protocol.Command{Op: protocol.OpAcquire, Key: "key", Token: "token", TTL: time.Minute, Ticket: 7, Queue: true}, 0, new(atomic.Bool), new(TicketState), nil)
	return &acquire, sends(s, &acquire)
}

// refused has another hold the key.
func refused(s *Stream, acquire *batch) {
	acquire.cmds[0].Reply = protocol.Reply{Status: protocol.StatusHeld, Holder: "another"}
	s.settle(acquire)
}

// TestPatienceWhileConnecting: the first connection may take long, as nobody knows how far away the master is. A later one takes a few
// of the round trips that were seen: nobody waits longer for a master that hangs while it is greeted.
func TestPatienceWhileConnecting(t *testing.T) {
	s := unconnected()
	if got, want := s.Patience(), s.ConnectTime(); got < want {
		t.Errorf("%v for the first connection, want at least %v", got, want)
	}
	s.latency.observe(time.Millisecond, time.Now())
	if got, want := s.Patience(), s.Timeout()+protocol.ConnectTrips*3*time.Millisecond; got > want {
		t.Errorf("%v for another connection, want at most %v", got, want)
	}
}

// TestLostReleases: a waiting call releases what an attempt has won and keeps its ticket; then it gives up and
// withdraws the ticket. If the connection breaks under both releases, both are sent again.
func TestLostReleases(t *testing.T) {
	s := unconnected()
	a, acquire := queues(s)
	rests, leaves := a.Release(a.Ticket, true, false, nil), a.Release(a.Ticket, false, false, nil)
	b := sends(s, &rests, &leaves) // other masters have answered
	if len(b.cmds) != 2 {
		t.Fatalf("%d releases were sent, want 2", len(b.cmds))
	}
	refused(s, acquire)
	for _, cmd := range b.cmds {
		cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
	}
	s.settle(b)
	owed := s.owed
	s.owed = nil
	b = sends(s, owed...)
	if last := b.cmds[len(b.cmds)-1]; last.Ticket != a.Ticket || last.Queue {
		t.Errorf("the last command is %+v, want one that takes the ticket off", last)
	}
}

// TestLostReleaseOfALock: a release whose reply is lost is sent again, also of a lock that had no ticket.
func TestLostReleaseOfALock(t *testing.T) {
	s := unconnected()
	held := NewAcquire(protocol.Command{Op: protocol.OpAcquire, Key: "key", Token: "token", TTL: time.Minute}, 0, new(atomic.Bool), new(TicketState), nil)
	b := sends(s, &held)
	b.cmds[0].Reply = protocol.Reply{Status: protocol.StatusGranted, Fence: 1}
	s.settle(b)
	release := held.Release(0, false, false, nil)
	b = sends(s, &release)
	b.cmds[0].Reply = protocol.Reply{Err: protocol.ErrBroken}
	if s.settle(b); len(s.owed) != 1 {
		t.Errorf("%d releases are owed, want 1", len(s.owed))
	}
}

// TestPlainReleaseTakesNoTicket: a master that refuses late has a ticket, and is sent the plain release of a lock that the others
// gave to one who was alone. That finds nothing, and takes nothing away: the script must follow.
func TestPlainReleaseTakesNoTicket(t *testing.T) {
	s := unconnected()
	a, acquire := queues(s)
	release := a.Release(a.Ticket, false, false, nil)
	release.Alone = true
	plain := sends(s, &release)
	refused(s, acquire)
	plain.cmds[0].Reply = protocol.Reply{Status: protocol.StatusExpired}
	s.settle(plain)
	if b := sends(s); b == nil || len(b.cmds) != 1 || b.cmds[0].Alone || b.cmds[0].Ticket != a.Ticket {
		t.Errorf("what follows is %+v, want the script", b)
	}
}

// TestLateRelease: a call has a slot from a master that then can't be reached, and too few others give it one. So what rests in that
// master's line waits to be sent, while a further attempt doesn't reach the master, and the call gives up.
func TestLateRelease(t *testing.T) {
	s := unconnected()
	ticket := new(TicketState)
	attempt := func() *Command {
		a := NewAcquire(protocol.Command{Op: protocol.OpAcquire, Key: "key", Token: "token", TTL: time.Minute, Ticket: 7, Queue: true, Slots: 2}, 0, new(atomic.Bool), ticket, nil)
		return &a
	}
	first, second := attempt(), attempt()
	b := sends(s, first)
	b.cmds[0].Reply = protocol.Reply{Status: protocol.StatusGranted, Fence: 1}
	s.settle(b)
	rests, leaves := first.Release(first.Ticket, true, false, nil), second.Release(second.Ticket, false, false, nil)
	s.Enqueue(&rests)
	s.Enqueue(&leaves)
	if b := sends(s); b == nil || b.cmds[len(b.cmds)-1].Queue {
		t.Error("the call keeps its place in the line for ever")
	}
}

// slowConn is a connection on which a send blocks until the test lets it go on.
type slowConn struct {
	protocol.Conn
	entered, goOn chan struct{}
	sends         atomic.Int32
	t             *testing.T
}

func (c *slowConn) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: protocol.MaxWindow}
}

func (c *slowConn) Send([]*protocol.Command) (bool, error) {
	if c.sends.Add(1) > 1 {
		c.t.Error("two send on one connection at once")
	}
	c.entered <- struct{}{}
	<-c.goOn
	c.sends.Add(-1)
	return false, nil
}

type receiverFunc func(*Command)

func (f receiverFunc) Receive(c *Command) { f(c) }

// TestOneSendsAtATime: a goroutine that finds nothing to send doesn't end the turn of the one that is sending.
func TestOneSendsAtATime(t *testing.T) {
	s := unconnected()
	c := &slowConn{t: t, entered: make(chan struct{}, 2), goOn: make(chan struct{})}
	s.conn, s.can = c, protocol.ConnCapabilities{Window: protocol.MaxWindow, Prompt: true}
	acquire := func(to Receiver) *Command {
		return &Command{Command: protocol.Command{Op: protocol.OpAcquire, Key: "key", Token: "token"}, Abandoned: new(atomic.Bool), To: to}
	}
	var sender sync.WaitGroup
	givenUp := acquire(receiverFunc(func(*Command) {
		sender.Go(func() { s.Push(acquire(nil)) })
		<-c.entered
	}))
	givenUp.Abandoned.Store(true)
	s.Push(givenUp)
	s.Push(acquire(nil))
	looked := make(chan struct{})
	sender.Go(func() {
		defer close(looked)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flushAll(c)
	})
	select {
	case <-looked:
	case <-c.entered:
	}
	close(c.goOn)
	sender.Wait()
}

// earlyConn is a connection to a server that answers what it hasn't been sent yet.
type earlyConn struct {
	protocol.Conn
	landed func()
	sent   []protocol.Op
}

func (c *earlyConn) Send(cmds []*protocol.Command) (bool, error) {
	c.landed()
	for _, cmd := range cmds {
		c.sent = append(c.sent, cmd.Op)
	}
	return false, nil
}

// TestReplyBeforeSend: a reply to a batch that is still being written leaves the batch alone.
func TestReplyBeforeSend(t *testing.T) {
	s := unconnected()
	c := &earlyConn{landed: func() { s.landed(nil) }}
	s.conn, s.can = c, protocol.ConnCapabilities{Window: protocol.MaxWindow, Prompt: true}
	for range 3 {
		s.Push(&Command{Command: protocol.Command{Op: protocol.OpPing}})
	}
	if !slices.Equal(c.sent, []protocol.Op{protocol.OpPing, protocol.OpPing, protocol.OpPing}) {
		t.Errorf("%v were sent, want 3 pings", c.sent)
	}
	if s.spare == nil || s.spare.commands == nil {
		t.Error("the batch isn't kept for the next send")
	}
}

// TestOthersOvertakeRenewals: a command is sent at once, however many renewals wait, of which each batch takes some. The renewal of a lock
// that is released meanwhile is never sent: it might take the key anew.
func TestOthersOvertakeRenewals(t *testing.T) {
	s := unconnected()
	const locks = 10 * renewalsAtOnce
	of := func(token string) Command {
		return NewAcquire(protocol.Command{Op: protocol.OpAcquire, Key: token, Token: token, TTL: time.Minute}, 0, new(atomic.Bool), new(TicketState), nil)
	}
	held := of("held")
	granted := sends(s, &held)
	granted.cmds[0].Reply = protocol.Reply{Status: protocol.StatusGranted, Fence: 1}
	s.settle(granted)
	for range locks {
		other := of("other")
		for _, c := range []*Command{&other, &held} {
			renewal := c.Extension(1, time.Time{}, receiverFunc(func(*Command) {}))
			renewal.Fast = true
			s.Enqueue(renewal)
		}
	}
	held.Abandoned.Store(true)
	acquire, release, won := of("fresh"), held.Release(0, false, false, nil), of("won")
	raising := won.Extension(2, time.Time{}, receiverFunc(func(*Command) {})) // its caller waits
	s.Enqueue(raising)
	renewed := 0
	for b := sends(s, &acquire, &release); len(b.cmds) > 0; b = sends(s) {
		if renewed == 0 && (len(b.cmds) > 3+renewalsAtOnce || !slices.Equal(b.commands[:3], []*Command{raising, &acquire, &release})) {
			t.Fatalf("of a batch of %d, others are first", len(b.cmds))
		}
		renewed += len(b.cmds)
	}
	if renewed != 3+locks {
		t.Errorf("%d commands, want the three, and %d renewals", renewed, locks)
	}
}

// TestRenewalsAreAnswered: renewals that wait are answered when the master can't be reached, or the stream has ended.
func TestRenewalsAreAnswered(t *testing.T) {
	for name, end := range map[string]func(s *Stream){
		"unreachable": func(s *Stream) { s.answer(protocol.Unsent(protocol.ErrUnreachable)) },
		"closed": func(s *Stream) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			s.run(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := unconnected()
			var failed error
			renewal := new(Command).Extension(1, time.Time{}, receiverFunc(func(c *Command) { failed = c.Reply.Err }))
			renewal.Fast = true
			s.Enqueue(renewal)
			if end(s); failed == nil {
				t.Error("a renewal is never answered")
			}
		})
	}
}

// TestOwnCallsAreRepeated: the stream's own commands, which nobody can give up, are sent again to a server that has forgotten
// their script.
func TestOwnCallsAreRepeated(t *testing.T) {
	s := unconnected()
	for op := range protocol.Ops {
		if op == protocol.OpAcquire || op == protocol.OpExtend || op == protocol.OpRelease {
			continue
		}
		c := &Command{Command: protocol.Command{Op: op, Reply: protocol.Reply{Err: protocol.Mark(errors.New("NOSCRIPT"), protocol.ErrNotExecuted)}}}
		s.settle(&batch{commands: []*Command{c}, cmds: []*protocol.Command{&c.Command}})
		if len(s.queue) != 1 || s.queue[0] != c {
			t.Errorf("operation %d isn't sent again", op)
		}
		s.queue = nil
	}
}

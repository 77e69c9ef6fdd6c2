package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

var errDown = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)

// route is a process's master: an address with a network of its own, which it decides of.
type route struct {
	*simnet.Address
	address     int // of the world's
	process     *process
	random      *rand.Rand
	far         time.Duration
	loss        int     // per cent of the batches that break the connection
	there, back windows // in which nothing passes
	drops       windows // in which all that is sent is lost, and the connection with it
	seat        atomic.Pointer[admission.Seat]
	acquiring   atomic.Int64 // batches under way that have an acquire, where a mutant asks for that
}

// route adds one to a process.
func (p *process) route(address int, source rand.Source, far time.Duration, loss int) *route {
	w := p.world
	l := &route{
		Address: simnet.NewAddress(fmt.Sprint("sim://", address), w.servers[address].Server), address: address, process: p,
		random: rand.New(&lockedSource{source: source}), far: far, loss: loss,
	}
	l.SetTraffic(l)
	w.routes[l.Address] = l
	p.routes = append(p.routes, l)
	return l
}

// live has all happen to the process and its routes in its time.
func (p *process) live() {
	w := p.world
	for _, l := range p.routes {
		if p.blocks.what != "connection" {
			continue
		}
		if !w.mutant.prompt {
			l.Tunnel()
		}
		if l.address == 0 {
			w.at(p.blocks.from, func() { l.Set(simnet.Weather{Stuck: true}) })
		}
	}
	if p.dies < time.Hour {
		w.at(p.dies, p.die)
	}
}

// die ends all connections, and there are no more. What is under way arrives on some.
func (p *process) die() {
	for _, l := range p.routes {
		l.Set(simnet.Weather{Away: true})
		if p.halfOpen {
			l.ForgetSubscriptions()
		}
		if chance(l.random, 50) {
			l.Cut()
		}
		l.LoseClients()
	}
}

// There is when something arrives that is sent now.
func (l *route) There() time.Time {
	w := l.process.world
	return w.start.Add(arrival(arrival(w.now(), l.process.pauses)+l.delay(), l.there))
}

// Back is when a reply that is sent now comes.
func (l *route) Back() time.Time {
	w := l.process.world
	return w.start.Add(arrival(w.now()+l.delay(), l.back, l.process.pauses))
}

// Fate is what becomes of a batch.
func (l *route) Fate(cmds []protocol.Command) (f simnet.Fate) {
	w, r := l.process.world, l.random
	for i := range cmds {
		cmd := &cmds[i]
		switch cmd.Op {
		case protocol.OpAcquire:
			cmd.Fence += l.process.skew.Microseconds() // as a client whose clock is wrong
		case protocol.OpExtend:
			w.renewing(cmd.Token)
		}
		if w.mutant.send != nil {
			w.mutant.send(l, cmd)
		}
	}
	now := arrival(w.now(), l.process.pauses)
	if l.drops.end(now) != now {
		return simnet.Fate{Lost: true}
	}
	if now < w.faults.from || w.calm.Load() || !chance(r, l.loss) {
		return f
	}
	switch late := upTo(r, w.late); r.IntN(5) {
	case 0:
		f.Lost = true
	case 1:
		f.Unanswered = true
	case 2:
		f.Partly, f.Executed = true, r.IntN(len(cmds)+1)
		f.Answered = f.Executed * r.IntN(2)
	case 3:
		if now < w.faults.to {
			f.Late = late
		}
	case 4:
		if now < w.faults.to {
			f.Again = late
		}
	}
	return f
}

// Connect makes a connection, and lets the Locker judge the server.
func (l *route) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	m := &l.process.world.mutant
	if seat, locks := admits.(*admission.Seat); locks {
		l.seat.Store(seat)
		defer l.acquiring.Store(0)
	}
	c, err := l.Address.Connect(ctx, greeted{admits, l})
	switch {
	case err != nil && m.refuses && (ctx.Err() != nil || errors.Is(err, protocol.ErrBroken)):
		return nil, protocol.Unreachable(errDown)
	case err != nil:
		return nil, err
	case l.process.dead():
		c.Close()
		return nil, protocol.Unreachable(protocol.ErrBroken)
	case m.name == "":
		return c, nil
	}
	return &mutantConn{Conn: c, route: l}, nil
}

// greeted is an Admission that a mutant deceives.
type greeted struct {
	protocol.Admission
	route *route
}

func (g greeted) Admit(s protocol.Server) error {
	if change := g.route.process.world.mutant.greet; change != nil {
		change(g.route, &s)
	}
	return g.Admission.Admit(s)
}

// Listen hears what the server publishes until the connection breaks. Some messages come late, twice or never.
func (l *route) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	w := l.process.world
	ctx, end := context.WithCancel(ctx)
	defer end()
	if l.loss > 0 && w.now() < w.faults.to { // it breaks at some time
		timer := time.AfterFunc(upTo(l.random, w.ttl), end)
		defer timer.Stop()
	}
	return l.Address.Listen(ctx, process, patience, ready, func(wake protocol.WakeUp) {
		switch hear := w.mutant.hear; {
		case hear != nil && !hear(l, wake):
		case w.now() >= w.faults.to || !chance(l.random, l.loss):
			message(wake)
		default:
			for range l.random.IntN(3) {
				time.AfterFunc(upTo(l.random, w.late), func() { message(wake) })
			}
		}
	})
}

// delay is how long a message travels: mostly as long as the way is, at times much longer.
func (l *route) delay() time.Duration {
	r := l.random
	if w := l.process.world; chance(r, 5) && w.now() < w.faults.to && !w.quiet {
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

// mutantConn is a connection on which a mutant changes the replies, those too that will not come.
type mutantConn struct {
	protocol.Conn
	route  *route
	due    atomic.Int64 // batches that have no reply yet
	failed bool         // no reply will come
}

// acquires reports whether a batch has an acquire.
func acquires(cmds []*protocol.Command) bool {
	return slices.ContainsFunc(cmds, func(cmd *protocol.Command) bool { return cmd.Op == protocol.OpAcquire })
}

func (c *mutantConn) Send(cmds []*protocol.Command) (answered bool, err error) {
	c.due.Add(1)
	if answered, err = c.Conn.Send(cmds); err != nil {
		c.due.Add(-1)
	} else if acquires(cmds) {
		c.route.acquiring.Add(1)
	}
	return answered, err
}

func (c *mutantConn) Wait() error {
	if !c.failed && c.Conn.Wait() == nil {
		return nil
	}
	if c.failed = true; c.route.process.world.mutant.answer == nil || c.due.Load() == 0 {
		return protocol.ErrBroken
	}
	return nil
}

func (c *mutantConn) Receive(cmds []*protocol.Command) (err error) {
	if c.due.Add(-1); !c.failed {
		err = c.Conn.Receive(cmds)
	}
	if acquires(cmds) {
		c.route.acquiring.Add(-1)
	}
	for _, cmd := range cmds {
		if c.failed {
			cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
		}
		if change := c.route.process.world.mutant.answer; change != nil {
			change(c.route, cmd)
		}
	}
	return err
}

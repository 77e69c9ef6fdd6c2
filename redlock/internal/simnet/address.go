package simnet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// Weather is the state of the network at an address, for what is sent from now on.
type Weather struct {
	Delay             time.Duration // in each direction
	Requests, Replies bool          // whether these are kept back until the weather changes
	Stuck             bool          // whoever sends is blocked: see Tunnel
	Away              bool          // whether no connection can be made; those that exist must be Cut
}

// Address is an address of a server, over a network that can be made bad. It implements protocol.Master: all Lockers that have it know the
// server by its name. Its methods may be called at any time.
type Address struct {
	name                     string
	tunnel, denied           atomic.Bool
	garbled                  atomic.Bool
	requests, replies, stuck valve

	mu      sync.Mutex
	server  *Server
	weather Weather
	traffic Traffic
	conns   map[*conn]bool
	helds   []*valve
}

// NewAddress returns one more address of a server: one of the same name for a Locker with a network of its own, or another's name. Without
// a server, nobody is there.
func NewAddress(name string, server *Server) *Address {
	a := &Address{name: name, conns: make(map[*conn]bool)}
	a.lead(server)
	return a
}

func (a *Address) lead(s *Server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server = s; s != nil {
		s.addresses.Store(a, true)
	}
}

// Tunnel makes new connections able to block their sender, as a user's dialer may.
func (a *Address) Tunnel() { a.tunnel.Store(true) }

// Set changes the weather.
func (a *Address) Set(w Weather) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.weather = w
	a.requests.set(!w.Requests)
	a.replies.set(!w.Replies)
	a.stuck.set(!w.Stuck)
}

// Traffic decides, in place of the weather's delay, when what is sent now comes and what becomes of it.
type Traffic interface {
	There() time.Time         // at the server
	Back() time.Time          // at the client
	Fate(cmds []Command) Fate // of a batch; it may change the commands
}

// Fate is what becomes of a batch. The zero value is that it is executed and answered.
type Fate struct {
	Lost       bool          // the connection breaks before it, and what is sent behind it is lost too
	Late       time.Duration // the connection breaks, and it is executed so much later
	Again      time.Duration // it is executed twice, and the second time so much later
	Unanswered bool          // the connection breaks when it has been executed
	Partly     bool          // the connection breaks within it: so many of its commands are executed, and so many answered
	Executed   int
	Answered   int
}

// SetTraffic lets t decide about everything that is sent from now on.
func (a *Address) SetTraffic(t Traffic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.traffic = t
}

// fate returns the fate of a batch that is sent now.
func (a *Address) fate(cmds []Command) (f Fate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.traffic != nil {
		f = a.traffic.Fate(cmds)
	}
	return f
}

// open delivers everything that is kept back.
func (a *Address) open() {
	a.Set(Weather{})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, held := range a.helds {
		held.set(true)
	}
}

// Garble makes all replies malformed from now on, except the greeting; or it ends that.
func (a *Address) Garble(garbled bool) { a.garbled.Store(garbled) }

// Deny makes who comes over the address a user without channels, as a new one of Redis is: it can neither subscribe nor publish. Or it ends
// that.
func (a *Address) Deny(denied bool) { a.denied.Store(denied) }

// Cut breaks all connections. What is under way is lost.
func (a *Address) Cut() {
	a.each(func(c *conn) { c.lost.Store(true); c.Close() })
}

// LoseClients breaks all connections on the clients' side. What they have sent arrives.
func (a *Address) LoseClients() { a.each((*conn).Close) }

// Forget drops what is sent on the present connections, in both directions and without a word, as a firewall does that has forgotten
// them. New connections work.
func (a *Address) Forget() { a.each(func(c *conn) { c.forgotten.Store(true) }) }

// ForgetSubscriptions is Forget for the connections on which a client has subscribed to a channel.
func (a *Address) ForgetSubscriptions() {
	a.each(func(c *conn) { c.forgotten.Store(c.forgotten.Load() || c.subscribed.Load()) })
}

// Hold keeps back what is sent from now on over the present connections, until deliver is called. It then arrives even if the connection
// has ended meanwhile. New connections work.
func (a *Address) Hold() (deliver func()) {
	held := new(valve)
	held.set(false)
	a.each(func(c *conn) { c.held.Store(held) })
	a.mu.Lock()
	a.helds = append(a.helds, held)
	a.mu.Unlock()
	return func() { held.set(true) }
}

// Holds reports whether Hold has kept back something on a connection that is still open.
func (a *Address) Holds() (holds bool) {
	a.each(func(c *conn) { holds = holds || c.holds.Load() })
	return holds
}

// MoveTo breaks all connections and puts another server behind the address, or none.
func (a *Address) MoveTo(s *Server) {
	a.lead(s)
	a.Cut()
}

// each goes through the connections that are open.
func (a *Address) each(f func(*conn)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		if c.ended() {
			delete(a.conns, c)
		} else {
			f(c)
		}
	}
}

// way is the least that anything is under way. Where time stood still, locks had one fence, and calls waited for masters that agree.
const way = 50 * time.Microsecond

// arrival is when something that is sent now comes to the server, or back from it.
func (a *Address) arrival(back bool) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.traffic == nil:
		return time.Now().Add(a.weather.Delay + way)
	case back:
		return a.traffic.Back()
	}
	return a.traffic.There()
}

// String is its name.
func (a *Address) String() string { return a.name }

// Close does nothing.
func (a *Address) Close() error { return nil }

// Capabilities are those of a Redis server.
func (a *Address) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true, Several: true}
}

var errNobody = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)

// dial makes a connection, in one round trip: TCP's handshake, which a server that hangs takes part in.
func (a *Address) dial(ctx context.Context) (*conn, error) {
	a.mu.Lock()
	s, away := a.server, a.weather.Away
	a.mu.Unlock()
	if away || s == nil {
		return nil, errNobody
	}
	c := newConn(a)
	if !a.there(ctx) {
		return nil, ctx.Err()
	}
	if !s.accept(c) {
		return nil, errNobody
	}
	a.mu.Lock()
	moved := a.server != s
	if !moved {
		a.conns[c] = true
	}
	a.mu.Unlock()
	if moved {
		c.Close()
		return nil, errNobody
	}
	if !a.back(ctx) {
		c.Close()
		return nil, ctx.Err()
	}
	return c, nil
}

// there is the way to the server, and back that from it. They are false if the context ends before.
func (a *Address) there(ctx context.Context) bool {
	return sleepUntil(a.arrival(false), ctx.Done(), nil) && a.requests.pass(ctx.Done(), nil)
}

func (a *Address) back(ctx context.Context) bool {
	return sleepUntil(a.arrival(true), ctx.Done(), nil) && a.replies.pass(ctx.Done(), nil)
}

// greet makes a connection, and asks the server in a second round trip what it is. One that made it in one round trip would be as fast as a
// reply on another connection.
func (a *Address) greet(ctx context.Context) (*conn, protocol.Server, error) {
	var told protocol.Server
	c, err := a.dial(ctx)
	if err != nil {
		return nil, told, err
	}
	sent := time.Now()
	ok := a.there(ctx) && c.server.hangs.pass(ctx.Done(), nil)
	if ok {
		if told, ok = c.server.greeting(c); !ok {
			c.Close()
			return nil, told, protocol.ErrBroken
		}
	}
	ok = ok && a.back(ctx)
	if !ok || c.ended() {
		c.Close()
		if err = ctx.Err(); err == nil {
			err = protocol.ErrBroken
		}
		return nil, told, err
	}
	told.Sent, told.Received = sent, time.Now()
	return c, told, nil
}

// Connect makes a connection, and has the Locker judge the server.
func (a *Address) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	c, told, err := a.greet(ctx)
	if err != nil {
		return nil, protocol.Unreachable(err)
	}
	if admits != nil {
		if err := admits.Admit(told); err != nil {
			c.Close()
			return nil, protocol.Unreachable(err)
		}
	}
	c.sent, c.replied = make(chan *batch, protocol.MaxWindow), make(chan *batch, protocol.MaxWindow)
	go c.serve()
	return c, nil
}

// quiet is for how long a subscription may be silent before the server is asked for a sign of life.
const quiet = 2 * time.Second

var errSilent = errors.New("the subscription is silent")

// Listen hears what the server publishes for a process.
func (a *Address) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	connecting, cancel := context.WithTimeout(ctx, protocol.ConnectTrips*patience)
	defer cancel()
	c, _, err := a.greet(connecting)
	if err == nil && a.denied.Load() {
		c.Close()
		err = redis.ErrorOf("NOPERM No permissions to access a channel")
	}
	if err == nil {
		defer c.Close()
		err = c.listen(ctx, process, patience, ready, message)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

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

// Weather is the state of the network at an address. It applies to everything that is sent after it was set.
type Weather struct {
	Delay             time.Duration // in each direction
	Requests, Replies bool          // requests, or replies, are kept back until the weather changes
	Stuck             bool          // senders of a batch are blocked: see Tunnel
	Away              bool          // no connection can be made; Cut breaks the existing ones
}

// Address is an address of a server, over a network with faults. It implements protocol.Master: all Lockers that use it know the server by its name.
// Its methods may be called at any time.
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

// NewAddress returns one more address of a server. A Locker with a separate network needs a separate address with the same name. If server is nil,
// nothing listens at the address.
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

// Tunnel makes new connections report that they may block their sender, like connections of a user's dialer.
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

// Traffic replaces the weather's delay. It decides when each batch arrives, and whether it is lost, late or answered.
type Traffic interface {
	There() time.Time         // when a batch sent now arrives at the server
	Back() time.Time          // when a reply sent now arrives at the client
	Fate(cmds []Command) Fate // decides about a batch; it may change the commands
}

// Fate decides how a batch is executed and answered. With the zero value it is executed and answered once.
type Fate struct {
	Lost       bool          // the connection breaks before the batch arrives, and later batches are lost, too
	Late       time.Duration // the connection breaks, and the batch is executed after this time
	Again      time.Duration // the batch is executed a second time, after this time
	Unanswered bool          // the connection breaks after the batch was executed
	Partly     bool          // the connection breaks in the middle of the batch: the first Executed commands are executed, and the first Answered of them answered
	Executed   int
	Answered   int
}

// SetTraffic makes t decide about all batches that are sent from now on.
func (a *Address) SetTraffic(t Traffic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.traffic = t
}

func (a *Address) fate(cmds []Command) (f Fate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.traffic != nil {
		f = a.traffic.Fate(cmds)
	}
	return f
}

// open delivers all batches and replies that are kept back.
func (a *Address) open() {
	a.Set(Weather{})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, held := range a.helds {
		held.set(true)
	}
}

// Garble makes all replies malformed from now on, except for the greeting; false ends that.
func (a *Address) Garble(garbled bool) { a.garbled.Store(garbled) }

// Deny gives clients at this address a user without rights to channels, like a new user of Redis. The user can neither subscribe nor publish. false
// ends that.
func (a *Address) Deny(denied bool) { a.denied.Store(denied) }

// Cut breaks all connections. Batches and replies that are under way are lost.
func (a *Address) Cut() {
	a.each(func(c *conn) { c.lost.Store(true); c.Close() })
}

// LoseClients breaks all connections on the clients' side. All batches that the clients have sent still arrive.
func (a *Address) LoseClients() { a.each((*conn).Close) }

// Forget drops everything that is sent on the present connections, in both directions and without an error, like a firewall that has forgotten them.
// New connections work.
func (a *Address) Forget() { a.each(func(c *conn) { c.forgotten.Store(true) }) }

// ForgetSubscriptions is Forget for the connections on which a client has subscribed to a channel.
func (a *Address) ForgetSubscriptions() {
	a.each(func(c *conn) { c.forgotten.Store(c.forgotten.Load() || c.subscribed.Load()) })
}

// Hold keeps back everything that is sent from now on over the present connections. deliver delivers it, even over connections that have ended
// meanwhile. New connections work.
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

// each calls f for each open connection.
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

// way is the shortest time in which a batch or a reply arrives. If it took no time, successive locks would have the same fence.
const way = 50 * time.Microsecond

// arrival returns when a batch that is sent now arrives at the server or, if back is true, when a reply arrives at the client.
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

func (a *Address) String() string { return a.name }

func (a *Address) Close() error { return nil }

func (a *Address) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true, Several: true}
}

var errNobody = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)

// dial makes a connection, in one round trip: TCP's handshake, which works even if the server hangs.
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

// there waits for the time to the server, and back for the time from it. They return false if the context ends first.
func (a *Address) there(ctx context.Context) bool {
	return sleepUntil(a.arrival(false), ctx.Done(), nil) && a.requests.pass(ctx.Done(), nil)
}

func (a *Address) back(ctx context.Context) bool {
	return sleepUntil(a.arrival(true), ctx.Done(), nil) && a.replies.pass(ctx.Done(), nil)
}

// greet makes a connection and, in a second round trip, asks the server for its description. With a single round trip, a new connection would be as
// fast as a reply on an open one.
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

// quiet is how long a subscription may be silent before the server is asked for a sign of life.
const quiet = 2 * time.Second

var errSilent = errors.New("the subscription is silent")

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

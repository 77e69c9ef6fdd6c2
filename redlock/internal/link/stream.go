// Package link sends commands to masters: to each in order, over one connection, and results over another.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	maxQueue  = 4096                   // acquires that may be queued for one master
	maxBytes  = 1 << 20                // of results in one pipeline, but for the last
	closeTime = 10 * time.Second       // for a connection to end; one of a dialer may ignore that it is closed
	OwedGap   = 250 * time.Millisecond // between repetitions of a release that a master has missed
)

// Stream sends commands to one master, in order, in pipelines that concurrent callers share; several
// pipelines are sent before the first is answered. The order is what makes releases reliable: a release
// can't overtake its acquire, however late the master reads both. Nobody waits for a stream: callers push,
// and give up when their own timeout is over.
//
//	push ──► queue ──► send (the caller where nothing else is under way, else write) ──► flight ──► read (or a caller: see solo) ──► settle
type Stream struct {
	Settings
	master      protocol.Master
	latency     latency
	Clock       *admission.Clock
	seat        *admission.Seat
	subscribed  atomic.Bool                        // the master's wake-ups come
	denied      atomic.Bool                        // the master has denied the subscription
	unsubscribe atomic.Pointer[context.CancelFunc] // ends the subscription, and another is made; nil before the first
	work        chan struct{}                      // signals write that there may be something to send
	tend        chan struct{}                      // signals watch that something may be due
	cancel      func()                             // ends run at once
	ended       chan struct{}                      // closed when run returns
	Lane        *Lane                              // for results
	cluster     *cluster                           // the Redis Cluster whose front or node this is; nil for a single server

	mu              *sync.Mutex   // one for all streams of a cluster
	conn            protocol.Conn // nil while there is none
	prompt          bool          // a short send on conn doesn't block while nothing else is under way
	sending         bool          // a goroutine is sending on conn, without mu
	solo            solo          // a caller that is alone, and reads in place of read
	queue           commands      // to be sent
	acquires        int           // the number of acquires in queue
	owed            commands      // releases to be repeated, in the order in which they are due
	flight          []*batch      // sent and not answered, the oldest first
	spare           *batch        // an empty one, reused for its capacity
	answeredAt      time.Time     // when the master last answered
	usedAt          time.Time     // when it last answered or was probed
	tellsMemory     bool          // the server says how much memory it uses
	memoryAt        time.Time     // when it last did, or was asked
	resent          []string      // tokens of plain releases that had no effect and are sent again as scripts
	sendEnded       *sync.Cond    // signals that sending has ended on a connection that is no longer conn
	connectingSince time.Time     // since when a connection is being made, while there is none

	downUntil time.Time     // acquires are refused until then
	downErr   error         // why there is no connection, or why the server on it takes no locks
	pause     time.Duration // the last time for which the master was down; it doubles
	reported  error         // the failure that was logged last; nil while the master is usable
	illSince  time.Time     // since when it has been one, if it is
	closing   bool
}

// Settings are the settings of a stream.
type Settings struct {
	MaxTTL  time.Duration // the longest TTL of any lock of this process
	Timeout time.Duration // how long the master may take to answer, to begin with
	Prefix  string        // of all keys
	Solo    time.Duration // a caller that is alone waits for its reply itself for once or twice as long; 0 where it may have other masters to send to
	Logger  *slog.Logger
	Watcher Watcher
}

// Watcher is told when a master comes and goes. It must not block.
type Watcher interface {
	Up(name string)
	Down(State)
}

// NewStream makes the stream of a master and begins to connect. A server that is reached can be used only if
// the seat admits it.
func NewStream(m protocol.Master, o Settings, seat *admission.Seat) *Stream {
	s := makeStream(m, o, seat, new(sync.Mutex))
	if m, ok := m.(*clusterMaster); ok {
		s.cluster = newCluster(s, m)
		s.cluster.start()
	}
	s.start()
	return s
}

func makeStream(m protocol.Master, o Settings, seat *admission.Seat, mu *sync.Mutex) *Stream {
	s := &Stream{
		master:          m,
		Settings:        o,
		mu:              mu,
		latency:         latency{floor: o.Timeout},
		Clock:           seat.Clock,
		seat:            seat,
		work:            make(chan struct{}, 1),
		tend:            make(chan struct{}, 1),
		ended:           make(chan struct{}),
		solo:            solo{unread: make(chan struct{}, 1)},
		connectingSince: time.Now(),
	}
	s.sendEnded = sync.NewCond(s.mu)
	s.Lane = newLane(s)
	if m, ok := m.(protocol.Admitter); ok {
		seat.OnReached = s.greeted
		m.AdmitWith(seat)
	}
	return s
}

func (s *Stream) start() {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go s.run(ctx)
}

// greeted takes the round trip of a greeting as the first measure of the distance. A node that turns out to
// be a replica means that its Redis Cluster has changed.
func (s *Stream) greeted(reached protocol.Server) {
	if s.cluster != nil && reached.Replica() {
		Signal(s.cluster.asked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellsMemory = reached.Memory.Used > 0
	if reached.Received.After(reached.Sent) {
		s.latency.observe(reached.Received.Sub(reached.Sent))
	}
}

// connectTime returns how long making a connection may take: with TLS and the greeting some six round trips.
func (s *Stream) connectTime() time.Duration { return max(time.Second, 8*s.latency.ceiling()) }

// SendSoon has the queued commands sent soon, on this master or on all nodes of the cluster.
func (s *Stream) SendSoon() {
	Signal(s.work)
	for _, node := range s.nodes() {
		Signal(node.work)
	}
}

// Signal makes sure that the receiver of c, which has capacity 1, runs once more.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// String returns the name of the master.
func (s *Stream) String() string { return s.master.String() }

// timeout returns how long the master may take to answer now.
func (s *Stream) Timeout() time.Duration { return s.latency.timeout() }

// MaxTimeout returns how long it may take at most.
func (s *Stream) MaxTimeout() time.Duration { return s.latency.ceiling() }

// Advice returns what to do about a master that is too far away for the timeout, or nothing.
func (s *Stream) Advice() string { return s.latency.advice() }

// Subscribed reports whether the master's wake-ups come, and isDenied whether it has denied them.
func (s *Stream) Subscribed() bool { return s.subscribed.Load() }
func (s *Stream) Denied() bool     { return s.denied.Load() }

// Listen subscribes to the master's wake-ups until ctx ends, the subscription breaks, or the connection for commands turns out to be
// lost.
func (s *Stream) Listen(ctx context.Context, process string, ready func(), message func(protocol.WakeUp)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.unsubscribe.Store(&stop)
	err := s.master.Listen(ctx, process, func() {
		s.subscribed.Store(true)
		s.denied.Store(false)
		ready()
	}, message)
	s.subscribed.Store(false)
	s.denied.Store(errors.Is(err, protocol.ErrRefused))
	return err
}

// Idle reports whether there is a connection, and nothing under way on it.
func (s *Stream) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil && len(s.flight) == 0
}

// pending reports whether anything is still to be sent, repeated or answered. Callers hold mu.
func (s *Stream) pending() bool { return len(s.queue) > 0 || len(s.owed) > 0 || len(s.flight) > 0 }

// Close ends the stream or, for a Redis Cluster, those of all its nodes.
func (s *Stream) Close(grace time.Duration) error {
	if s.cluster != nil {
		return s.cluster.close(grace)
	}
	return s.end(grace)
}

// end lets the stream send what is queued or owed, for at most grace, then closes the master and waits for
// run to end.
func (s *Stream) end(grace time.Duration) error {
	s.mu.Lock()
	s.closing = true
	for _, c := range s.owed {
		c.due = time.Time{}
	}
	pending := s.pending()
	s.mu.Unlock()
	if !pending {
		s.cancel()
	}
	Signal(s.tend)
	s.Lane.end()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
	}
	s.cancel()
	err := s.master.Close()
	timer.Reset(max(grace, closeTime))
	select {
	case <-s.ended:
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("redlock: a connection to %s has not ended within %v, although it was closed", s.master, closeTime))
	}
	return err
}

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

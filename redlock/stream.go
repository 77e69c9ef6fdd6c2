package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	maxQueue  = 4096                   // acquires that may be queued for one master
	maxBatch  = 256                    // commands in one pipeline
	maxBytes  = 1 << 20                // of results in one pipeline, but for the last
	closeTime = 10 * time.Second       // for a connection to end; one of a dialer may ignore that it is closed
	owedGap   = 250 * time.Millisecond // between repetitions of a release that a master has missed
)

// stream sends commands to one master, in order, in pipelines that concurrent callers share; several
// pipelines are sent before the first is answered. The order is what makes releases reliable: a release
// can't overtake its acquire, however late the master reads both. Nobody waits for a stream: callers push,
// and give up when their own timeout is over.
//
//	push ──► queue ──► send (the caller where nothing else is under way, else write) ──► flight ──► read ──► settle
type stream struct {
	options
	master      protocol.Master
	latency     latency
	clock       *admission.Clock
	seat        *admission.Seat
	subscribed  atomic.Bool                        // this Locker is subscribed to the master's wake-ups
	denied      atomic.Bool                        // the master has denied the subscription
	unsubscribe atomic.Pointer[context.CancelFunc] // ends the subscription, and another is made; nil before the first
	work        chan struct{}                      // signals write that there may be something to send
	tend        chan struct{}                      // signals watch that something may be due
	cancel      func()                             // ends run at once
	ended       chan struct{}                      // closed when run returns
	lane        *lane                              // for results
	cluster     *cluster                           // the Redis Cluster whose front or node this is; nil for a single server

	mu              *sync.Mutex   // one for all streams of a cluster
	conn            protocol.Conn // nil while there is none
	prompt          bool          // a short send on conn doesn't block while nothing else is under way
	sending         bool          // a goroutine is sending on conn, without mu
	queue           calls         // to be sent
	acquires        int           // the number of acquires in queue
	owed            calls         // releases to be repeated, in the order in which they are due
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
	closing   bool
}

// batch is the commands of one pipeline.
type batch struct {
	calls  []*call
	cmds   []*protocol.Command
	sentAt time.Time
	users  int // the goroutine that sends it, and the one that settles it: an answer may come before the send has returned
}

// newStream makes the stream of a master and begins to connect. A server that is reached can be used only if
// the seat admits it.
func newStream(m protocol.Master, o options, seat *admission.Seat) *stream {
	s := makeStream(m, o, seat, new(sync.Mutex))
	if m, ok := m.(*clusterMaster); ok {
		s.cluster = newCluster(s, m)
		s.cluster.start()
	}
	s.start()
	return s
}

func makeStream(m protocol.Master, o options, seat *admission.Seat, mu *sync.Mutex) *stream {
	s := &stream{
		master:          m,
		options:         o,
		mu:              mu,
		latency:         latency{floor: o.timeout},
		clock:           seat.Clock,
		seat:            seat,
		work:            make(chan struct{}, 1),
		tend:            make(chan struct{}, 1),
		ended:           make(chan struct{}),
		connectingSince: time.Now(),
	}
	s.sendEnded = sync.NewCond(s.mu)
	s.lane = newLane(s)
	if m, ok := m.(protocol.Admitter); ok {
		seat.OnReached = s.greeted
		m.AdmitWith(seat)
	}
	return s
}

func (s *stream) start() {
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go s.run(ctx)
}

// greeted takes the round trip of a greeting as the first measure of the distance. A node that turns out to
// be a replica means that its Redis Cluster has changed.
func (s *stream) greeted(reached protocol.Server) {
	if s.cluster != nil && reached.Replica() {
		signal(s.cluster.asked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellsMemory = reached.Memory.Used > 0
	if reached.Received.After(reached.Sent) {
		s.latency.observe(reached.Received.Sub(reached.Sent))
	}
}

// connectTime returns how long making a connection may take: with TLS and the greeting some six round trips.
func (s *stream) connectTime() time.Duration { return max(time.Second, 8*s.latency.ceiling()) }

// sendSoon has the queued commands sent soon, on this master or on all nodes of the cluster.
func (s *stream) sendSoon() {
	signal(s.work)
	for _, node := range s.nodes() {
		signal(node.work)
	}
}

// signal makes sure that the receiver of c, which has capacity 1, runs once more.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush sends one batch from the queue and, if it is answered at once, settles it. mu is held before and
// after, but not while it sends.
func (s *stream) flush() {
	b, dropped := s.take()
	c, sends := s.conn, len(b.calls) > 0
	if sends {
		s.sending = true
		s.flight = append(s.flight, b)
	} else {
		s.spare = b
	}
	s.mu.Unlock()
	for _, c := range dropped {
		c.deliver()
	}
	if sends {
		answered, err := c.Send(b.cmds)
		if err != nil {
			c.Close() // the goroutine in read notices, and ends the connection
		}
		if answered {
			s.landed(nil)
		}
	}
	s.mu.Lock()
	if sends { // otherwise sending may by now belong to another goroutine
		s.sending = false
		s.finished(b)
		if s.conn != c {
			s.sendEnded.Broadcast()
		}
	}
	if len(s.queue) > 0 {
		s.sendSoon()
	} else if s.closing && !s.pending() { // all that was left has been dropped
		signal(s.tend)
	}
}

// take moves the head of the queue into a batch, leaving out and returning the calls that need not be sent
// any more. Callers hold mu.
func (s *stream) take() (b *batch, dropped []*call) {
	if b = s.spare; b == nil {
		b = &batch{}
	}
	s.spare = nil
	b.sentAt, b.users = time.Now(), 2
	n, bytes := 0, 0
	for n < min(len(s.queue), maxBatch) && bytes < maxBytes {
		c := s.queue[n]
		n++
		if c.Result != nil {
			bytes += len(c.Result.Data)
		}
		if c.Op == protocol.OpAcquire {
			s.acquires--
		}
		if c.unneeded() {
			if c.Op != protocol.OpRelease {
				c.Reply.Err = errAbandoned
			}
			dropped = append(dropped, c)
			if c = c.takeFormer(); c == nil || c.unneeded() {
				continue
			}
		}
		c.sending(b.sentAt)
		b.calls = append(b.calls, c)
		b.cmds = append(b.cmds, &c.Command)
	}
	s.queue.drop(n)
	return b, dropped
}

// landed settles the oldest batch in flight: its replies have come or, if broken is set, never will.
func (s *stream) landed(broken error) {
	s.mu.Lock()
	b := s.flight[0]
	s.flight = s.flight[:copy(s.flight, s.flight[1:])]
	s.mu.Unlock()
	if broken != nil {
		for _, cmd := range b.cmds {
			cmd.Reply = protocol.Reply{Err: broken}
		}
	}
	s.settle(b)
	s.mu.Lock()
	s.finished(b)
	more, done := len(s.queue) > 0, s.closing && !s.pending()
	s.mu.Unlock()
	if more {
		s.sendSoon()
	}
	if done {
		signal(s.tend)
	}
}

// finished ends one use of a batch. After the last, the batch is kept for its capacity. Callers hold mu.
func (s *stream) finished(b *batch) {
	if b.users--; b.users == 0 {
		clear(b.calls)
		clear(b.cmds)
		b.calls, b.cmds = b.calls[:0], b.cmds[:0]
		s.spare = b
	}
}

// pending reports whether anything is still to be sent, repeated or answered. Callers hold mu.
func (s *stream) pending() bool { return len(s.queue) > 0 || len(s.owed) > 0 || len(s.flight) > 0 }

// close ends the stream or, for a Redis Cluster, those of all its nodes.
func (s *stream) close(grace time.Duration) error {
	if s.cluster != nil {
		return s.cluster.close(grace)
	}
	return s.end(grace)
}

// end lets the stream send what is queued or owed, for at most grace, then closes the master and waits for
// run to end.
func (s *stream) end(grace time.Duration) error {
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
	signal(s.tend)
	s.lane.end()
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

package link

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// cluster has a stream for each node of a Redis Cluster. To the Locker the whole cluster is one master: its
// stream, the front, takes the commands and queues each for the node that has the key, or keeps it while that
// node isn't known. So a node that hangs or is down affects its own keys only. All these streams share one
// mu, under which commands are passed between them.
//
// Redis Cluster replicates asynchronously: a replica that is promoted may lack its master's latest locks. So
// it grants no lock until all that its master may have granted have ended. It does renew those that it has.
type cluster struct {
	Settings
	master *clusterMaster
	front  *Stream

	asked   chan struct{} // signals that the nodes should be looked up again
	known   chan struct{} // closed when they were for the first time
	failed  chan error    // why they couldn't be
	ended   chan struct{} // closed when run returns
	cancel  func()
	running sync.WaitGroup // of streams that end, and lookups
	nodes   atomic.Pointer[[]*Stream]

	// The front's mu guards these.
	byAddr map[string]*Stream
	owners map[*Stream]bool // those that had slots at the last lookup
	slots  *[redis.Slots]slot
	epoch  int64
}

// slot is where the keys of one hash slot are.
type slot struct {
	node  *Stream       // nil before the first lookup; the front if no node has it
	guard time.Duration // no lock on its keys before this, since admission.ProcessStart
}

func newCluster(front *Stream, m *clusterMaster) *cluster {
	c := &cluster{
		Settings: front.Settings,
		master:   m,
		front:    front,
		asked:    make(chan struct{}, 1),
		known:    make(chan struct{}),
		failed:   make(chan error, 1),
		ended:    make(chan struct{}),
		byAddr:   make(map[string]*Stream),
		slots:    new([redis.Slots]slot),
	}
	c.nodes.Store(&[]*Stream{})
	m.route = c
	return c
}

// home returns the stream to which a command belongs. Callers hold mu.
func (s *Stream) home(c *Command) *Stream {
	if s.cluster == nil || c.Op == protocol.OpPing {
		return s
	}
	return s.cluster.at(c.Key)
}

// ForKey returns the stream for a key: s itself or, for a Redis Cluster, that of the node that has the key.
func (s *Stream) ForKey(key string) *Stream {
	if s.cluster == nil {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster.at(key)
}

// IsCluster reports whether the master is a Redis Cluster.
func (s *Stream) IsCluster() bool { return s.cluster != nil }

// nodes returns the streams of the nodes if s is the front of a Redis Cluster.
func (s *Stream) nodes() []*Stream {
	if s.cluster == nil || s.cluster.front != s {
		return nil
	}
	return *s.cluster.nodes.Load()
}

func (c *cluster) at(key string) *Stream {
	if node := c.slots[redis.HashSlot(key)].node; node != nil {
		return node
	}
	return c.front
}

// prepare adapts a command to the node that has its key, or returns why that must not be asked. Callers hold mu.
func (c *cluster) prepare(cmd *Command) error {
	guard := c.slots[redis.HashSlot(cmd.Key)].guard
	if guard == 0 || time.Since(admission.ProcessStart) >= guard {
		return nil
	}
	switch cmd.Op {
	case protocol.OpAcquire:
		return &admission.GuardError{Until: admission.ProcessStart.Add(guard), Why: errPromoted}
	case protocol.OpExtend: // renew what is there, but take no free key
		cmd.until, cmd.RefillUntil = time.Time{}, 0
	}
	return nil
}

// node returns the stream of the node at an address, making it if necessary. Callers hold mu.
func (c *cluster) node(addr string) *Stream {
	if s := c.byAddr[addr]; s != nil || c.front.closing {
		return s
	}
	m := c.master.Node(addr)
	s := makeStream(m, c.Settings, c.front.seat.AddNode(m), c.front.mu)
	s.cluster = c
	c.byAddr[addr] = s
	c.listNodes()
	s.start()
	return s
}

func (c *cluster) listNodes() {
	nodes := make([]*Stream, 0, len(c.byAddr))
	for _, s := range c.byAddr {
		nodes = append(nodes, s)
	}
	c.nodes.Store(&nodes)
}

// assign gives a slot to a node. If moved is set, the slot was resharded from one master to another, and the
// keys have moved with it. Otherwise the new node has them at best as a former replica, and grants nothing
// until all locks that the old one may have granted have ended. Callers hold mu.
func (c *cluster) assign(at *slot, to *Stream, moved bool) {
	if at.node == to {
		return
	}
	if at.node != nil && !moved {
		at.guard = time.Since(admission.ProcessStart) + c.front.seat.Covers() + admission.Drift(c.MaxTTL)
	}
	at.node = to
}

// apply takes over what a node says about the cluster, unless another node has said something newer.
func (c *cluster) apply(t redis.Topology) {
	c.front.mu.Lock()
	if c.front.closing || t.Epoch != 0 && t.Epoch < c.epoch {
		c.front.mu.Unlock()
		return
	}
	c.epoch = t.Epoch
	now := make(map[*Stream]bool, len(t.Owners))
	next := new([redis.Slots]*Stream)
	for addr, ranges := range t.Owners {
		s := c.node(addr)
		now[s] = true
		for _, r := range ranges {
			for n := r.First; n <= r.Last; n++ {
				next[n] = s
			}
		}
	}
	for n, to := range next {
		at := &c.slots[n]
		if to == nil {
			if to = c.front; at.node == nil {
				continue
			}
		}
		c.assign(at, to, now[at.node] && c.owners[to])
	}
	c.owners = now
	again := c.rehome(now)
	c.front.mu.Unlock()
	again.answer()
	select {
	case <-c.known:
	default:
		close(c.known)
	}
	c.front.SendSoon()
}

// rehome passes queued commands on to the nodes that have their keys now, and ends the streams of nodes that
// have none any more. Callers hold mu.
func (c *cluster) rehome(now map[*Stream]bool) (d declined) {
	for addr, s := range c.byAddr {
		queue, owed := s.queue, s.owed
		s.queue, s.owed, s.acquires = nil, nil, 0
		for _, cmd := range queue {
			if cmd.Op == protocol.OpPing || cmd.Op == protocol.OpMemory || c.at(cmd.Key) == s {
				s.queue = append(s.queue, cmd)
				if cmd.Op == protocol.OpAcquire {
					s.acquires++
				}
			} else {
				d.push(c.at(cmd.Key), cmd)
			}
		}
		for _, cmd := range owed {
			to := c.at(cmd.Key)
			to.owed = append(to.owed, cmd)
			Signal(to.tend)
		}
		if !now[s] {
			delete(c.byAddr, addr)
			c.retire(s)
		}
	}
	c.listNodes()
	return d
}

// retire ends the stream of a node that has left. What is in flight on it fails, and the releases of that are
// owed by the node that has the keys now. Callers hold mu.
func (c *cluster) retire(s *Stream) {
	s.closing = true
	s.seat.Drop()
	failing := s.reported
	c.running.Go(func() {
		s.cancel()
		s.Lane.end()
		<-s.ended
		_ = s.master.Close()
		if failing != nil {
			c.Logger.Info("node no longer has keys of its Redis Cluster", "master", s.master.String())
			c.Watcher.Up(s.master.String())
		}
	})
}

// Lead returns how far the master's clock is ahead of our monotonic one, and whether that is known. For a Redis
// Cluster it is the median of its nodes.
func (s *Stream) Lead() (lead time.Duration, known bool) {
	if s.cluster == nil {
		return s.Clock.Lead()
	}
	var leads []time.Duration
	for _, n := range s.nodes() {
		if lead, known := n.Clock.Lead(); known {
			leads = append(leads, lead)
		}
	}
	if len(leads) == 0 {
		return 0, false
	}
	slices.Sort(leads)
	return leads[len(leads)/2], true
}

// close ends the streams of the cluster.
func (c *cluster) close(grace time.Duration) error {
	c.cancel()
	<-c.ended
	c.front.mu.Lock()
	c.front.closing = true // no node is added from now on
	nodes := *c.nodes.Load()
	c.front.mu.Unlock()
	var streams sync.WaitGroup
	for _, s := range nodes {
		streams.Go(func() { _ = s.end(max(grace, 4*s.latency.timeout())) })
	}
	err := c.front.end(grace)
	streams.Wait()
	c.running.Wait()
	return err
}

// errPromoted is why a node must not grant locks on a slot that another node had before.
var errPromoted = protocol.Mark(errors.New("another node of the cluster has taken over the key, and may lack the latest locks on it"), admission.ErrRestarted)

func (c *cluster) start() {
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	go c.run(ctx)
}

var errNoTopology = errors.New("no node of the cluster tells which nodes there are")

// connect returns a connection for the front as soon as the nodes are known.
func (c *cluster) connect(ctx context.Context) (protocol.Conn, error) {
	select {
	case <-c.known:
		return newRouting(), nil
	case err := <-c.failed:
		return nil, protocol.Unreachable(err)
	case <-ctx.Done():
		return nil, protocol.Unreachable(errNoTopology)
	}
}

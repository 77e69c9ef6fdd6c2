package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// maxNodes bounds the nodes of a cluster, as its specification does: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/.
const maxNodes = 1000

// node returns the stream of the node at an address, making it if necessary, or nil if the cluster ends or has too many. Callers hold mu.
func (c *cluster) node(addr string) *Stream {
	if s := c.byAddr[addr]; s != nil || c.front.closing || len(c.byAddr) >= maxNodes {
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

const (
	askGap   = 100 * time.Millisecond // at least this long between two lookups of the nodes,
	askFail  = time.Second            // at most this long while one of them fails,
	askEvery = 5 * time.Second        // and at most this long otherwise
	askMany  = 3                      // nodes asked at once if none is known to answer; the first reply counts
)

// run keeps looking up the nodes for as long as the cluster's streams live.
func (c *cluster) run(ctx context.Context) {
	defer close(c.ended)
	for ctx.Err() == nil {
		t, err := c.ask(ctx)
		if err == nil {
			c.apply(t)
		} else {
			select { // replace an error that the front hasn't taken
			case <-c.failed:
			default:
			}
			c.failed <- err
		}
		pause := askEvery
		if err != nil || c.failing() {
			pause = askFail
		}
		if sleep(ctx, askGap, nil) {
			sleep(ctx, pause-askGap, c.asked)
		}
	}
}

// sleep waits for d or a signal, and reports false if the context has ended before.
func sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
		return false
	}
	return true
}

// ask asks some nodes at once, and then others, until one answers.
func (c *cluster) ask(ctx context.Context) (t redis.Topology, err error) {
	if t, known, err := c.master.Configured(ctx); known {
		return t, err
	}
	well, others := c.candidates()
	if len(well) > 0 { // usually one is enough; if it hangs, which may not be known yet, the others are asked
		if t, last := c.askSome(ctx, well[:1], 2*c.front.latency.timeout()); last == nil {
			return t, nil
		}
	}
	err = errNoTopology
	for some := range slices.Chunk(append(well, others...), askMany) {
		if t, last := c.askSome(ctx, some, c.front.connectTime()); last == nil {
			return t, nil
		} else if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errNoTopology, last)
		}
	}
	return t, err
}

// askSome asks these nodes at once, and returns the first reply that comes within the patience.
func (c *cluster) askSome(ctx context.Context, addrs []string, patience time.Duration) (redis.Topology, error) {
	type told struct {
		redis.Topology
		err error
	}
	replies := make(chan told, len(addrs))
	for _, addr := range addrs {
		c.running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			t, err := c.master.Ask(ctx, addr)
			replies <- told{t, err}
		})
	}
	var err error
	for range addrs {
		reply := <-replies
		if reply.err == nil {
			return reply.Topology, nil
		}
		err = reply.err
	}
	return redis.Topology{}, err
}

// candidates returns the addresses that can be asked, in random order: those of nodes that answer, and the others.
func (c *cluster) candidates() (well, others []string) {
	nodes := *c.nodes.Load()
	others = slices.Clone(c.master.Addrs())
	for _, i := range rand.Perm(len(nodes)) {
		if addr := nodes[i].master.(*redis.Master).Addr(); nodes[i].Fails() {
			others = append(others, addr)
		} else {
			well = append(well, addr)
		}
	}
	slices.Sort(others)
	others = slices.DeleteFunc(slices.Compact(others), func(addr string) bool { return slices.Contains(well, addr) })
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return well, others
}

// Fails reports whether the node doesn't answer.
func (s *Stream) Fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == nil || s.reported != nil || s.silence(time.Now()) > s.latency.timeout()
}

func (c *cluster) failing() bool {
	return slices.ContainsFunc(*c.nodes.Load(), (*Stream).Fails)
}

// anyNode returns a node that answers or, if none does, any node; nil if no node is known.
func (c *cluster) anyNode() *Stream {
	nodes := *c.nodes.Load()
	for _, i := range rand.Perm(len(nodes)) {
		if !nodes[i].Fails() {
			return nodes[i]
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return nodes[rand.IntN(len(nodes))]
}

// whileAlive waits until a node fails, or has left the cluster.
func (c *cluster) whileAlive(ctx context.Context, s *Stream) {
	for sleep(ctx, askFail, nil) {
		if !slices.Contains(*c.nodes.Load(), s) || s.Fails() {
			return
		}
	}
}

// newRouting returns the connection of the front. It executes nothing: its replies make the stream pass each
// command on to a node.
func newRouting() protocol.Conn {
	return protocol.NewImmediate(func(cmds []*protocol.Command) {
		for _, cmd := range cmds {
			if cmd.Op != protocol.OpPing {
				cmd.Reply = protocol.Reply{Err: errUnrouted}
			}
		}
	})
}

// clusterMaster is a whole Redis Cluster as one master. Its stream passes commands on to one for each node: see
// cluster.
type clusterMaster struct {
	*redis.Cluster
	route *cluster // of its stream; nil before there is one
}

// NewClusterMaster makes a master of a Redis Cluster.
func NewClusterMaster(c *redis.Cluster) protocol.Master { return &clusterMaster{Cluster: c} }

// Capabilities are those of the front: each node has a lane of its own.
func (m *clusterMaster) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true}
}

// Connect makes the connection of the front. Each node has a seat of its own.
func (m *clusterMaster) Connect(ctx context.Context, _ protocol.Admission) (protocol.Conn, error) {
	return m.route.connect(ctx)
}

// Close does nothing: the streams close the nodes.
func (m *clusterMaster) Close() error { return nil }

// Listen subscribes at one node, because the nodes pass messages on to each other. It ends, so that another node
// is chosen, when this one doesn't answer any more or has left the cluster.
func (m *clusterMaster) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	if m.route == nil {
		return protocol.Unsent(errors.New("only a Locker can subscribe to a Redis Cluster"))
	}
	at := m.route.anyNode()
	if at == nil {
		return protocol.Unsent(errNoTopology)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { // it may hang while it is being connected to
		m.route.whileAlive(ctx, at)
		cancel(fmt.Errorf("%s has left the cluster, or doesn't answer", at.master))
	})
	err := at.master.Listen(ctx, process, patience, ready, message)
	cancel(err)
	return err
}

// maxMoves bounds how often a command that was not executed is passed on to another node, or sent again.
const maxMoves = 5

// errUnrouted is the front's reply to a command whose node isn't known yet.
var errUnrouted = errors.New("no node of the cluster has the slot of the key: see CLUSTER NODES")

// moved takes the commands out of an answered batch that the node has not executed, because another one has the
// key, and queues them for that one in the same order. Callers hold mu.
func (s *Stream) moved(b *batch) (d declined) {
	c := s.cluster
	if c == nil {
		return nil
	}
	b.commands = slices.DeleteFunc(b.commands, func(cmd *Command) bool {
		err := cmd.Reply.Err
		switch {
		case err == nil:
			return false
		case errors.Is(err, errUnrouted):
		case redis.IsMoved(err):
			c.movedTo(err, s)
		default:
			return false
		}
		to := c.at(cmd.Key)
		if cmd.moves++; to == s || cmd.moves > maxMoves {
			cmd.Reply.Err = protocol.Unsent(errUnrouted)
			Signal(c.asked)
			return false
		}
		d.push(to, cmd)
		return true
	})
	return d
}

// movedTo evaluates an error "MOVED <slot> <address>". Callers hold mu.
func (c *cluster) movedTo(err error, from *Stream) {
	n, addr, ok := from.master.(*redis.Master).MovedTo(err)
	if !ok {
		return
	}
	to := c.node(addr)
	if to != nil && 0 <= n && n < redis.Slots {
		c.assign(&c.slots[n], to, c.owners[to])
	}
	Signal(c.asked)
}

// declined are commands that a stream has not accepted from another.
type declined []declinedCommand

type declinedCommand struct {
	at  *Stream
	cmd *Command
	err error
}

// push queues a command for another stream. Callers hold mu, and call answer once they don't any more.
func (d *declined) push(to *Stream, c *Command) {
	c.Reply = protocol.Reply{}
	if _, err := to.accept(c); err != nil {
		*d = append(*d, declinedCommand{to, c, err})
	} else {
		to.SendSoon()
	}
}

func (d declined) answer() {
	for _, c := range d {
		c.at.declined(c.cmd, c.err)
	}
}

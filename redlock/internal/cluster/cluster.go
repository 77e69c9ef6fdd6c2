// Package cluster makes a Redis Cluster one master.
package cluster

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
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// Cluster has a stream for each node of a Redis Cluster. For the Locker the whole cluster is one master: a command goes to the node that has its key.
// While that node isn't known, the command goes to the front, which is the embedded Stream. So a node that hangs or is down affects only its own
// keys. All these streams share the mutex mu, which also guards the map from hash slots to nodes.
//
// Redis Cluster replicates asynchronously, so a promoted replica may lack the latest locks of its former master. The promoted replica grants no lock
// until all locks of that master have ended, but renews the locks that it has.
type Cluster struct {
	*link.Stream
	master *Master
	seat   *admission.Seat

	asked   chan struct{} // signals that the nodes should be looked up again
	known   chan struct{} // closed after the first lookup
	failed  chan error    // gets the error of a lookup
	ended   chan struct{}
	cancel  func()
	running sync.WaitGroup // counts node streams that are closing, and lookups that are under way
	nodes   atomic.Pointer[[]*node]

	mu      sync.Mutex // the mutex of all streams
	closing bool
	byAddr  map[string]*node
	owners  map[*link.Stream]bool // the streams that had hash slots at the last lookup
	slots   *[redis.Slots]hashSlot
	epoch   int64
	applied time.Time // when the last topology was applied
}

type hashSlot struct {
	node       *link.Stream // nil before the first lookup; the front if no node has the hash slot
	grantsFrom time.Time    // no acquire of a key of the hash slot is sent before this time
}

type node struct {
	*link.Stream
	of     *Cluster
	master *redis.Master
	seat   *admission.Seat
	down   atomic.Bool // the last report of the stream was that the node is down
}

func (n *node) Up(name string) {
	n.down.Store(false)
	n.of.Watcher.Up(name)
}

// Down implements link.Watcher. It has the nodes looked up again, because another node may have taken over this node's keys.
func (n *node) Down(s link.State) {
	n.down.Store(true)
	n.of.Watcher.Down(s)
	link.Signal(n.of.asked)
}

// Open begins to connect to a cluster. seat is the seat of the whole cluster; each node gets a separate seat.
func Open(m *Master, o link.Settings, seat *admission.Seat) *Cluster {
	c := &Cluster{
		master: m,
		seat:   seat,
		asked:  make(chan struct{}, 1),
		known:  make(chan struct{}),
		failed: make(chan error, 1),
		ended:  make(chan struct{}),
		byAddr: make(map[string]*node),
		slots:  new([redis.Slots]hashSlot),
	}
	c.nodes.Store(&[]*node{})
	m.route = c
	c.mu.Lock() // the front calls Elsewhere and Has, which must find c.Stream set
	c.Stream = link.NewPart(m, o, seat, c, &c.mu)
	c.mu.Unlock()
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	go c.run(ctx)
	return c
}

func (c *Cluster) Divided() bool { return true }

// At returns the stream to the node that has the key.
func (c *Cluster) At(key string) *link.Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slotOf(key).to(c)
}

func (c *Cluster) slotOf(key string) *hashSlot { return &c.slots[redis.HashSlot(key)] }

func (s *hashSlot) to(c *Cluster) *link.Stream {
	if s.node == nil {
		return c.Stream
	}
	return s.node
}

func (c *Cluster) Push(cmd *link.Command) {
	if to, err := c.route(cmd); err != nil {
		to.Decline(cmd, err)
	} else {
		to.Push(cmd)
	}
}

// Enqueue queues a command. The next push to the same node, or SendSoon, sends it.
func (c *Cluster) Enqueue(cmd *link.Command) {
	if to, err := c.route(cmd); err != nil {
		to.Decline(cmd, err)
	} else {
		to.Enqueue(cmd)
	}
}

// route returns the stream to the node that has a command's key, and adapts the command to the node. If it returns an error, the command must not be
// sent, and the stream must decline it.
func (c *Cluster) route(cmd *link.Command) (to *link.Stream, err error) {
	cmd.Fast = false // one command for several keys needs all of them on one node
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.slotOf(cmd.Key)
	to = at.to(c)
	if at.grantsFrom.IsZero() || !time.Now().Before(at.grantsFrom) {
		return to, nil
	}
	switch cmd.Op {
	case protocol.OpAcquire:
		return to, &admission.GuardError{Until: at.grantsFrom, Why: errPromoted}
	case protocol.OpExtend:
		cmd.NoRefill()
	}
	return to, nil
}

var errPromoted = protocol.Mark(errors.New("another node of the cluster has taken over the key, and may lack the latest locks on it"), admission.ErrRestarted)

// errUnrouted is the front's reply to a command whose node isn't known yet.
var errUnrouted = protocol.Unsent(errors.New("no node of the cluster has the slot of the key: see CLUSTER NODES"))

// Elsewhere passes a command, which a node hasn't executed, on to the node that has the key.
func (c *Cluster) Elsewhere(from *link.Stream, cmd *link.Command) bool {
	err := cmd.Reply.Err
	if err == nil {
		return false
	}
	moved := redis.IsMoved(err)
	left := errors.Is(err, protocol.ErrUnsent) && errors.Is(err, link.ErrClosed)
	if !moved && !left && !errors.Is(err, errUnrouted) {
		return false
	}
	c.mu.Lock()
	if moved {
		c.movedTo(err, from)
	}
	to := c.slotOf(cmd.Key).to(c)
	c.mu.Unlock()
	if to == from || !cmd.Again() {
		if !left {
			cmd.Reply.Err = errUnrouted
			link.Signal(c.asked)
		}
		return false
	}
	c.Enqueue(cmd)
	to.SendSoon()
	return true
}

// movedTo notes the new node of a hash slot from an error "MOVED <slot> <address>". Callers hold mu.
func (c *Cluster) movedTo(err error, from *link.Stream) {
	link.Signal(c.asked)
	for _, n := range c.byAddr {
		if n.Stream != from {
			continue
		}
		if slot, addr, ok := n.master.MovedTo(err); ok {
			to := c.node(addr)
			if to != nil && 0 <= slot && slot < redis.Slots {
				c.assign(&c.slots[slot], to.Stream, c.owners[to.Stream])
			}
		}
		return
	}
}

// Has reports whether the part's node has the key. Callers hold the mutex of the streams.
func (c *Cluster) Has(part *link.Stream, key string) bool { return c.slotOf(key).to(c) == part }

// maxNodes bounds the nodes of a cluster, as the specification of Redis Cluster does:
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/.
const maxNodes = 1000

// node returns the node at an address, and makes it if necessary. It returns nil if the cluster is closing or has too many nodes. Callers hold mu.
func (c *Cluster) node(addr string) *node {
	if n := c.byAddr[addr]; n != nil || c.closing || len(c.byAddr) >= maxNodes {
		return n
	}
	n := &node{of: c, master: c.master.Node(addr)}
	n.seat = c.seat.AddNode(n.master)
	o := c.Settings
	o.Watcher = n
	n.Stream = link.NewPart(n.master, o, n.seat, c, &c.mu)
	c.byAddr[addr] = n
	c.listNodes()
	return n
}

func (c *Cluster) listNodes() {
	nodes := make([]*node, 0, len(c.byAddr))
	for _, n := range c.byAddr {
		nodes = append(nodes, n)
	}
	c.nodes.Store(&nodes)
}

// assign gives a hash slot to a node. If moved is true, the slot was resharded from one master to another, and its keys have moved with it. Otherwise
// the new node may be a promoted replica, and grants nothing until all locks of the old node have ended. Callers hold mu.
func (c *Cluster) assign(at *hashSlot, to *link.Stream, moved bool) {
	if at.node == to {
		return
	}
	if at.node != nil && !moved {
		at.grantsFrom = time.Now().Add(c.seat.Covers() + admission.Drift(c.MaxTTL))
	}
	at.node = to
}

// apply adopts a node's view of the cluster, unless the known view has a larger epoch. A smaller epoch is accepted after a time that is longer than
// any lock lasts, in which no view was applied. Then the cluster was created anew, and counts its epochs from the beginning again.
func (c *Cluster) apply(t redis.Topology) {
	c.mu.Lock()
	older := t.Epoch != 0 && t.Epoch < c.epoch
	if c.closing || older && time.Since(c.applied) < c.seat.Covers()+6*askEvery {
		c.mu.Unlock()
		return
	}
	if older {
		c.Logger.Warn("the Redis Cluster was made anew: its epoch is lower than before", "master", c.String(), "epoch", t.Epoch, "former", c.epoch)
	}
	c.epoch, c.applied = t.Epoch, time.Now()
	now := make(map[*link.Stream]bool, len(t.Owners))
	next := new([redis.Slots]*link.Stream)
	for addr, ranges := range t.Owners {
		n := c.node(addr)
		if n == nil {
			continue
		}
		now[n.Stream] = true
		for _, r := range ranges {
			for i := r.First; i <= r.Last; i++ {
				next[i] = n.Stream
			}
		}
	}
	for i, to := range next {
		at := &c.slots[i]
		if to == nil {
			if to = c.Stream; at.node == nil {
				continue
			}
		}
		c.assign(at, to, now[at.node] && c.owners[to])
	}
	c.owners = now
	for addr, n := range c.byAddr {
		if !now[n.Stream] {
			delete(c.byAddr, addr)
			c.retire(n)
		}
	}
	c.listNodes()
	c.mu.Unlock()
	select {
	case <-c.known:
	default:
		close(c.known)
	}
	c.SendSoon()
}

// retire closes the stream of a node without hash slots. The queued commands of the stream go to other nodes. Its commands in flight fail, and their
// releases also go to other nodes.
func (c *Cluster) retire(n *node) {
	n.seat.Drop()
	c.running.Go(func() {
		_ = n.Close(0)
		if n.down.Load() {
			c.Logger.Info("node no longer has keys of its Redis Cluster", "master", n.String())
			c.Watcher.Up(n.String())
		}
	})
}

func (c *Cluster) SendSoon() {
	c.Stream.SendSoon()
	for _, n := range *c.nodes.Load() {
		n.SendSoon()
	}
}

// Shows returns the time since 1970 on the median of the nodes' clocks when our clock shows now, and whether it is known.
func (c *Cluster) Shows(now time.Time) (clock time.Duration, known bool) {
	var clocks []time.Duration
	for _, n := range *c.nodes.Load() {
		if clock, known := n.Shows(now); known {
			clocks = append(clocks, clock)
		}
	}
	if len(clocks) == 0 {
		return 0, false
	}
	slices.Sort(clocks)
	return clocks[len(clocks)/2], true
}

// State returns the state of a node that isn't available or, if all are available, of the slowest node. The state has the certificate that ends first
// of all nodes' certificates, and the Memory of a node that evicts.
func (c *Cluster) State() link.State {
	worst := c.Stream.State() // the state of the front, which fails only if the nodes can't be found
	var until time.Time
	var evicts *protocol.Memory
	for i, n := range *c.nodes.Load() {
		state := n.State()
		if end := state.Server.CertificateUntil; until.IsZero() || !end.IsZero() && end.Before(until) {
			until = end
		}
		if state.Server.Memory.Evicts() {
			evicts = &state.Server.Memory
		}
		if worst.Available() && (i == 0 || !state.Available() || state.RoundTrip > worst.RoundTrip) {
			worst = state
		}
	}
	worst.Name, worst.Server.CertificateUntil = c.String(), until
	if evicts != nil {
		worst.Server.Memory = *evicts
	}
	return worst
}

func (c *Cluster) Close(grace time.Duration) error {
	c.cancel()
	<-c.ended
	c.mu.Lock()
	c.closing = true // no node is added from now on
	nodes := *c.nodes.Load()
	c.mu.Unlock()
	var streams sync.WaitGroup
	for _, n := range nodes {
		streams.Go(func() { _ = n.Close(max(grace, 4*n.Timeout())) })
	}
	err := c.Stream.Close(grace)
	streams.Wait()
	c.running.Wait()
	return err
}

var errNoTopology = errors.New("no node of the cluster tells which nodes there are")

const (
	askGap   = 100 * time.Millisecond // the shortest time between two lookups of the nodes
	askFail  = time.Second            // the longest time between two lookups while a node or a lookup fails
	askEvery = 5 * time.Second        // the longest time between two lookups while nothing fails
	askMany  = 3                      // how many nodes are asked at once; the first reply counts

	lookGap = 250 * time.Millisecond // the time between two checks whether a node fails
)

func (c *Cluster) run(ctx context.Context) {
	defer close(c.ended)
	for ctx.Err() == nil {
		t, err := c.ask(ctx)
		if err == nil {
			c.apply(t)
		} else {
			select { // replace an error that the front hasn't read yet
			case <-c.failed:
			default:
			}
			c.failed <- err
		}
		c.rest(ctx, err != nil || c.failing())
	}
}

func (c *Cluster) rest(ctx context.Context, fails bool) {
	sleep(ctx, askGap, nil)
	for slept := askGap; slept < askEvery && sleep(ctx, lookGap, c.asked); slept += lookGap {
		if fails && slept+lookGap >= askFail || !fails && c.failing() {
			return
		}
	}
}

// sleep waits for d. It returns false if a signal or the end of the context comes first.
func sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-woken:
	case <-ctx.Done():
	}
	return false
}

// ask asks nodes for the topology, a few at once, until one answers.
func (c *Cluster) ask(ctx context.Context) (t redis.Topology, err error) {
	if t, known, err := c.master.Configured(ctx); known {
		return t, err
	}
	well, others := c.candidates()
	if len(well) > 0 { // one node is usually enough, but it may hang, and then the others are asked
		if t, last := c.askSome(ctx, well[:1], 2*c.Timeout()); last == nil {
			return t, nil
		}
	}
	err = errNoTopology
	for some := range slices.Chunk(append(well, others...), askMany) {
		if t, last := c.askSome(ctx, some, c.ConnectTime()); last == nil {
			return t, nil
		} else if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errNoTopology, last)
		}
	}
	return t, err
}

// askSome asks these nodes at once, and returns the first good reply.
func (c *Cluster) askSome(ctx context.Context, addrs []string, patience time.Duration) (redis.Topology, error) {
	type answer struct {
		redis.Topology
		err error
	}
	replies := make(chan answer, len(addrs))
	for _, addr := range addrs {
		c.running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			t, err := c.master.Ask(ctx, addr)
			replies <- answer{t, err}
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

// candidates returns the addresses of nodes to ask, each list in random order: well has the nodes that answer, others the rest.
func (c *Cluster) candidates() (well, others []string) {
	nodes := *c.nodes.Load()
	others = slices.Clone(c.master.Addrs())
	for _, i := range rand.Perm(len(nodes)) {
		if addr := nodes[i].master.Addr(); nodes[i].Fails() {
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

func (c *Cluster) failing() bool {
	return slices.ContainsFunc(*c.nodes.Load(), func(n *node) bool { return n.Fails() })
}

// anyNode returns a random node that answers or, if none does, a random node. It returns nil if no node is known.
func (c *Cluster) anyNode() *node {
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

func (c *Cluster) whileAlive(ctx context.Context, n *node) {
	for sleep(ctx, askFail, nil) {
		if !slices.Contains(*c.nodes.Load(), n) || n.Fails() {
			return
		}
	}
}

// Master is a whole Redis Cluster as one master, for Open.
type Master struct {
	*redis.Cluster
	route *Cluster // nil before Open
}

// Capabilities are for the front, which has no lane. Each node's stream has one.
func (m *Master) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true}
}

// Connect makes the connection of the front as soon as the nodes are known. It doesn't ask the admission, because each node has a seat. The
// connection executes nothing: its replies make the stream pass each command on to a node.
func (m *Master) Connect(ctx context.Context, _ protocol.Admission) (protocol.Conn, error) {
	select {
	case <-m.route.known:
	case err := <-m.route.failed:
		return nil, protocol.Unreachable(err)
	case <-ctx.Done():
		return nil, protocol.Unreachable(errNoTopology)
	}
	return protocol.NewImmediate(func(cmds []*protocol.Command) {
		for _, cmd := range cmds {
			if cmd.Op != protocol.OpPing {
				cmd.Reply = protocol.Reply{Err: errUnrouted}
			}
		}
	}), nil
}

// Close does nothing, because the streams close the nodes.
func (m *Master) Close() error { return nil }

// Listen subscribes at one node, because the nodes of a cluster pass messages on to each other. It returns when this node doesn't answer any more or
// has left the cluster. The next call chooses a node that answers.
func (m *Master) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
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
	watch.Go(func() { // needed because the node may hang while Listen connects to it
		m.route.whileAlive(ctx, at)
		cancel(fmt.Errorf("%s has left the cluster, or doesn't answer", at.master))
	})
	err := at.master.Listen(ctx, process, patience, ready, message)
	cancel(err)
	return err
}

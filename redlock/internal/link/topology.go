package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

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

// AdmitWith does nothing: each node has a seat of its own.
func (m *clusterMaster) AdmitWith(protocol.Admission) {}

// Close does nothing: the streams close the nodes.
func (m *clusterMaster) Close() error { return nil }

// Listen subscribes at one node, because the nodes pass messages on to each other. It ends, so that another node
// is chosen, when this one doesn't answer any more or has left the cluster.
func (m *clusterMaster) Listen(ctx context.Context, process string, ready func(), message func(protocol.WakeUp)) error {
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
	err := at.master.Listen(ctx, process, ready, message)
	cancel(err)
	return err
}

// maxMoves bounds how often a command is passed on to another node.
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

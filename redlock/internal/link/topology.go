package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

const (
	askGap   = 100 * time.Millisecond // at least this long between two lookups of the nodes,
	askFail  = time.Second            // at most this long while one of them fails,
	askEvery = 5 * time.Second        // and at most this long otherwise
	askMany  = 3                      // nodes asked at once if none is known to answer; the first answer counts
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

// askSome asks these nodes at once, and returns the first answer that comes within the patience.
func (c *cluster) askSome(ctx context.Context, addrs []string, patience time.Duration) (redis.Topology, error) {
	type told struct {
		redis.Topology
		err error
	}
	answers := make(chan told, len(addrs))
	for _, addr := range addrs {
		c.running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			t, err := c.master.Ask(ctx, addr)
			answers <- told{t, err}
		})
	}
	var err error
	for range addrs {
		answer := <-answers
		if answer.err == nil {
			return answer.Topology, nil
		}
		err = answer.err
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

// newRouting returns the connection of the front. It executes nothing: its answers make the stream pass each
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

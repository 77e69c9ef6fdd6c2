package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

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

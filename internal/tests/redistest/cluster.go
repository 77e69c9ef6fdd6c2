package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// StartCluster starts a Redis Cluster. It returns the masters, which share the slots evenly, and then the replicas, one of each
// of the first masters. No failover happens by itself: see Promote.
func StartCluster(tb testing.TB, masters, replicas int, args ...string) []*Server {
	tb.Helper()
	nodes := Start(tb, masters+replicas, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "600000",
		"--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"}, args...)...)
	ctx := context.Background()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	for i, s := range nodes[:masters] {
		var slots []int // ADDSLOTSRANGE is not in Redis 6.2
		for n := i * 16384 / masters; n < (i+1)*16384/masters; n++ {
			slots = append(slots, n)
		}
		must(s.client.ClusterAddSlots(ctx, slots...).Err())
		must(s.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
	}
	for _, s := range nodes[1:] {
		must(nodes[0].client.ClusterMeet(ctx, "127.0.0.1", fmt.Sprint(s.port)).Err())
	}
	for _, s := range nodes {
		s.await("cluster_known_nodes:"+fmt.Sprint(len(nodes))+"\r", "cluster", "info")
	}
	for i, s := range nodes[masters:] {
		s.await(nodes[i].NodeID(), "cluster", "nodes") // while two nodes shake hands, they go by other IDs
		must(s.client.ClusterReplicate(ctx, nodes[i].NodeID()).Err())
		s.await("master_link_status:up\r", "info", "replication")
	}
	for _, s := range nodes {
		s.await("cluster_state:ok\r", "cluster", "info")
		s.await("cluster_slots_assigned:16384\r", "cluster", "info")
		for i := range replicas { // every node knows whose replica each is
			s.await("slave "+nodes[i].NodeID(), "cluster", "nodes")
		}
	}
	return nodes
}

// ClusterURL returns the URL of a Redis Cluster with these nodes.
func ClusterURL(nodes []*Server) string {
	url := "redis-cluster://" + nodes[0].Addr()
	for i, s := range nodes[1:] {
		url += string("?&"[min(i, 1)]) + "addr=" + s.Addr()
	}
	return url
}

// NodeID returns the ID of the server in its cluster.
func (s *Server) NodeID() string {
	id, _ := s.client.Do(context.Background(), "cluster", "myid").Text()
	return id
}

// Promote makes a replica the master of its master's slots, as a failover does.
func (s *Server) Promote() {
	s.tb.Helper()
	if err := s.client.Do(context.Background(), "cluster", "failover", "takeover").Err(); err != nil {
		s.tb.Fatal(err)
	}
	s.await("role:master\r", "info", "replication")
}

// CatchUp waits until a replica has all that its master has now. The command WAIT doesn't do that: it covers only the writes of its own connection.
func (s *Server) CatchUp(master *Server) {
	s.tb.Helper()
	want := master.offset("master_repl_offset:")
	for deadline := time.Now().Add(bound); s.offset("slave_repl_offset:") < want; time.Sleep(5 * pause) {
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s lacks what its master %s has", s.Addr(), master.Addr())
		}
	}
}

// offset returns a replication offset of the server.
func (s *Server) offset(field string) (n int64) {
	text, _ := s.client.Info(context.Background(), "replication").Result()
	_, text, _ = strings.Cut(text, field)
	_, _ = fmt.Sscan(text, &n)
	return n
}

// Unlink cuts a replica off from its master: it misses what the master does from now on.
func (s *Server) Unlink() {
	s.tb.Helper()
	ctx := context.Background()
	for _, err := range []error{
		s.client.ConfigSet(ctx, "masteruser", "nobody").Err(),
		s.client.ConfigSet(ctx, "masterauth", "wrong").Err(),
		s.client.Do(ctx, "client", "kill", "type", "master").Err(),
	} {
		if err != nil {
			s.tb.Fatal(err)
		}
	}
	s.await("master_link_status:down\r", "info", "replication")
}

// await waits until the server's reply to a command contains a text.
func (s *Server) await(text string, command ...any) {
	s.tb.Helper()
	var reply string
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(5 * pause) {
		if reply, _ = s.client.Do(context.Background(), command...).Text(); strings.Contains(reply, text) {
			return
		}
	}
	s.tb.Fatalf("%s doesn't answer %q but:\n%s", s.Addr(), text, reply)
}

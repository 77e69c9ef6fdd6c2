package redlock_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// onCluster returns a Locker whose only master is a cluster.
func onCluster(t *testing.T, nodes []*redistest.Server, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return newLocker(t, []string{redistest.ClusterURL(nodes)}, opts...)
}

// nodeKeys returns n keys of one node. A cluster of three masters has its slots in three parts.
func nodeKeys(t *testing.T, node *redistest.Server, part, masters, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("key", i)
		slot, err := node.Client().ClusterKeySlot(t.Context(), redisKey(key)).Result()
		if err != nil {
			t.Fatal(err)
		}
		if int(slot) >= part*16384/masters && int(slot) < (part+1)*16384/masters {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestClusterInspects: what operators do with keys of any name works where the server finds them by their slots.
func TestClusterInspects(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	opts := []redlock.Option{redlock.WithTTL(4 * bound), redlock.WithMaxTTL(4 * bound), redlock.WithTimeout(bound)}
	a, b := onCluster(t, nodes, append(opts, redlock.WithInstance("a"))...), onCluster(t, nodes, opts...)
	for _, key := range oddKeys {
		held := mustLock(t, a, key)
		if seen := mustInspect(t, b, key); !seen.Held || seen.Holder != "a" || seen.Fence != held.Fence() {
			t.Errorf("%q: %+v", key, seen)
		}
		if err := inspect.Force(t.Context(), b, key, 0, held.Fence()); err != nil {
			t.Errorf("force %q: %v", key, err)
		}
		_ = held.Unlock()
		fence := leaveResult(t, b, key, "paid")
		if seen := mustInspect(t, a, key); seen.Held || !seen.Remembered || seen.Result.Fence != fence || seen.Result.Bytes != len("paid") {
			t.Errorf("%q: %+v", key, seen)
		}
	}
}

// TestClusterNodeFails: while one node hangs and one without a replica is dead, the keys of the others can be
// locked, and the error names the node.
func TestClusterNodeFails(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	l := onCluster(t, nodes)
	var others []string
	for part := range 2 {
		others = append(others, nodeKeys(t, nodes[0], part, 3, 10)...)
	}
	own := nodeKeys(t, nodes[0], 2, 3, 3)
	for _, key := range append(others, own...) {
		lockUnlock(t, l, key)
	}
	fails := func() {
		t.Helper()
		eventually(t, bound, "its keys are refused, with its name", func() bool {
			_, err := l.TryLock(t.Context(), own[0])
			return errors.Is(err, redlock.ErrNoQuorum) && strings.Contains(err.Error(), nodes[2].Addr()+" of redis-cluster://")
		})
		for range 3 {
			for _, key := range others {
				var lock *redlock.Lock
				if err := answered(t, func() (err error) {
					lock, err = l.TryLock(t.Context(), key)
					if err != nil && strings.Contains(err.Error(), nodes[2].Addr()+" of ") {
						t.Fatalf("%q, which another node has: %v", key, err)
					}
					return err
				}); err != nil {
					t.Fatalf("%q, which another node has: %v", key, err)
				}
				mustUnlock(t, lock)
			}
		}
	}
	works := func() {
		t.Helper()
		for _, key := range own {
			lockUnlock(t, l, key)
		}
	}
	nodes[2].Pause()
	fails()
	nodes[2].Resume()
	works()
	nodes[2].Kill()
	fails()
	nodes[2].Restart()
	works()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	redistest.RequireNoKeys(t, nodes)
	for _, s := range nodes {
		eventually(t, bound, "no connection is left", func() bool { return s.Connections() <= 0 })
	}
}

// TestClusterFailover: when a replica takes the place of a node that hangs, a held lock stays held, and new ones on
// the node's keys are granted once all that it may have granted have ended.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // long enough for a busy machine to find the replica before the lease ends
	nodes := redistest.StartCluster(t, 3, 1)
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithTimeout(300 * time.Millisecond)}
	l, other := onCluster(t, nodes, opts...), onCluster(t, nodes, opts...)
	keys := nodeKeys(t, nodes[0], 0, 3, 2)
	elsewhere := nodeKeys(t, nodes[0], 1, 3, 1)[0]
	lock := mustLock(t, l, keys[0])
	for _, l := range []*redlock.Locker{l, other} {
		lockUnlock(t, l, keys[1])
	}
	nodes[3].CatchUp(nodes[0])
	nodes[0].Pause()
	promoted := time.Now()
	nodes[3].Promote()
	eventually(t, bound, "the promoted replica has no vote", func() bool {
		_, err := other.TryLock(t.Context(), keys[1])
		return errors.Is(err, redlock.ErrRestarted) && strings.Contains(err.Error(), nodes[3].Addr()+" of ")
	})
	lockUnlock(t, other, elsewhere)
	lockUnlock(t, other, keys[1])
	if took := time.Since(promoted); took < ttl {
		t.Errorf("the promoted replica granted after %v, want not before %v", took, ttl)
	}
	if err := lock.Err(); err != nil {
		t.Errorf("the lock that the replica had: %v", err)
	}
	eventually(t, bound, "the locked key is held", func() bool { // the guard of a slot counts from when its own move was noticed
		held, err := other.TryLock(t.Context(), keys[0])
		if err == nil {
			t.Fatalf("the locked key was granted again: %v", held.Fence())
		}
		return errors.Is(err, redlock.ErrHeld)
	})
	mustUnlock(t, lock)
	nodes[0].Resume()
	lockUnlock(t, other, keys[0])
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestClusterOfOneNodeFailsOver: the only node of a cluster that is the only master hangs, its replica takes its place, and
// then the node is back as a replica. Locks are granted again each time.
func TestClusterOfOneNodeFailsOver(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 1, 1)
	l := onCluster(t, nodes, redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second/2))
	time.Sleep(2500 * time.Millisecond) // clocks are judged from then on, though not all may be known
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 16 { // replies are always under way
		callers.Go(func() {
			for ctx.Err() == nil {
				if lock, err := l.TryLock(ctx, fmt.Sprint("key", i)); err == nil {
					_ = lock.Unlock()
				}
			}
		})
	}
	lockUnlock(t, l, "key")
	for _, of := range []int{0, 1} {
		nodes[of].Pause()
		nodes[1-of].Promote()
		lockUnlock(t, l, "key")
		nodes[of].Resume()
		lockUnlock(t, l, "key")
		eventually(t, bound, "the former master follows", func() bool {
			text, _ := nodes[of].Client().Info(t.Context(), "replication").Result()
			return strings.Contains(text, "master_link_status:up")
		})
	}
	cancel()
	callers.Wait()
}

// TestClusterFailoverForgets: when a replica is promoted that lacks its master's latest lock, nobody else gets that
// lock before its holder has lost it.
func TestClusterFailoverForgets(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	nodes := redistest.StartCluster(t, 3, 1)
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithTimeout(300 * time.Millisecond)}
	l, other := onCluster(t, nodes, opts...), onCluster(t, nodes, opts...)
	key := nodeKeys(t, nodes[0], 0, 3, 1)[0]
	lockUnlock(t, other, key)
	nodes[3].Unlink()
	lock := mustLock(t, l, key)
	nodes[0].Kill()
	nodes[3].Promote()
	second := mustLock(t, other, key)
	if err := lock.Err(); !errors.Is(err, redlock.ErrLost) {
		t.Errorf("the first lock when the second was had: %v, want ErrLost", err)
	}
	if second.Fence() <= lock.Fence() {
		t.Errorf("fence %d after %d", second.Fence(), lock.Fence())
	}
	unlocked(t, second)
	if err := lock.Unlock(); !errors.Is(err, redlock.ErrExpired) {
		t.Errorf("unlock of the lost lock: %v", err)
	}
}

// TestClusterResharding: when the slot of a held key is moved to another node, locks are granted there at once.
func TestClusterResharding(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	const ttl = 10 * time.Second
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithMaxTTL(time.Hour)}
	l, other := onCluster(t, nodes, opts...), onCluster(t, nodes, opts...)
	key := nodeKeys(t, nodes[0], 0, 3, 1)[0]
	lockUnlock(t, other, key)
	lock := mustLock(t, l, key)
	moveSlot(t, redisKey(key), nodes[0], nodes[1], nodes...)
	if err := answered(t, func() error { _, err := other.TryLock(t.Context(), key); return err }); !errors.Is(err, redlock.ErrHeld) {
		t.Errorf("the key that moved: %v, want ErrHeld", err)
	}
	renewedFrom := lock.Until()
	eventually(t, 2*ttl+bound, "the lease is renewed on the other node", func() bool { return lock.Until().After(renewedFrom) })
	woken := make(chan error, 1)
	go func() {
		next, err := other.Lock(t.Context(), key)
		if err == nil {
			err = next.Unlock()
		}
		if errors.Is(err, redlock.ErrNoQuorum) { // the reply may be late on a busy machine
			err = nil
		}
		woken <- err
	}()
	mustUnlock(t, lock)
	if err := <-woken; err != nil {
		t.Error(err)
	}
	redistest.RequireNoKeys(t, nodes)
}

// moveSlot moves the slot of a key, as redis-cli --cluster reshard does.
func moveSlot(t *testing.T, key string, from, to *redistest.Server, all ...*redistest.Server) {
	t.Helper()
	do := func(s *redistest.Server, command ...any) *redis.Cmd {
		t.Helper()
		cmd := s.Client().Do(context.Background(), command...)
		if cmd.Err() != nil {
			t.Fatalf("%v: %v", command, cmd.Err())
		}
		return cmd
	}
	slot := do(from, "cluster", "keyslot", key).Val()
	do(to, "cluster", "setslot", slot, "importing", from.NodeID())
	do(from, "cluster", "setslot", slot, "migrating", to.NodeID())
	host, port, _ := strings.Cut(to.Addr(), ":")
	keys, err := do(from, "cluster", "getkeysinslot", slot, 1000).StringSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		do(from, "migrate", host, port, k, 0, 5000)
	}
	for _, s := range append([]*redistest.Server{to, from}, all...) {
		do(s, "cluster", "setslot", slot, "node", to.NodeID())
	}
}

// TestClusterKeys locks keys with braces, each alone and all together, on whatever nodes they are.
func TestClusterKeys(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	l := onCluster(t, nodes)
	keys := []string{"a", "order:42", "a}b", "}a", "{a}", "}", "{", "{}", "{}a", "{{}}", "}{"}
	for _, key := range keys {
		lockUnlock(t, l, key)
	}
	lock, err := l.LockAll(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if err := answered(t, func() error { _, err := l.TryLock(t.Context(), key); return err }); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("%q: %v, want ErrHeld", key, err)
		}
	}
	held := 0
	for _, s := range nodes {
		held += len(s.Keys())
	}
	if held != len(keys) {
		t.Errorf("%d keys on the nodes, want %d", held, len(keys))
	}
	mustUnlock(t, lock)
	redistest.RequireNoKeys(t, nodes)
}

// TestClusterURL: the nodes that a URL names tell the others, whichever of them is up, and all have the same user. What leads to a
// cluster but isn't named as one, and the other way round, is told how to write it.
func TestClusterURL(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2, 0)
	keys := []string{nodeKeys(t, nodes[0], 0, 2, 1)[0], nodeKeys(t, nodes[0], 1, 2, 1)[0]}
	asUser(t, nodes, append(redistest.LeastRights(t), "+cluster|slots", "+cluster|info"))
	for _, start := range []string{"redis-cluster://locks:secret@", "valkey-cluster://locks:secret@"} {
		l := newLocker(t, []string{start + "127.0.0.1:1?addr=" + nodes[1].Addr()})
		for _, key := range keys {
			lockUnlock(t, l, key)
		}
		mustClose(t, l)
	}
	for url, says := range map[string]string{
		"redis://" + nodes[0].Addr():                                     "the whole cluster as redis-cluster://host:port",
		"redis-cluster://" + redistest.Start(t, 1)[0].Addr():             "it is no node of a Redis Cluster: write redis://",
		"redis-cluster://locks:wrong-secret@" + nodes[0].Addr():          "the user name or the password is wrong",
		"redis-cluster://127.0.0.1:1?addr=127.0.0.1:2&addr=[::1]:2&db=0": "connection refused",
	} {
		l := newLocker(t, []string{url})
		eventually(t, bound, says, func() bool {
			_, err := l.TryLock(t.Context(), keys[1])
			return err != nil && strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "secret")
		})
		mustClose(t, l)
	}
}

// TestClusterTLS: all nodes are reached with TLS, and show a certificate for the host in the URL.
func TestClusterTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	certificate, key := authority.Issue("127.0.0.1")
	own, err := tls.LoadX509KeyPair(authority.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(redistest.FreePort(t))
	redistest.StartCluster(t, 1, 0, "--tls-port", port, "--cluster-announce-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", authority.File)
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(authority.File)
	if err != nil || !trusted.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	lockUnlock(t, newLocker(t, []string{"rediss-cluster://127.0.0.1:" + port}, redlock.WithTLS(&tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{own}})), "key")
	requireState(t, newLocker(t, []string{"rediss-cluster://127.0.0.1:" + port}), 0, redlock.MasterUnreachable) // its authority is unknown
}

// lossy is a connection that breaks when the next reply comes.
type lossy struct {
	net.Conn
	next *atomic.Bool
}

func (c lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.next.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestClusterLostReply: if the reply to an Unlock is lost, it is not sent twice. So Unlock returns that it wasn't
// confirmed, rather than that another holder has the lock.
func TestClusterLostReply(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 1, 0)
	var lose atomic.Bool
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}, Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
		c, err := net.Dial(network, addr)
		return lossy{c, &lose}, err
	}})
	t.Cleanup(func() { _ = client.Close() })
	l := lockerOn(t, []redlock.Master{wrap(t, client)})
	for range 10 {
		lock := mustLock(t, l, "key")
		lose.Store(true)
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("unlock: %v", err)
		}
		lose.Store(false)
		redistest.RequireNoKeys(t, nodes)
	}
}

// TestClusterWakesThroughAnotherNode: each node hangs in turn, among them the one with this process's subscription;
// calls that wait for keys of the others are woken nevertheless.
func TestClusterWakesThroughAnotherNode(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	opts := []redlock.Option{redlock.WithTTL(time.Minute), redlock.WithMaxTTL(time.Minute), redlock.WithTimeout(300 * time.Millisecond)}
	l, other := onCluster(t, nodes, opts...), onCluster(t, nodes, opts...)
	for part, hung := range nodes {
		key := nodeKeys(t, nodes[0], (part+1)%3, 3, 1)[0]
		lock := mustLock(t, l, key)
		next := make(chan error, 1)
		go func() {
			lock, err := other.Lock(t.Context(), key)
			if err == nil {
				err = lock.Unlock()
			}
			if errors.Is(err, redlock.ErrNoQuorum) { // the reply may be late on a busy machine
				err = nil
			}
			next <- err
		}()
		eventually(t, bound, "it waits", func() bool {
			return strings.HasSuffix(nodes[(part+1)%3].Client().LIndex(t.Context(), redisKey(key), 0).Val(), "+")
		})
		hung.Pause()
		time.Sleep(3 * time.Second) // for what listens there to see it
		unlocked(t, lock)           // in vain if the reply is late, but the key is free
		select {
		case err := <-next:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(bound):
			t.Errorf("not woken when node %d hung", part)
		}
		hung.Resume()
	}
}

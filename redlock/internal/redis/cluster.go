package redis

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Cluster is a Redis Cluster. It makes a Master of each node, and asks nodes for the topology.
type Cluster struct {
	name    string
	options redis.ClusterOptions
}

func NewCluster(o redis.ClusterOptions) *Cluster {
	scheme := "redis-cluster://"
	if o.TLSConfig != nil {
		scheme = "rediss-cluster://"
	}
	return &Cluster{name: scheme + strings.Join(o.Addrs, ","), options: o}
}

func (c *Cluster) String() string { return c.name }

// Addrs returns the configured addresses of nodes.
func (c *Cluster) Addrs() []string { return c.options.Addrs }

func (c *Cluster) Node(addr string) *Master {
	o := &c.options
	n := New(redis.Options{
		Addr: addr, Dialer: o.Dialer, OnConnect: o.OnConnect, TLSConfig: o.TLSConfig, ClientName: o.ClientName,
		Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext, StreamingCredentialsProvider: o.StreamingCredentialsProvider,
	})
	n.name, n.scripts = addr+" of "+c.name, clusterScripts
	return n
}

// Topology maps the nodes of a cluster to their hash slots.
type Topology struct {
	Epoch  int64                  // grows with each failover; 0 if unknown
	Owners map[string][]SlotRange // the hash slots by the node's address
}

type SlotRange struct{ First, Last int }

// Configured returns the topology from the function in the client's options; known is false if there is no such function, so that a node must be
// asked.
func (c *Cluster) Configured(ctx context.Context) (t Topology, known bool, err error) {
	if c.options.ClusterSlots == nil {
		return t, false, nil
	}
	slots, err := c.options.ClusterSlots(ctx)
	if err == nil {
		t, err = t.with(slots, "")
	}
	return t, true, err
}

func (c *Cluster) Ask(ctx context.Context, addr string) (Topology, error) {
	n := c.Node(addr)
	o := n.options
	raw, err := n.open(ctx)
	if err != nil {
		return Topology{}, fmt.Errorf("%s: %w", addr, err)
	}
	defer func() { _ = raw.Close() }()
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		return bounded(raw, bufio.NewReader(raw)), nil
	}
	client := redis.NewClient(&o)
	defer func() { _ = client.Close() }()
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })() // go-redis ignores the context while it reads
	pipe := client.Pipeline()
	slots, info := pipe.ClusterSlots(ctx), pipe.ClusterInfo(ctx)
	_, err = pipe.Exec(ctx)
	if slots.Err() != nil || info.Err() != nil { // these errors have the server's reason
		err = cmp.Or(slots.Err(), info.Err())
	}
	switch {
	case redis.HasErrorPrefix(err, "This instance has cluster support disabled"):
		return Topology{}, fmt.Errorf("%s: it is no node of a Redis Cluster: write redis:// before its address, or rediss:// for TLS", addr)
	case err != nil:
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Topology{}, fmt.Errorf("%s: %w", addr, explained(err))
	}
	t := Topology{}
	for name, value := range infoFields(info.Val()) {
		if name == "cluster_current_epoch" {
			t.Epoch, _ = protocol.ParseNumber(value, math.MaxInt64)
		}
	}
	return t.with(slots.Val(), addr)
}

// with returns the topology with the reply to CLUSTER SLOTS of the node at an address.
func (t Topology) with(slots []redis.ClusterSlot, addr string) (Topology, error) {
	t.Owners = make(map[string][]SlotRange)
	for _, s := range slots {
		if len(s.Nodes) > 0 && 0 <= s.Start && s.Start <= s.End && s.End < Slots {
			owner := reachable(s.Nodes[0].Addr, addr)
			t.Owners[owner] = append(t.Owners[owner], SlotRange{s.Start, s.End})
		}
	}
	if len(t.Owners) == 0 {
		return t, fmt.Errorf("%s: its Redis Cluster lacks nodes or slots: see CLUSTER INFO and CLUSTER NODES", addr)
	}
	return t, nil
}

// IsMoved reports whether a node has not executed a command because another node has the key.
func IsMoved(err error) bool { return redis.HasErrorPrefix(err, "MOVED ") }

// MovedTo reads the error "MOVED <slot> <address>" of this node. The returned address can be reached from this process. ok is false for a different
// error. The slot may be out of range.
func (m *Master) MovedTo(err error) (slot int, addr string, ok bool) {
	var moved redis.Error
	if !errors.As(err, &moved) {
		return 0, "", false
	}
	words := strings.Fields(moved.Error())
	if len(words) < 3 {
		return 0, "", false
	}
	if slot, err = strconv.Atoi(words[1]); err != nil {
		slot = -1
	}
	addr = words[2]
	if at := strings.LastIndexByte(addr, ':'); at >= 0 { // an IPv6 address without brackets may be before the port
		addr = net.JoinHostPort(strings.Trim(addr[:at], "[]"), addr[at+1:])
	}
	return slot, reachable(addr, m.Addr()), true
}

// reachable returns an address at which this process can reach a node. addr is the node's address according to the node at the address asked. If addr
// has no host, or a loopback address of another machine, the node is reached at the host of asked.
func reachable(addr, asked string) string {
	host, port, err := net.SplitHostPort(addr)
	askedHost, askedPort, errAsked := net.SplitHostPort(asked)
	if err != nil || errAsked != nil {
		return addr
	}
	if host == "" || host == "?" || isLoopback(host) && !isLoopback(askedHost) {
		host = askedHost
	}
	if port == "0" { // the cluster has only ports with TLS
		port = askedPort
	}
	return net.JoinHostPort(host, port)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback() || host == "localhost"
}

// Slots is the number of hash slots into which a Redis Cluster divides its keys. Each slot is on one node.
const Slots = 1 << 14

// HashSlot returns the hash slot of a Redis key (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
func HashSlot(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC16/XMODEM
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return int(crc) % Slots
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

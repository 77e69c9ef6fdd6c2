package redlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/quorum"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/cluster"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	wire "github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Master is one independent lock server, for New. [NewMaster] makes one.
type Master struct{ impl protocol.Master }

func init() { hook.MasterOf = func(impl protocol.Master) any { return Master{impl} } }

// String names the master as logs and errors do. It contains no credentials.
func (m Master) String() string {
	if m.impl == nil {
		return "no master"
	}
	return m.impl.String()
}

// server names the server and its database, because each database has separate keys.
func (m Master) server() string {
	if n := m.impl.Capabilities().Database; n > 0 {
		return fmt.Sprintf("%s/%d", m, n)
	}
	return m.String()
}

// overlap is inside.Overlap.
func overlap(ones, others []Master) bool {
	common := 0
	for _, m := range ones {
		if !m.inMemory() && slices.ContainsFunc(others, func(other Master) bool { return other.server() == m.server() }) {
			common++
		}
	}
	return quorum.Overlap(len(ones), len(others), len(ones)+len(others)-common)
}

func (m Master) inMemory() bool { return m.impl.Capabilities().Local }

func (m Master) close() error {
	if m.impl == nil {
		return nil
	}
	return m.impl.Close()
}

func (m Master) connect(o link.Settings, seat *admission.Seat) vote.Stream {
	if whole, ok := m.impl.(*cluster.Master); ok {
		return cluster.Open(whole, o, seat)
	}
	return link.NewStream(m.impl, o, seat)
}

// NewMaster returns a master for the server that a client is configured for. It takes the client's address, credentials, TLS and dialer. But it opens
// one connection of its own, without retries and with its own timeouts, because an ordered stream of commands needs that. It neither uses nor closes
// the client and its hooks. A *redis.ClusterClient makes one master of a whole cluster. Other kinds of clients are refused, among them a client of a
// Sentinel group: a replica that Sentinel promotes may lack the newest locks, and a process that starts after the promotion can't notice that.
func NewMaster(client redis.UniversalClient) (Master, error) {
	switch c := client.(type) {
	case *redis.Client:
		if c.Options().Addr == failoverAddr {
			return Master{}, errSentinel
		}
		return Master{wire.New(*c.Options())}, nil
	case *redis.ClusterClient:
		if len(c.Options().Addrs) == 0 { // the client is from NewFailoverClusterClient
			return Master{}, errors.New("redlock: this redis.ClusterClient names no node of a cluster; a Sentinel group is none: name independent servers")
		}
		return Master{&cluster.Master{Cluster: wire.NewCluster(*c.Options())}}, nil
	}
	return Master{}, fmt.Errorf("redlock: a master can't be made of a %T; give a *redis.Client or a *redis.ClusterClient", client)
}

// failoverAddr is the address in the options of a redis.NewFailoverClient.
const failoverAddr = "FailoverClient"

var errSentinel = errors.New("redlock: a redis.FailoverClient is no master: " + sentinelAdvice)

// examine is inside.Examine.
func (m Master) examine(ctx context.Context, prefix string, patience time.Duration) *inside.Examination {
	type examinable interface {
		Examine(ctx context.Context, prefix string, patience time.Duration) *inside.Examination
	}
	if server, ok := m.impl.(examinable); ok {
		return server.Examine(ctx, prefix, patience)
	}
	return &inside.Examination{Unexaminable: true}
}

func newMemory(name string, now func() time.Time) *memory.Master {
	return memory.New(name, memory.Steady(now))
}

// Open returns a Locker on the masters with these URLs. One master is enough for development; three or five independent servers survive the loss of
// one or two. Open returns at once: it begins to connect, as New does.
//
//	redis://[user:password@]host[:port][/db]    a Redis server; the port is 6379 by default
//	rediss://...                                the same over TLS
//	valkey://... and valkeys://...              other names for redis:// and rediss://
//	unix:///path/to/socket                      a Redis server at a Unix domain socket
//	redis-cluster://host[:port][?addr=host:port]   a whole Redis Cluster as one master; rediss-cluster:// over TLS
//	memory:// or memory://name                  a master in the memory of this process, for one process and for tests
//
// A URL may have the parameters client_name and db. Other parameters of go-redis, such as pool_size and read_timeout, would have no effect, and are
// refused: a Locker has one connection to each master for locks, one for results while there are any, and WithTimeout. For a private certificate
// authority or a client certificate see WithTLS.
//
// The URL of a Redis Cluster names any of its nodes, which knows the addresses of the others. Each parameter addr names one more, in case the first
// one is down. All nodes get the same user and password. A cluster has only database 0.
//
// Open returns an error if a URL or an option is wrong, a server is named twice, or memory:// is beside a server. Errors refer to a URL by its
// position in the list, because it may contain a password.
func Open(urls []string, opts ...Option) (*Locker, error) {
	o, wrong := newOptions(opts)
	masters, err := dialAll(func() inside.Access { return inside.Access{TLS: o.tls} }, urls...)
	if err != nil {
		return nil, err
	}
	return newLocker(masters, o, wrong)
}

// dialAll is inside.Dial.
func dialAll(access func() inside.Access, urls ...string) ([]Master, error) {
	masters := make([]Master, 0, len(urls))
	for i, u := range urls {
		m, err := dial(u, access)
		if err != nil {
			return nil, fmt.Errorf("redlock: master %d of %d: %w", i+1, len(urls), err)
		}
		masters = append(masters, Master{m})
	}
	return masters, checkMasters(masters)
}

const sentinelAdvice = "Sentinel is not supported: a replica that it promotes may lack the newest locks, which would be given twice; " +
	"name three or five independent servers, each by its own address, as redis://host:port"

const urlForms = "want redis://host:port or valkey://host:port, rediss:// or valkeys:// for TLS, redis-cluster:// for a Redis Cluster, unix:///path or memory://"

func dial(text string, access func() inside.Access) (protocol.Master, error) {
	if advice := whatToWrite(text); advice != "" {
		return nil, errors.New(advice)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a valid URL (not shown, it may contain a password); " + urlForms)
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil || strings.Contains(text, "#") {
		return nil, errors.New("what comes after # or ; in its URL would be left out: write %23 for # in a password, and & between parameters")
	}
	if u.Scheme == "memory" {
		if u.Path != "" || u.User != nil || u.RawQuery != "" {
			return nil, errors.New("a memory:// URL has at most a name: memory://NAME")
		}
		return newMemory(u.Host, time.Now), nil
	}
	if u.Scheme == "unix" && u.Host != "" {
		return nil, errors.New("a unix:// URL has three slashes before its path: write unix:///tmp/x, not unix://tmp/x")
	}
	scheme, isCluster := clusterScheme(u.Scheme)
	u.Scheme = scheme
	if isCluster {
		if err := checkClusterURL(u); err != nil {
			return nil, err
		}
		o, err := redis.ParseClusterURL(u.String())
		if err := checkParameters(text, u.Query(), err, "client_name", "addr"); err != nil {
			return nil, err
		}
		if u.User == nil {
			o.Username, o.Password, o.CredentialsProvider = credentials(access)
		}
		o.TLSConfig, o.Dialer = secured(o.TLSConfig, access)
		return &cluster.Master{Cluster: wire.NewCluster(*o)}, nil
	}
	o, err := redis.ParseURL(u.String())
	if err := checkParameters(text, u.Query(), err, "client_name", "db"); err != nil {
		return nil, err
	}
	if u.User == nil {
		o.Username, o.Password, o.CredentialsProvider = credentials(access)
	}
	o.TLSConfig, o.Dialer = secured(o.TLSConfig, access)
	return wire.New(*o), nil
}

// clusterScheme returns go-redis's scheme for a URL's scheme, and whether the URL is for a Redis Cluster.
func clusterScheme(scheme string) (plain string, isCluster bool) {
	if rest, ok := strings.CutPrefix(scheme, "valkey"); ok {
		scheme = "redis" + rest
	}
	plain, isCluster = strings.CutSuffix(scheme, "-cluster")
	if isCluster && plain != "redis" && plain != "rediss" {
		return scheme, false
	}
	return plain, isCluster
}

// checkClusterURL removes the parts without effect from the URL of a Redis Cluster, and returns an error if the rest is wrong.
func checkClusterURL(u *url.URL) error {
	query := u.Query()
	for _, db := range append(query["db"], strings.Trim(u.Path, "/")) {
		if db != "" && db != "0" {
			return errors.New("a Redis Cluster has no database but 0: leave it out of the URL")
		}
	}
	if u.Hostname() == "" {
		return errors.New("the URL of a Redis Cluster names none of its nodes: want redis-cluster://host:port")
	}
	for _, addr := range query["addr"] {
		host, port, err := net.SplitHostPort(addr)
		if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || host == "" || strings.ContainsAny(host, "@/,; ") {
			return errors.New("addr in the URL of a Redis Cluster is another of its nodes: want addr=host:port, once for each, without user and password")
		}
	}
	query.Del("db")
	u.Path, u.RawQuery = "", query.Encode()
	return nil
}

// checkParameters returns an error if a URL has wrong parameters. err is go-redis's error of parsing the URL, or nil.
func checkParameters(text string, query url.Values, err error, allowed ...string) error {
	names, unknown := unknownParameters(text, err)
	switch {
	case unknown && slices.Contains(strings.Split(names, ", "), "addr"):
		return errors.New("addr is for a Redis Cluster: write redis-cluster://host:port?addr=host:port, or each independent server as a URL of its own")
	case unknown:
		return fmt.Errorf("its URL has unknown parameters: %s", names)
	case err != nil:
		return errors.New("not a URL of a Redis server (not shown, it may contain a password); " + urlForms)
	}
	for name := range query {
		switch {
		case slices.Contains(allowed, name):
		case name == "skip_verify":
			return errors.New("skip_verify doesn't belong in a URL: trust the server's certificate authority instead, in Caddy with tls { trust_pool … }, in Go with WithTLS")
		default:
			return fmt.Errorf("the parameter %s of its URL has no effect here: a master has one connection without retries, and its time-out is that of the locks", name)
		}
	}
	return nil
}

// credentials returns the present credentials, and a function that returns those of the time when it is called.
func credentials(access func() inside.Access) (username, password string, provider func() (string, string)) {
	provider = func() (string, string) {
		now := access()
		return now.Username, now.Password
	}
	username, password = provider()
	return username, password, provider
}

// secured returns the present TLS settings for a URL that go-redis has parsed into own, and a dialer with those of the time when it is called. Both
// are nil if the URL doesn't ask for TLS; the dialer is also nil if the settings are the default ones.
func secured(own *tls.Config, access func() inside.Access) (config *tls.Config, dialer func(ctx context.Context, network, addr string) (net.Conn, error)) {
	if own == nil || access().TLS == nil {
		return own, nil
	}
	now := func() *tls.Config {
		secure := access().TLS.Clone()
		secure.ServerName = cmp.Or(secure.ServerName, own.ServerName)
		return secure
	}
	return now(), func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&tls.Dialer{Config: now()}).DialContext(ctx, network, addr)
	}
}

// whatToWrite returns advice for a text that is no URL, or that go-redis would take for a different server: redis:6379 for localhost, redis://a,b for
// a host of that name. The advice repeats only IP addresses from the text, because everything else may be a password. It is empty if the text looks
// like a URL.
func whatToWrite(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	_, isCluster := clusterScheme(scheme)
	switch {
	case text == "":
		return "its URL is empty: is a variable unset?"
	case found && strings.Contains(scheme, "sentinel"):
		return sentinelAdvice
	case found && strings.Contains(scheme, "cluster") && !isCluster:
		return "write redis-cluster://host:port for a Redis Cluster, and rediss-cluster:// for TLS"
	case !found:
		rest = text
	case !strings.HasPrefix(scheme, "redis") && !strings.HasPrefix(scheme, "valkey"):
		return ""
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	host := rest[strings.LastIndex(rest, "@")+1:]
	address := ipAddress(host)
	switch {
	case isCluster && strings.ContainsAny(host, ",; "):
		return "not one URL: write the other nodes of a Redis Cluster as redis-cluster://host:port?addr=host:port&addr=host:port"
	case strings.ContainsAny(host, ",; "):
		return "not one URL: separate masters with spaces, not commas, and write each as redis://host:port"
	case !found && address != "" && host == text:
		return "its URL has no scheme: write redis://" + address
	case !found:
		return "its URL has no scheme: write redis:// in front of it; " + urlForms
	case strings.HasPrefix(address, "[") && !strings.HasPrefix(host, "["):
		return "an IPv6 address in a URL needs brackets: write " + address
	}
	return ""
}

// ipAddress returns an IP address and its port in the form of a URL, or "" for other texts. In an IPv6 address without brackets, four or five digits
// at the end count as a port.
func ipAddress(host string) string {
	ip, port, err := net.SplitHostPort(host)
	if err != nil {
		ip, port = strings.Trim(host, "[]"), "6379"
		if i := strings.LastIndexByte(host, ':'); i > 0 && len(host)-i > 4 {
			if _, err := netip.ParseAddr(host[:i]); err == nil {
				ip, port = host[:i], host[i+1:]
			}
		}
	}
	address, err := netip.ParseAddrPort(net.JoinHostPort(ip, port))
	if err != nil || address.Addr().Zone() != "" {
		return ""
	}
	return address.String()
}

// unknownParameters returns the names of the parameters that go-redis doesn't know. It returns none if there is an @ behind the question mark,
// because the names may then be part of a password.
func unknownParameters(text string, err error) (names string, ok bool) {
	if err == nil {
		return "", false
	}
	_, query, _ := strings.Cut(text, "?")
	names, ok = strings.CutPrefix(err.Error(), "redis: unexpected option: ")
	return names, ok && !strings.Contains(query, "@")
}

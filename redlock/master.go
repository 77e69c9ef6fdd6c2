package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	wire "github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// Master is one independent lock server, for New. [Dial], [NewMaster] and [NewMemoryMaster] make them.
type Master struct{ impl protocol.Master }

// String names the master as logs and errors do. It contains no credentials.
func (m Master) String() string {
	if m.impl == nil {
		return "no master"
	}
	return m.impl.String()
}

// server names the server and its database: with another one it has other keys.
func (m Master) server() string {
	if n := m.impl.Capabilities().Database; n > 0 {
		return fmt.Sprintf("%s/%d", m, n)
	}
	return m.String()
}

func (m Master) inMemory() bool { return m.impl.Capabilities().Local }

func (m Master) close() error {
	if m.impl == nil {
		return nil
	}
	return m.impl.Close()
}

// NewMaster returns a master of the server that a client is configured for. It takes the client's
// address, credentials, TLS and dialer, but opens one connection of its own, without retries and
// with other timeouts: an ordered stream of commands needs that. The client itself, with its hooks, is neither used nor
// closed. A *redis.ClusterClient makes one master of a whole cluster. Other kinds of clients are
// refused, and so is one of a Sentinel group: a replica that Sentinel promotes may lack the newest
// locks, and a process that starts after that can't know of it.
func NewMaster(client redis.UniversalClient) (Master, error) {
	switch c := client.(type) {
	case *redis.Client:
		if c.Options().Addr == failoverAddr {
			return Master{}, errSentinel
		}
		return Master{wire.New(*c.Options())}, nil
	case *redis.ClusterClient:
		if len(c.Options().Addrs) == 0 { // as of NewFailoverClusterClient
			return Master{}, errors.New("redlock: this redis.ClusterClient names no node of a cluster; a Sentinel group is none: name independent servers")
		}
		return Master{link.NewClusterMaster(wire.NewCluster(*c.Options()))}, nil
	}
	return Master{}, fmt.Errorf("redlock: a master can't be made of a %T; give a *redis.Client or a *redis.ClusterClient", client)
}

// failoverAddr is what redis.NewFailoverClient has for an address.
const failoverAddr = "FailoverClient"

var errSentinel = errors.New("redlock: a redis.FailoverClient is no master: " + sentinelAdvice)

// Examination is what Examine finds: what the command doctor judges. Its fields may change.
type Examination = wire.Examination

// Examine looks at the master's server for the command doctor, and waits for each reply for as long as it has patience. It takes no lock. On
// the server it writes one key, of a name that nobody else uses, and removes it.
func (m Master) Examine(ctx context.Context, prefix string, patience time.Duration) *Examination {
	if server, ok := m.impl.(*wire.Master); ok {
		return server.Examine(ctx, prefix, patience)
	}
	return &Examination{Unexaminable: true}
}

// NewMemoryMaster returns a master in this process's own memory: for a single process, and for tests.
// Its locks are seen only by the Locker that owns it. Dial makes one of "memory://" or, where there
// are several, of "memory://NAME".
func NewMemoryMaster(name string) Master { return Master{memory.New(name, time.Now)} }

// Open returns a Locker on the masters with these URLs: it is Dial followed by New. One master is enough
// for development; three or five independent servers survive the loss of one or two.
func Open(urls []string, opts ...Option) (*Locker, error) {
	masters, err := Dial(urls...)
	if err != nil {
		return nil, err
	}
	return New(masters, opts...)
}

// Dial returns a master for each URL, for New:
//
//	redis://[user:password@]host[:port][/db]    a Redis server; the port is 6379 by default
//	rediss://...                                the same over TLS
//	valkey://... and valkeys://...              other names for redis:// and rediss://
//	unix:///path/to/socket                      a Redis server at a Unix domain socket
//	memory:// or memory://name                  a master in the memory of this process, for one process and for tests
//
// A URL may have the parameters client_name, db and protocol. The others of go-redis, such as
// pool_size and read_timeout, are refused because they would have no effect: a Locker has one connection to each master for locks,
// one for results while there are any, and WithTimeout. For a private certificate authority or a client certificate see NewMaster.
//
// Dial does not connect: New does. A server that is named twice is an error, and so is memory:// beside a server. Errors refer to a URL by its
// position in the list, because it may contain a password.
func Dial(urls ...string) ([]Master, error) {
	masters := make([]Master, 0, len(urls))
	for i, u := range urls {
		m, err := dial(u)
		if err != nil {
			return nil, fmt.Errorf("redlock: master %d of %d: %w", i+1, len(urls), err)
		}
		masters = append(masters, Master{m})
	}
	return masters, checkMasters(masters)
}

const sentinelAdvice = "Sentinel is not supported: a replica that it promotes may lack the newest locks, which would be given twice; " +
	"name three or five independent servers, each by its own address, as redis://host:port"

const urlForms = "want redis://host:port or valkey://host:port, rediss:// or valkeys:// for TLS, unix:///path or memory://"

func dial(text string) (protocol.Master, error) {
	if advice := whatToWrite(text); advice != "" {
		return nil, errors.New(advice)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a valid URL (not shown, it may contain a password); " + urlForms)
	}
	if u.Scheme == "memory" {
		if u.Path != "" || u.User != nil || u.RawQuery != "" {
			return nil, errors.New("a memory:// URL has at most a name: memory://NAME")
		}
		return memory.New(u.Host, time.Now), nil
	}
	if u.Scheme == "unix" && u.Host != "" {
		return nil, errors.New("a unix:// URL has three slashes before its path: write unix:///tmp/x, not unix://tmp/x")
	}
	if scheme, ok := strings.CutPrefix(u.Scheme, "valkey"); ok {
		u.Scheme = "redis" + scheme
	}
	o, err := redis.ParseURL(u.String())
	if names, ok := unknownParameters(text, err); ok {
		return nil, fmt.Errorf("its URL has unknown parameters: %s", names)
	}
	if err != nil {
		return nil, errors.New("not a URL of a Redis server (not shown, it may contain a password); " + urlForms)
	}
	for name := range u.Query() {
		switch name {
		case "client_name", "protocol", "db":
		case "skip_verify":
			return nil, errors.New("skip_verify doesn't belong in a URL: trust the server's certificate authority instead, in Caddy with tls { trust_pool … }, in Go with NewMaster")
		default:
			return nil, fmt.Errorf("the parameter %s of its URL has no effect here: a master has one connection without retries, and its time-out is that of the locks", name)
		}
	}
	return wire.New(*o), nil
}

// whatToWrite returns advice for a text that is no URL, or that would be read as another server's: redis:6379 as localhost,
// redis://a,b as a host of that name. The advice contains nothing of the text but IP addresses, as all else may be a password.
// It is empty for a text that looks like a URL.
func whatToWrite(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case found && strings.Contains(scheme, "sentinel"):
		return sentinelAdvice
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

// ipAddress returns an IP address and its port as a URL spells them, or "" for other texts. In an IPv6 address without brackets,
// four or five digits at the end are taken for a port.
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

// unknownParameters returns the names of the parameters that go-redis does not know. It returns none if there is an @ behind
// the question mark: then they may be a part of a password.
func unknownParameters(text string, err error) (names string, ok bool) {
	if err == nil {
		return "", false
	}
	_, query, _ := strings.Cut(text, "?")
	names, ok = strings.CutPrefix(err.Error(), "redis: unexpected option: ")
	return names, ok && !strings.Contains(query, "@")
}

package redlock

import (
	"errors"
	"fmt"
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

func (m Master) close() error {
	if m.impl == nil {
		return nil
	}
	return m.impl.Close()
}

// NewMaster returns a master of the server that a client is configured for. It takes the client's
// address, credentials, TLS and dialer, but opens one connection of its own, without retries and
// with other timeouts: an ordered stream of commands needs that. The client itself is neither used nor
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

// NewMemoryMaster returns a master in this process's own memory: for a single process, and for tests.
// Its locks are seen only by the Locker that owns it. Dial makes one of "memory://" or, where there
// are several, of "memory://NAME".
func NewMemoryMaster(name string) Master { return Master{memory.New(name, time.Now)} }

package redlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	dialTimeout = time.Second
	// poolSize is one more than the connections there are: after as many failed dials go-redis
	// begins to dial in the background, in a goroutine that outlives its client, and ours is renewed
	// after one.
	poolSize = 2
	// answerTimeout is how long a connection waits for an answer. It is no caller's time-out: those
	// are short, and apart. As long as the connection lasts, a server that was hung reads our
	// commands in their order, so that each late acquire is followed by its release.
	answerTimeout = 30 * time.Second
)

// NewMaster makes a master of the server that a client is configured for. It takes the client's
// address, credentials, TLS and dialer, but opens one connection of its own, without retries and
// with other timeouts: an ordered stream of commands needs that. The client itself is not used, nor
// closed. A *redis.ClusterClient makes one master of a whole cluster. Other kinds of clients are
// refused.
func NewMaster(client redis.UniversalClient) (Master, error) {
	switch c := client.(type) {
	case *redis.Client:
		return newRedisMaster(*c.Options()), nil
	case *redis.ClusterClient:
		return newClusterMaster(*c.Options()), nil
	}
	return nil, fmt.Errorf("redlock: a master can't be made of a %T; give a *redis.Client or a *redis.ClusterClient", client)
}

// redisMaster is a Redis server, or a cluster, as a master.
type redisMaster struct {
	name    string
	open    func(dialer) redis.UniversalClient // with this dialer
	dial    dialer                             // as the client was configured
	admit   func(server) error
	scripts *scriptSet

	answers []redis.Cmd // of a Do, kept for their room

	mu     sync.Mutex
	client redis.UniversalClient // nil until the first Do, and after a failed connect
	closed bool
}

func newRedisMaster(o redis.Options) Master {
	m := &redisMaster{name: serverName(&o), admit: anyServer, scripts: serverScripts}
	o.OnConnect = m.greetAfter(o.OnConnect)
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = dialTimeout, answerTimeout, answerTimeout
	o.ContextTimeoutEnabled = false
	o.PoolSize, o.MaxActiveConns, o.MinIdleConns, o.PipelinePoolSize = poolSize, 1, 0, -1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	m.dial = o.Dialer
	if m.dial == nil {
		m.dial = redis.NewDialer(&o)
	}
	m.open = func(dial dialer) redis.UniversalClient {
		fresh := o
		fresh.Dialer = dial
		return redis.NewClient(&fresh)
	}
	return m
}

func newClusterMaster(o redis.ClusterOptions) Master {
	m := &redisMaster{name: "redis-cluster://" + strings.Join(o.Addrs, ","), admit: anyServer, scripts: clusterScripts}
	o.OnConnect = m.greetAfter(o.OnConnect)
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	o.MaxRetries = -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = dialTimeout, answerTimeout, answerTimeout
	o.ContextTimeoutEnabled = false
	o.PoolSize, o.MaxActiveConns, o.MinIdleConns = poolSize, 1, 0
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	m.dial = o.Dialer
	if m.dial == nil {
		m.dial = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	}
	m.open = func(dial dialer) redis.UniversalClient {
		fresh := o
		fresh.Dialer = dial
		return redis.NewClusterClient(&fresh)
	}
	return m
}

// serverName names a server by its address, without credentials or database: these don't make
// another server of it.
func serverName(o *redis.Options) string {
	scheme := "redis"
	switch {
	case o.Network == "unix":
		scheme = "unix"
	case o.TLSConfig != nil:
		scheme = "rediss"
	}
	return scheme + "://" + o.Addr
}

func (m *redisMaster) String() string { return m.name }

// anyServer admits all: it is for a master that is used without a Locker.
func anyServer(server) error { return nil }

func (m *redisMaster) admitWith(admit func(server) error) { m.admit = admit }

// Close ends the connection, and with it a Do under way.
func (m *redisMaster) Close() error {
	m.mu.Lock()
	client := m.client
	m.client, m.closed = nil, true
	m.mu.Unlock()
	if client == nil {
		return nil
	}
	return client.Close()
}

func (m *redisMaster) connection() (redis.UniversalClient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	if m.client == nil {
		m.client = m.open(m.dial.rested)
	}
	return m.client, nil
}

// reset makes the next Do start with a new client: go-redis's own pool, once a dial has failed,
// waits up to a second before it dials again.
func (m *redisMaster) reset() {
	m.mu.Lock()
	client := m.client
	m.client = nil
	m.mu.Unlock()
	if client != nil {
		_ = client.Close() // it has no connection
	}
}

func (m *redisMaster) Do(cmds []*Command) {
	client, err := m.connection()
	if err != nil {
		for _, cmd := range cmds {
			cmd.Reply.Err = unsent(err)
		}
		return
	}
	m.send(client, cmds, false)
	if errors.Is(cmds[0].Reply.Err, errClosed) {
		m.send(client, cmds, false)
	}

	// Where somebody waits by now, or the key is not the token's, the cheap release has done nothing.
	m.repeat(client, cmds, false, func(cmd *Command) bool {
		inVain := cmd.Alone && cmd.Reply.Status == StatusExpired
		if inVain {
			cmd.Alone, cmd.args = false, nil
		}
		return inVain
	})
	// A server that doesn't know the scripts yet (new, restarted, or after SCRIPT FLUSH) has done nothing.
	m.repeat(client, cmds, true, func(cmd *Command) bool {
		return cmd.Reply.Err != nil && redis.HasErrorPrefix(cmd.Reply.Err, "NOSCRIPT")
	})
	if errors.Is(cmds[0].Reply.Err, errUnreachable) {
		m.reset()
	}
}

// repeat sends commands of a batch again, after others of it that came behind them: those that had no effect,
// and acquires that were refused because they overtook such a release. There is no other order to keep: a
// release is never in the same batch as its acquire.
func (m *redisMaster) repeat(client redis.UniversalClient, cmds []*Command, whole bool, hadNoEffect func(*Command) bool) {
	var again []*Command
	for _, cmd := range cmds {
		overtook := func(release *Command) bool { return release.Op == OpRelease && release.Token == cmd.Reply.Holder }
		if hadNoEffect(cmd) || cmd.Reply.Status == StatusHeld && slices.ContainsFunc(again, overtook) {
			again = append(again, cmd)
		}
	}
	if len(again) > 0 {
		m.send(client, again, whole)
	}
}

// greetAfter greets a server after what the client was configured to do first.
func (m *redisMaster) greetAfter(connected func(context.Context, *redis.Conn) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		if connected != nil {
			if err := connected(ctx, cn); err != nil {
				return err
			}
		}
		return m.greet(ctx, cn)
	}
}

// greet asks a server who it is. It runs at each new connection, before any command.
func (m *redisMaster) greet(ctx context.Context, cn *redis.Conn) error {
	info := make(map[string]string)
	for _, section := range []string{"server", "replication", "memory"} {
		text, err := cn.Info(ctx, section).Result()
		var refused redis.Error
		if err != nil && !errors.As(err, &refused) {
			return err
		}
		maps.Insert(info, infoFields(text))
	}
	uptime, err := strconv.Atoi(info["uptime_in_seconds"])
	if err != nil {
		uptime = -1
	}
	return m.admit(server{
		runID:           info["run_id"],
		uptime:          time.Duration(uptime) * time.Second,
		role:            info["role"],
		maxmemoryPolicy: info["maxmemory_policy"],
	})
}

// infoFields reads the "name:value" lines of Redis's INFO.
func infoFields(text string) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			if ok && !yield(name, value) {
				return
			}
		}
	}
}

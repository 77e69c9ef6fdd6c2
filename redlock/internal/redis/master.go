// Package redis makes a Redis server, or a node of a Redis Cluster, a master. It has the scripts that lock, and all code for the connection to the
// server. go-redis authenticates and greets on a connection that this package has made. After that, this package writes commands and reads replies
// directly, so that several batches can be under way.
package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// longest bounds how long go-redis waits while it makes a connection. The caller's context usually ends earlier.
const longest = time.Minute

// poolSize is one more than the number of a client's connections. After poolSize failed dials, go-redis begins to dial in the background, in a
// goroutine that outlives the client.
const poolSize = 2

// Master makes a Redis server one of a Locker's masters: it implements protocol.Master. The name doesn't refer to the server's role in replication.
type Master struct {
	name    string
	options redis.Options
	dial    dialer // the dialer of the options, or the default
	scripts *scriptSet

	doing protocol.Conn
}

// New returns a master for the server that a client with these options would use. It changes its copy of the options: one connection, and no retries.
func New(o redis.Options) *Master {
	m := &Master{name: serverName(&o), scripts: serverScripts}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DisableIdentity = true // saves a round trip
	o.Protocol = 2           // RESP2, which has no push messages: if go-redis can't read one, it writes to standard error
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = longest, longest, longest
	o.ContextTimeoutEnabled = false
	o.PoolSize, o.MaxActiveConns, o.MinIdleConns, o.PipelinePoolSize = poolSize, 1, 0, -1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	m.dial = o.Dialer
	if m.dial == nil {
		m.dial = dialerFor(o.TLSConfig)
	}
	m.options = o
	return m
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// dialerFor returns a dialer whose TLS handshake also ends when the context does. go-redis's own dialer ignores the context during the handshake.
func dialerFor(secure *tls.Config) dialer {
	if secure == nil {
		return new(net.Dialer).DialContext
	}
	return (&tls.Dialer{Config: secure}).DialContext
}

// open makes a network connection to the server before go-redis asks for one, because go-redis's pool writes a line to standard error for each failed
// dial. Only a logger for the whole process can change that. If the context ends, open returns without waiting for a dialer that ignores the context.
func (m *Master) open(ctx context.Context) (net.Conn, error) {
	type result struct {
		raw net.Conn
		err error
	}
	dialed := make(chan result)
	go func() {
		raw, err := m.dial(ctx, cmp.Or(m.options.Network, "tcp"), m.options.Addr)
		select {
		case dialed <- result{raw, err}:
		case <-ctx.Done():
			if err == nil {
				_ = raw.Close()
			}
		}
	}()
	select {
	case r := <-dialed:
		return r.raw, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serverName names a server by its address, without credentials or database, because one server must not have two names.
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

func (m *Master) String() string { return m.name }

func (m *Master) Addr() string { return m.options.Addr }

func (m *Master) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true, Several: true, Database: m.options.DB, Certificate: m.certificate}
}

// Do executes one batch. Only tests call it; a Locker calls Connect.
func (m *Master) Do(cmds []*protocol.Command) {
	err := m.ensure()
	if err == nil {
		if _, err = m.doing.Send(cmds); err == nil {
			if err = m.doing.Receive(cmds); err == nil {
				return
			}
		}
		_ = m.Close()
	}
	for _, cmd := range cmds {
		cmd.Reply = protocol.Reply{Err: err}
	}
}

func (m *Master) ensure() (err error) {
	if m.doing == nil {
		m.doing, err = m.Connect(context.Background(), nil)
	}
	return err
}

// Close ends the connection of Do.
func (m *Master) Close() error {
	if m.doing != nil {
		m.doing.Close()
		m.doing = nil
	}
	return nil
}

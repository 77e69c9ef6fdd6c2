package redlock_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// tunnel makes connections whose Write blocks while it is stuck, as that of a tunnel may which has no buffers.
type tunnel struct {
	mu      sync.Mutex
	blocked chan struct{} // closed when it is not stuck
}

type tunnelConn struct {
	net.Conn
	tunnel *tunnel
}

func (c tunnelConn) Write(b []byte) (int, error) {
	c.tunnel.mu.Lock()
	blocked := c.tunnel.blocked
	c.tunnel.mu.Unlock()
	<-blocked
	return c.Conn.Write(b)
}

func (u *tunnel) stick() (free func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	blocked := make(chan struct{})
	u.blocked = blocked
	return func() { close(blocked) }
}

func (u *tunnel) master(t *testing.T, s *redistest.Server) redlock.Master {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return tunnelConn{raw, u}, nil
	}})
	t.Cleanup(func() { _ = client.Close() })
	m, err := redlock.NewMaster(client)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWriteBlocks: a dialer's connection that takes no bytes holds up neither calls, which are sent through it for ever
// otherwise, nor leases.
func TestWriteBlocks(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	servers := redistest.Start(t, 3)
	var u tunnel
	u.stick()() // it is free
	masters, err := redlock.Dial(redistest.URLs(servers[:2])...)
	if err != nil {
		t.Fatal(err)
	}
	l := lockerOn(t, append(masters, u.master(t, servers[2])), redlock.WithTTL(ttl), redlock.WithTimeout(ttl/2))
	held := mustLock(t, l, "held")
	lockUnlock(t, l, "key")
	free := u.stick()
	unstick := sync.OnceFunc(free)
	defer unstick()
	for range 3 {
		done := make(chan error, 1)
		go func() {
			lock, err := l.Lock(t.Context(), "key")
			if err == nil {
				err = lock.Unlock()
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
				t.Errorf("a turn by the other two masters: %v", err)
			}
		case <-time.After(bound):
			t.Fatal("a call is held up by one master")
		}
	}
	for until := held.Until(); !held.Until().After(until.Add(ttl)); time.Sleep(ttl / 100) { // three renewals later
		if err := held.Err(); err != nil {
			t.Fatalf("the lock has ended: %v", err)
		}
	}
	unstick()
	mustUnlock(t, held)
	eventually(t, bound, "all keys are free", func() bool {
		for _, s := range servers {
			if s.Client().Exists(t.Context(), "redlock:{key}", "redlock:{held}").Val() > 0 {
				return false
			}
		}
		return true
	})
}

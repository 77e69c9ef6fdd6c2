package redlock_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// address is an address behind which one server can take another's place.
type address struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    map[net.Conn]bool
}

func newAddress(t *testing.T, to *redistest.Server) *address {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &address{listener: listener, to: to.Addr(), conns: make(map[net.Conn]bool)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { a.forward(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		a.leadTo(to)
		all.Wait()
	})
	return a
}

func (a *address) url() string { return "redis://" + a.listener.Addr().String() }

// forward connects a client to the server that is behind the address now.
func (a *address) forward(client net.Conn) {
	a.mu.Lock()
	server, err := net.Dial("tcp", a.to)
	if err != nil {
		a.mu.Unlock()
		_ = client.Close()
		return
	}
	a.conns[client], a.conns[server] = true, true
	a.mu.Unlock()
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		})
	}
	both.Wait()
	a.mu.Lock()
	delete(a.conns, client)
	delete(a.conns, server)
	a.mu.Unlock()
}

// leadTo puts another server behind the address, and breaks all connections.
func (a *address) leadTo(s *redistest.Server) { a.lead(s.Addr()) }

// leadNowhere breaks all connections, and lets no other be made.
func (a *address) leadNowhere() { a.lead("") }

func (a *address) lead(to string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to = to
	for conn := range a.conns {
		_ = conn.Close()
	}
}

// behindAddresses puts the first three of these servers behind addresses.
func behindAddresses(t *testing.T, servers []*redistest.Server) (addresses []*address, urls []string) {
	for _, s := range servers[:3] {
		a := newAddress(t, s)
		addresses, urls = append(addresses, a), append(urls, a.url())
	}
	return addresses, urls
}

const movedTTL = 2 * time.Second

func movable(d *diary, guard time.Duration) []redlock.Option {
	return []redlock.Option{redlock.WithTTL(movedTTL), redlock.WithMaxTTL(movedTTL), redlock.WithTimeout(movedTTL / 4),
		redlock.WithRestartGuard(guard), d.option()}
}

// lockEverywhere takes a lock and waits until all servers have it, so that the Locker has reached each of them. A
// server that it reaches for the first time after a move would not be one that has changed.
func lockEverywhere(t *testing.T, l *redlock.Locker, servers []*redistest.Server) *redlock.Lock {
	t.Helper()
	lock := mustLock(t, l, "key")
	for _, s := range servers {
		eventually(t, bound, "the lock is on "+s.Addr(), func() bool {
			if lock.Err() != nil { // its lease is short, and the machine busy
				lock = mustLock(t, l, "key")
			}
			return s.Client().Exists(t.Context(), "redlock:{key}").Val() == 1
		})
	}
	return lock
}

// TestAnotherServerBehindAnAddress moves two of three addresses, as failovers do, to servers that have been running
// for long and have no locks.
func TestAnotherServerBehindAnAddress(t *testing.T) {
	t.Parallel()
	for name, guard := range map[string]time.Duration{"guard": movedTTL + time.Second, "no guard": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d, holders diary
			servers := redistest.Start(t, 5)
			waitForUptime(t, servers, movedTTL+time.Second)
			addresses, urls := behindAddresses(t, servers)
			others := newLocker(t, urls, movable(&d, guard)...)
			unlocked(t, lockEverywhere(t, others, servers[:3]))
			lock := lockEverywhere(t, newLocker(t, urls, movable(&holders, guard)...), servers[:3])
			moved := time.Now()
			addresses[0].leadTo(servers[3])
			addresses[1].leadTo(servers[4])
			var second *redlock.Lock
			eventually(t, bound, "the lock is free again", func() bool {
				valid := lock.Err() == nil // before the other asks
				second = tryLock(t, others, "key")
				if second != nil && valid && time.Now().Before(lock.Until()) {
					t.Fatalf("a second holder after %v, the first is valid for %v", time.Since(moved), time.Until(lock.Until()))
				}
				return second != nil
			})
			if second.Fence() <= lock.Fence() {
				t.Errorf("fence %d after %d", second.Fence(), lock.Fence())
			}
			unlocked(t, second)
			for _, url := range urls[:2] {
				d.expect(t, "down", url, redlock.ErrReplaced)
				eventually(t, bound, "the other server votes", func() bool {
					lockUnlock(t, others, "key")
					return !d.upAfter(url, redlock.ErrReplaced).IsZero()
				})
				if up := d.upAfter(url, redlock.ErrReplaced); up.Before(moved.Add(movedTTL)) {
					t.Errorf("the other server votes after %v, want not before the max TTL", up.Sub(moved))
				}
			}
			redistest.RequireNoKeys(t, servers[2:])
		})
	}
}

// TestServersSwapAddresses: two servers that have swapped their addresses vote again after the guard.
func TestServersSwapAddresses(t *testing.T) {
	t.Parallel()
	var d diary
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, movedTTL+time.Second)
	addresses, urls := behindAddresses(t, servers)
	l := newLocker(t, urls, movable(&d, movedTTL+time.Second)...)
	unlocked(t, lockEverywhere(t, l, servers))
	addresses[0].leadTo(servers[1])
	addresses[1].leadTo(servers[0])
	for _, url := range urls[:2] {
		eventually(t, bound, "the swap is noticed", func() bool {
			_ = tryLock(t, l, "other") // there may be no quorum
			return len(d.find("down", url, redlock.ErrReplaced)) > 0
		})
	}
	for _, url := range urls[:2] {
		eventually(t, 2*bound, "the server votes under its new name", func() bool {
			_ = tryLock(t, l, "other")
			return len(d.find("up", url, nil)) > 0
		})
	}
	addresses[2].leadTo(servers[2])
	servers[2].Kill()
	eventually(t, bound, "the two are a quorum", func() bool {
		lock := tryLock(t, l, "key")
		if lock != nil {
			unlocked(t, lock)
		}
		return lock != nil
	})
}

// TestClockSetForwardAfterRestart: a server that has forgotten its locks doesn't vote early because its clock is
// set forward.
func TestClockSetForwardAfterRestart(t *testing.T) {
	t.Parallel()
	const guard = movedTTL + time.Second
	var d diary
	servers, set := withFakedClock(t)
	waitForUptime(t, servers, guard)
	l := newLocker(t, redistest.URLs(servers), movable(&d, guard)...)
	unlocked(t, lockEverywhere(t, l, servers))
	servers[0].Kill()
	restarted := time.Now() // at the earliest
	servers[0].Restart()
	set(time.Minute, 0)
	eventually(t, 2*bound, "the master votes again", func() bool {
		lockUnlock(t, l, "key")
		return !d.upAfter(servers[0].URL(), redlock.ErrRestarted).IsZero()
	})
	if up := d.upAfter(servers[0].URL(), redlock.ErrRestarted); up.Before(restarted.Add(movedTTL)) {
		t.Errorf("it votes %v after its restart, want not before the max TTL", up.Sub(restarted))
	}
}

// TestClockSetBackSinceStart: a server whose uptime is negative waits for the guard and no longer, or not at all.
func TestClockSetBackSinceStart(t *testing.T) {
	t.Parallel()
	servers, set := withFakedClock(t)
	waitForUptime(t, servers[:1], 2*time.Second)
	set(-time.Hour, 0)
	eventually(t, bound, "the uptime is negative", func() bool {
		return strings.Contains(servers[0].Client().Info(t.Context(), "server").Val(), "uptime_in_seconds:-")
	})
	url := servers[0].URL()
	var d diary
	l := newLocker(t, []string{url}, movable(&d, 0)...)
	lockUnlock(t, l, "key")
	mustClose(t, l) // then all is told
	if down := d.find("down", "", redlock.ErrRestarted); len(down) > 0 {
		t.Errorf("down without a guard: %v", down)
	}
	l = newLocker(t, []string{url}, movable(&d, movedTTL+time.Second)...)
	lockUnlock(t, l, "key")
	mustClose(t, l)
	if down := d.find("down", url, redlock.ErrRestarted); len(down) != 1 {
		t.Errorf("down %v, want once, for the guard", d.find("down", "", nil))
	}
}

// TestGuardOffWithoutInfo: without the guard, a server need not report its uptime.
func TestGuardOffWithoutInfo(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	var log logBook
	var right []string
	for _, r := range redistest.LeastRights(t) {
		if r != "+info" {
			right = append(right, r)
		}
	}
	l := newLocker(t, asUser(t, servers, right), log.option())
	lockUnlock(t, l, "key")
	log.expect(t, "level=WARN", servers[0].Addr(), "INFO")
}

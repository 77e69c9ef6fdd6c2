package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// asUser makes a user with these rights on servers that don't know the scripts yet, and gives its URLs.
func asUser(t *testing.T, servers []*redistest.Server, rights []string) (urls []string) {
	t.Helper()
	for _, s := range servers {
		if err := s.Client().ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		line := append([]string{"reset", "on", ">secret"}, rights...)
		if err := s.Client().ACLSetUser(t.Context(), "locks", line...).Err(); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, strings.Replace(s.URL(), "//", "//locks:secret@", 1))
	}
	return urls
}

// TestRecallWithoutHStrLen: a result is found even for a user who lacks this right. Otherwise a repeat would have no quorum, and might run again.
func TestRecallWithoutHStrLen(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	leaveResult(t, newLocker(t, redistest.URLs(servers)), "k", "paid")
	l := newLocker(t, asUser(t, servers, []string{"~redlock:*", "&redlock:wake:*", "+@all", "-hstrlen"}))
	if done := recalled(t, l, "k"); string(done.Result) != "paid" {
		t.Errorf("%q", done.Result)
	}
}

// TestMoreRights: what some settings need beside the least, and nothing of it is too much. docs/masters.md has the same table.
func TestMoreRights(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		with   string // the end of the URL
		prefix string
		more   []string
	}{
		{name: "another database", with: "/1", more: []string{"+select"}},
		{name: "a client name", with: "/0?client_name=locks", more: []string{"+client|setname"}},
		{name: "another prefix", prefix: "shop:locks", more: []string{"~shop:locks:*", "&shop:locks:wake:*"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			servers := serversThatVote(t)
			for _, s := range servers { // nor are they new to this prefix and database
				key := "redlock:processes:{processes}"
				if err := errors.Join(s.Client().Copy(t.Context(), key, key, 1, false).Err(), s.Client().Copy(t.Context(), key, cmp.Or(test.prefix, "shop")+":processes:{processes}", 0, false).Err()); err != nil {
					t.Fatal(err)
				}
			}
			for i := -1; i < len(test.more); i++ {
				leastRights := redistest.LeastRights(t)
				rights := slices.Concat(leastRights, test.more)
				if i >= 0 {
					rights = slices.Delete(rights, len(leastRights)+i, len(leastRights)+i+1)
				}
				urls := asUser(t, servers, rights)
				for i := range urls {
					urls[i] += test.with
				}
				var opts []redlock.Option
				if test.prefix != "" {
					opts = append(opts, redlock.WithPrefix(test.prefix))
				}
				if i < 0 {
					requireFullTurn(t, urls, opts...)
				} else if len(fullTurn(t, turnTTL, urls, opts...)) == 0 {
					t.Errorf("without %s all works as well", test.more[i])
				}
			}
		})
	}
}

// TestClusterRights: a Redis Cluster tells its nodes with these, and with any of them taken away not all of it works.
func TestClusterRights(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	leastRights, more := redistest.LeastRights(t), []string{"+cluster|slots", "+cluster|info"}
	for i := -1; i < len(more); i++ {
		rights := slices.Concat(leastRights, more)
		if i >= 0 {
			rights = slices.Delete(rights, len(leastRights)+i, len(leastRights)+i+1)
		}
		asUser(t, nodes, rights)
		var addrs []string
		for _, s := range nodes {
			addrs = append(addrs, s.Addr())
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "locks", Password: "secret"})
		l := lockerOn(t, []redlock.Master{wrap(t, client)})
		var err error
		eventually(t, bound, "the node answers in time", func() bool { // on a busy machine it may not
			_, err = l.TryLock(t.Context(), "key")
			return !errors.Is(err, redlock.ErrNoQuorum) || strings.Contains(err.Error(), "NOPERM")
		})
		if i < 0 && err != nil {
			t.Errorf("with all: %v", err)
		} else if i >= 0 && (err == nil || !strings.Contains(err.Error(), "NOPERM")) {
			t.Errorf("without %s: %v", more[i], err)
		} else if err != nil {
			t.Logf("without %s: %v", more[i], err)
		}
		_ = l.Close()
		_ = client.Close()
	}
}

const turnTTL = 600 * time.Millisecond

// fullTurn locks, meets the held lock as another, which sees who holds it, has the lease renewed, and unlocks, so that one who
// waits is woken. Then it releases a lock by force, and takes one with a long lease. It returns what went wrong, and what was logged.
func fullTurn(t *testing.T, ttl time.Duration, urls []string, more ...redlock.Option) (complaints []string) {
	t.Helper()
	var log logBook
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithTimeout(ttl / 2), redlock.WithMaxTTL(2 * ttl), redlock.WithRestartGuard(2*ttl + time.Second), log.option()}
	opts = append(opts, more...)
	l, other := newLocker(t, urls, opts...), newLocker(t, urls, opts...)
	defer l.Close()
	defer other.Close()
	var mu sync.Mutex
	complain := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		complaints = append(complaints, err.Error())
	}
	lock, err := l.TryLock(t.Context(), "key")
	if err != nil {
		complain(err)
		return complaints
	}
	if _, err := other.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
		complain(errors.Join(errors.New("the second locker"), err))
	}
	if seen, err := inspect.Key(t.Context(), other, "key"); err != nil || seen.Holder != inside.Of(l).Instance || seen.Fence != lock.Fence() {
		complain(fmt.Errorf("inspected: %+v, %w", seen, err))
	}
	via := inside.ViaPolled
	for i := 0; i < 3 && via != inside.ViaWoken && len(complaints) == 0; i++ { // a poll may come just before the release
		if i > 0 {
			if lock, err = l.TryLock(t.Context(), "key"); err != nil {
				complain(err)
				break
			}
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			next, err := other.Lock(ctx, "key")
			if err == nil {
				via = inside.AcquisitionOf(next).Via
				err = next.Unlock()
			}
			if err != nil {
				complain(err)
			}
		})
		select {
		case <-lock.Context().Done():
			complain(lock.Err())
		case <-time.After(2 * ttl):
		}
		err = lock.Unlock()
		waiting.Wait()
		if err != nil {
			complain(err)
		}
	}
	if via != inside.ViaWoken {
		complain(fmt.Errorf("the second locker's turn came %q", via))
	}
	if lock, err := l.TryLock(t.Context(), "key"); err != nil {
		complain(err)
	} else if err := inspect.Force(t.Context(), other, "key", 0, lock.Fence()); err != nil {
		complain(fmt.Errorf("released by force: %w", err))
	} else if err := lock.Unlock(); !errors.Is(err, redlock.ErrNotOwner) && !errors.Is(err, redlock.ErrExpired) {
		complain(fmt.Errorf("unlocked after a forced release: %w", err))
	}
	var done *redlock.DoneError
	if lock, err := l.TryLock(t.Context(), "done"); err != nil {
		complain(err)
	} else if err := lock.UnlockWith([]byte("result"), time.Hour); err != nil {
		complain(fmt.Errorf("unlocked with a result: %w", err))
	} else if _, err := other.TryLock(t.Context(), "done", redlock.WithRecall()); !errors.As(err, &done) || string(done.Result) != "result" {
		complain(fmt.Errorf("recalled: %w", err))
	} else if _, err := inspect.Forget(t.Context(), other, "done"); err != nil {
		complain(fmt.Errorf("forgotten: %w", err))
	}
	_, _ = l.Close(), other.Close() // then all is in the log
	forced := log.lines("lease lost, as its release has found")
	for _, line := range log.lines("level=") {
		if !strings.Contains(line, "3 of 3 masters available") && !(len(forced) == 1 && line == forced[0]) {
			complaints = append(complaints, line)
		}
	}
	if len(complaints) > 0 { // the next try would be warned of the max TTL below, for longer than it takes
		return complaints
	}
	long := newLocker(t, urls, append(more, redlock.WithRestartGuard(0))...) // its leases are long enough for the fence
	defer long.Close()
	for _, key := range []string{"key", "another key"} { // the fence of the first is remembered; the second is new, so that it is released without a script
		if lock, err := long.TryLock(t.Context(), key); err != nil {
			complain(fmt.Errorf("%s with a long lease: %w", key, err))
		} else if err := lock.Unlock(); err != nil {
			complain(fmt.Errorf("%s with a long lease: %w", key, err))
		}
	}
	return complaints
}

// requireFullTurn fails the test unless all works. On a busy machine a lease may be lost or a reply late: then it is tried
// again, with a longer lease.
func requireFullTurn(t *testing.T, urls []string, more ...redlock.Option) {
	t.Helper()
	ttl := turnTTL
	eventually(t, 6*bound, "a turn without complaints", func() bool {
		complaints := fullTurn(t, ttl, urls, more...)
		if len(complaints) > 0 {
			t.Logf("with a TTL of %v: %.1000s", ttl, complaints)
			time.Sleep(ttl)
			ttl = min(2*ttl, longTTL/4)
		}
		return len(complaints) == 0
	})
}

// TestLeastRights has a user with the rights in docs/masters.md and no others do all that a Locker does; and shows that
// none of them is too much. A test of package doctor shows that it names each that is missing.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	servers := serversThatVote(t)
	leastRights := redistest.LeastRights(t)
	urls := asUser(t, servers, leastRights)
	for _, s := range servers {
		if err := s.Client().ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	requireFullTurn(t, urls)
	redistest.RequireNoKeys(t, servers)
	for _, right := range leastRights {
		command, isCommand := strings.CutPrefix(right, "+")
		switch {
		case isCommand && !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Calls(command) > 0 }):
			t.Errorf("%s isn't called", command)
		case !isCommand && right != "resetchannels": // it takes rights away
			fewer := slices.DeleteFunc(slices.Clone(leastRights), func(other string) bool { return other == right })
			if len(fullTurn(t, turnTTL, asUser(t, servers, fewer))) == 0 {
				t.Errorf("without %s all works as well", right)
			}
		}
	}
}

// serversThatVote have been up for longer than the guard of fullTurn with a TTL of turnTTL.
func serversThatVote(t *testing.T) []*redistest.Server {
	t.Helper()
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, 2*turnTTL+time.Second)
	return servers
}

// TestNoKeyWithoutEnd: a user who may write but set no TTL gets no lock, and leaves none behind for those who have all rights.
func TestNoKeyWithoutEnd(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l := newLocker(t, asUser(t, servers, append(redistest.LeastRights(t), "-pexpire")))
	if lock, err := l.TryLock(t.Context(), "order:1"); err == nil {
		t.Error("a lock without the right to set its TTL")
		_ = lock.Unlock()
	}
	for _, s := range servers {
		if n := s.Client().Exists(t.Context(), redisKey("order:1")).Val(); n != 0 {
			t.Errorf("%s has the lock, with a TTL of %v", s.Addr(), s.Client().PTTL(t.Context(), redisKey("order:1")).Val())
		}
	}
}

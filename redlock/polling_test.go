package redlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// pollingURLs returns the URLs of the servers for a user without channels, as a new user is: it can neither
// subscribe nor publish.
func pollingURLs(t *testing.T, servers []*redistest.Server) (urls []string) {
	t.Helper()
	for _, s := range servers {
		if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "polling", "on", ">pass", "~*", "+@all", "resetchannels").Err(); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "redis://polling:pass@"+s.Addr())
	}
	return urls
}

// TestPollingProcessHasItsShare: a process that can neither be woken nor wake others gets its turns beside processes
// that can, and they get theirs.
func TestPollingProcessHasItsShare(t *testing.T) {
	const enough, callers = 20, 4
	one, servers := onServers(t, 3)
	polling := newLocker(t, pollingURLs(t, servers))
	var turns [2]atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	take := func(l *redlock.Locker, turns *atomic.Int64) {
		for ctx.Err() == nil {
			lock, err := l.Lock(ctx, "key")
			if err == nil {
				turns.Add(1)
				mustUnlock(t, lock)
			}
		}
	}
	var all sync.WaitGroup
	for range callers {
		all.Go(func() { take(one, &turns[0]) })
	}
	all.Go(func() { take(polling, &turns[1]) })
	eventually(t, 6*bound, "turns of both", func() bool { return turns[0].Load() >= enough && turns[1].Load() >= enough })
	others, its := turns[0].Load(), turns[1].Load()
	cancel()
	all.Wait()
	t.Logf("%d turns of %d callers, %d of the polling one", others, callers, its)
	if others > 10*callers*its {
		t.Errorf("%d turns of %d callers, %d of the polling one: want at least a tenth of a caller's", others, callers, its)
	}
	redistest.RequireNoKeys(t, servers)
}

// TestPollingProcessLeavesNothing: such a process leaves no ticket when it gives up.
func TestPollingProcessLeavesNothing(t *testing.T) {
	one, servers := onServers(t, 3)
	polling := newLocker(t, pollingURLs(t, servers))
	held := mustLock(t, one, "key")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = polling.Lock(ctx, "key") })
	queued := func() bool {
		for _, s := range servers {
			if s.Client().ZCard(t.Context(), redisKey("key")+":queue").Val() == 0 {
				return false
			}
		}
		return true
	}
	eventually(t, bound, "a place on each master", queued)
	cancel()
	all.Wait()
	mustUnlock(t, held)
	redistest.RequireNoKeys(t, servers)
}

// TestDeadPollerIsPassed: the ticket of a polling process that has died ends long before that of another would.
func TestDeadPollerIsPassed(t *testing.T) {
	one, servers := onServers(t, 3)
	held := mustLock(t, one, "key")
	onAll(t, servers, 1)
	ends := time.Now().Add(500 * time.Millisecond).UnixMicro() // on all at once, or one could keep it longer than the turn of other
	for _, s := range servers {
		if err := errors.Join(
			s.Client().ZAdd(t.Context(), redisKey("key")+":queue", redis.Z{Score: 1, Member: "dead"}).Err(),
			s.Client().HSet(t.Context(), redisKey("key")+":leases", "dead", -ends).Err(),
			s.Client().PExpire(t.Context(), redisKey("key")+":queue", time.Second).Err(),
			s.Client().PExpire(t.Context(), redisKey("key")+":leases", time.Second).Err(),
			s.Client().LSet(t.Context(), redisKey("key"), 0, s.Client().LIndex(t.Context(), redisKey("key"), 0).Val()+"+").Err(),
		); err != nil {
			t.Fatal(err)
		}
	}
	other := newLocker(t, redistest.URLs(servers))
	mustUnlock(t, held)
	lockUnlock(t, other, "key")
	redistest.RequireNoKeys(t, servers)
}

// TestPollingEnds: a process that polls, for lack of a right, says so, and is woken once it has what it says that it needs.
func TestPollingEnds(t *testing.T) {
	t.Parallel()
	one, servers := onServers(t, 3)
	var log logBook
	polling := newLocker(t, pollingURLs(t, servers), log.option())
	granted := false
	eventually(t, bound, "a turn to which it is woken", func() bool {
		held := mustLock(t, one, "key")
		via := make(chan redlock.Via, 1)
		go func() {
			defer close(via)
			if lock, err := polling.Lock(t.Context(), "key"); err == nil {
				via <- lock.Acquisition().Via
				mustUnlock(t, lock)
			}
		}()
		if !granted {
			granted = true
			log.expect(t, "level=WARN", "denies SUBSCRIBE", "grant this user +subscribe and the channels of the prefix")
			for _, s := range servers {
				command(t, s, "ACL", "SETUSER", "polling", "+subscribe", "+publish", "&redlock:wake:*")
			}
		}
		eventually(t, bound, "it listens", func() bool {
			return !slices.ContainsFunc(servers, func(s *redistest.Server) bool {
				return len(s.Client().PubSubChannels(t.Context(), "redlock:wake:*").Val()) == 0
			})
		})
		mustUnlock(t, held)
		return <-via == redlock.ViaWoken
	})
}

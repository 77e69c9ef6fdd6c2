package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// leastRights are the commands that a Redis user of the locks needs, and no more.
var leastRights = []string{"+ping", "+info", "+eval", "+evalsha", "+time", "+get", "+set", "+del", "+lindex", "+rpush", "+lset", "+lrem", "+pttl", "+pexpire",
	"+exists", "+zadd", "+zrem", "+zrange", "+zscore", "+hset", "+hget", "+hdel", "+subscribe", "+publish", "&redlock:wake:*"}

// asUser makes a user with these commands on servers that don't know the scripts yet, and gives its URLs.
func asUser(t *testing.T, servers []*redistest.Server, commands []string) (urls []string) {
	t.Helper()
	for _, s := range servers {
		if err := s.Client().ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		line := append([]string{"reset", "on", ">secret", "~redlock:*", "resetchannels"}, commands...)
		if err := s.Client().ACLSetUser(t.Context(), "locks", line...).Err(); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, strings.Replace(s.URL(), "//", "//locks:secret@", 1))
	}
	return urls
}

// fullTurn locks, meets the held lock as another, has the lease renewed, and unlocks, so that one who
// waits is woken, with all in order.
func fullTurn(t *testing.T, servers []*redistest.Server, urls []string) (complaints []string) {
	t.Helper()
	const ttl = 600 * time.Millisecond
	var log logBook
	opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithTimeout(ttl / 2), redlock.WithMaxTTL(time.Second), redlock.WithRestartGuard(2 * time.Second), log.option()}
	l, other := newLocker(t, urls, opts...), newLocker(t, urls, opts...)
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
	var waiting sync.WaitGroup
	waiting.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		next, err := other.Lock(ctx, "key")
		if err == nil {
			err = next.Unlock()
		}
		if err != nil {
			complain(err)
		} else if came := next.Wait().Came; came != redlock.CameWoken {
			complain(fmt.Errorf("the second locker's turn came %q", came))
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
	return append(complaints, log.lines("level=")...)
}

// TestLeastRights has a user with these rights and no others do all that a Locker does; and shows that
// none of them is too much.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, 2*time.Second)
	line := strings.Join(leastRights, " ")
	for _, complaint := range fullTurn(t, servers, asUser(t, servers, leastRights)) {
		t.Errorf("with %s: %s", line, complaint)
	}
	redistest.RequireNoKeys(t, servers)
	for i, right := range leastRights {
		fewer := slices.Delete(slices.Clone(leastRights), i, i+1)
		if complaints := fullTurn(t, servers, asUser(t, servers, fewer)); len(complaints) == 0 {
			t.Errorf("without %s all works as well", right)
		} else {
			t.Logf("without %s: %.200s", right, complaints[0])
		}
		for _, s := range servers { // what it couldn't release
			if err := s.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

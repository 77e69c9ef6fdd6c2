package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

const (
	calm = 7 * time.Second  // a time-out that keeps a master on a busy machine from being taken for one that has failed
	long = 30 * time.Second // a lease that no test outlives
)

func TestMasters(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	locker := newLocker(t, servers)
	base := mount(t, locker)
	lock := mustLock(t, locker, "key")
	var status console.Status
	eventually(t, "all masters available", func() bool {
		status = ask[console.Status](t, http.MethodGet, base+"masters", http.StatusOK)
		return status.Ready && status.Lockers[0].Available == 3
	})
	l := status.Lockers[0]
	if status.Version == "" || len(status.Lockers) != 1 || !l.Ready || l.Instance != "web1/42" || l.Quorum != 2 || l.Held != 1 || l.Waiting != 0 || len(l.Masters) != 3 {
		t.Fatalf("%+v", status)
	}
	for i, m := range l.Masters {
		if m.Name != servers[i].URL() || m.State != "available" || m.Error != "" || m.RoundTripSeconds <= 0 || m.Version == "" || m.MaxmemoryPolicy == "" || !m.Until.IsZero() {
			t.Errorf("%+v", m)
		}
	}
	ask[console.Status](t, http.MethodGet, base+"masters?ready", http.StatusOK)
	ask[console.Status](t, http.MethodHead, base+"masters", http.StatusOK)
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}

	servers[0].Kill()
	servers[1].Kill()
	eventually(t, "two masters unreachable", func() bool {
		status = ask[console.Status](t, http.MethodGet, base+"masters", http.StatusOK)
		masters := status.Lockers[0].Masters // which are connecting again at first
		return masters[0].State == "unreachable" && masters[1].State == "unreachable"
	})
	if m := status.Lockers[0].Masters[0]; status.Ready || status.Lockers[0].Ready || status.Lockers[0].Available != 1 || m.Error == "" {
		t.Errorf("%+v", status)
	}
	ask[console.Status](t, http.MethodGet, base+"masters?ready", http.StatusServiceUnavailable)
}

// oddKeys have all that URLs, paths, JSON and HTML may get wrong.
var oddKeys = []string{
	".", "..", "../..", "/", "//", "a//b", "/a/", "a/../b", "%", "%2F", "a%00b", "{}", "{x}", "}", "a b", " a ", "+", "a+b", "?", "a?b=c&d",
	"#", "a;b", "a=b", "&amp;", "<script>alert(1)</script>", `"'` + "`", "\\", "ä", "日本", "\u202e", "\x00", "a\nb\r\n", "\xff\xfe", "locks", "masters", ":", "~",
	strings.Repeat("k", 300),
}

// A key is the same in each way to name it, and no path is cleaned of what belongs to the key.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	locker := newLocker(t, servers)
	base := mount(t, locker)
	for _, key := range oddKeys {
		lock := mustLock(t, locker, key)
		listed := ask[console.Locks](t, http.MethodGet, base+"locks?prefix="+url.QueryEscape(key), http.StatusOK)
		if len(listed.Locks) != 1 || listed.Locks[0].Fence != lock.Fence() || listed.Locks[0].Key != strings.ToValidUTF8(key, "\ufffd\ufffd")[:len(listed.Locks[0].Key)] {
			t.Errorf("%q: %+v", key, listed)
			continue
		}
		for _, path := range []string{"locks/" + escape(key), "locks?key=" + url.QueryEscape(key), listed.Locks[0].Href} {
			if seen := ask[console.Inspection](t, http.MethodGet, base+path, http.StatusOK); len(seen.Lockers) != 1 || seen.Lockers[0].Fence != lock.Fence() {
				t.Errorf("%q at %s: %+v", key, path, seen)
			}
		}
		ask[console.Released](t, http.MethodDelete, fmt.Sprint(base, "locks/", escape(key), "?fence=", lock.Fence()), http.StatusOK)
		eventually(t, "the lock is lost", func() bool { return lock.Err() != nil })
		ask[console.Problem](t, http.MethodGet, base+"locks/"+escape(key), http.StatusNotFound)
	}
}

// The hash of a log finds its key, and that of a delivery whose request has another key, which the lists leave out.
func TestHash(t *testing.T) {
	t.Parallel()
	locker := redlocktest.New(t)
	base := mount(t, locker)
	of := withRequest(&inspect.Request{Method: "POST", Path: "/", Delivery: "running:1"})
	for _, key := range []string{"order:42", "running:1", "order:43"} {
		mustLock(t, locker, key, of)
	}
	for key, want := range map[string]string{"order:42": "order:42", "ORDER:42": "order:42", "running:1": "running:1", "order:44": ""} {
		found := ask[console.Locks](t, http.MethodGet, base+"locks?hash="+lockname.Hash(key), http.StatusOK)
		if got := len(found.Locks); got > 1 || (got == 1) != (want != "") || got == 1 && found.Locks[0].Key != want {
			t.Errorf("%s: %+v, want %q", key, found.Locks, want)
		}
	}
}

// The pages of a list are complete while keys come and go.
func TestPages(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	locker := newLocker(t, servers)
	base := mount(t, locker)
	locks := make(map[string]*redlock.Lock)
	var keys []string
	for i := range 25 {
		key := fmt.Sprintf("order:%02d", i)
		keys = append(keys, key)
		locks[key] = mustLock(t, locker, key, redlock.WithLabel("orders"))
	}
	mustLock(t, locker, "a")
	mustLock(t, locker, "z")
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := locker.Lock(ctx, "order:24")
		waited <- err
	}()
	var first console.Locks
	eventually(t, "a call waits", func() bool {
		first = ask[console.Locks](t, http.MethodGet, base+"locks?prefix=order:&limit=10", http.StatusOK)
		return first.Waiting == 1
	})
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if first.Held != 25 || len(first.Locks) != 10 {
		t.Fatalf("%+v", first)
	}
	for i, l := range first.Locks {
		lock := locks[keys[i]]
		if l.Key != keys[i] || l.Label != "orders" || !l.Held || l.Fence != lock.Fence() || l.Since.IsZero() || l.Until.Before(l.Since) || l.Waiting != 0 {
			t.Errorf("%+v", l)
		}
	}
	// The last key of the page goes, and keys come in front of it.
	if err := locks["order:09"].Unlock(); err != nil {
		t.Error(err)
	}
	mustLock(t, locker, "order:05b")
	listed := first.Locks
	for page := first; page.Next != ""; {
		page = ask[console.Locks](t, http.MethodGet, base+page.Next, http.StatusOK)
		listed = append(listed, page.Locks...)
	}
	var got []string
	for _, l := range listed {
		got = append(got, l.Key)
	}
	if !slices.Equal(got, keys) {
		t.Errorf("listed %q", got)
	}
	if all := ask[console.Locks](t, http.MethodGet, base+"locks", http.StatusOK); len(all.Locks) != 27 || all.Next != "" {
		t.Errorf("%+v", all)
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	// The holder notices when it renews the lease, after a third of it.
	locker, other := newLocker(t, servers, redlock.WithTTL(long/2)), newLocker(t, servers, redlock.WithInstance("web2/43"))
	base := mount(t, other)
	lock := mustLock(t, locker, "order:42")
	eventually(t, "all masters have the lock", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return len(s.Keys()) == 0 })
	})
	seen := ask[console.Inspection](t, http.MethodGet, base+"locks/order:42", http.StatusOK)
	if l := seen.Lockers[0]; !l.Held || l.Holder != "web1/42" || l.Fence != lock.Fence() || l.TTLSeconds <= 0 || len(l.Masters) != 3 {
		t.Errorf("%+v", seen)
	}
	for _, m := range seen.Lockers[0].Masters {
		token := servers[slices.IndexFunc(servers, func(s *redistest.Server) bool { return s.URL() == m.Name })].Client().LIndex(t.Context(), "redlock:{order:42}", 0).Val()
		if m.Token == "" || len(m.Token) > len(token)/2 || !strings.HasPrefix(token, strings.TrimSuffix(m.Token, "…")) || m.Holder != "web1/42" {
			t.Errorf("%+v, token %s", m, token)
		}
	}
	path := base + "locks/order:42"
	for _, query := range []string{"", "?fence=", "?fence=0", "?fence=-1", "?fence=x", "?fence=1&fence=2", "?fence=1;key=a", "?fence=%zz"} {
		ask[console.Problem](t, http.MethodDelete, path+query, http.StatusBadRequest)
	}
	for _, origin := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		ask[console.Problem](t, http.MethodDelete, fmt.Sprint(path, "?fence=", lock.Fence()), http.StatusForbidden, origin...)
	}
	if changed := ask[console.Problem](t, http.MethodDelete, path+"?fence=1", http.StatusConflict); changed.Fence != lock.Fence() {
		t.Errorf("%+v, want fence %d", changed, lock.Fence())
	}
	if err := lock.Err(); err != nil {
		t.Fatal(err)
	}
	if done := ask[console.Released](t, http.MethodDelete, fmt.Sprint(path, "?fence=", lock.Fence()), http.StatusOK); done.Key != "order:42" || done.Fence != lock.Fence() {
		t.Errorf("%+v", done)
	}
	ask[console.Problem](t, http.MethodDelete, fmt.Sprint(path, "?fence=", lock.Fence()), http.StatusNotFound)
	select {
	case <-lock.Context().Done():
		if !errors.Is(context.Cause(lock.Context()), redlock.ErrForced) {
			t.Errorf("the lock ended with %v", context.Cause(lock.Context()))
		}
	case <-time.After(long):
		t.Error("the holder isn't told")
	}
}

// Without a quorum the response says why, and what the others know.
func TestNoQuorum(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		locker := net.Locker(t, redlock.WithInstance("web1/42"))
		base := mountInside(t, locker)
		lock := mustLock(t, locker, "order:42")
		net.Servers[0].Kill()
		net.Servers[1].Kill()
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			p := ask[console.Problem](t, method, fmt.Sprint(base, "locks/order:42?fence=", lock.Fence()), http.StatusServiceUnavailable)
			if p.Detail == "" || method == http.MethodGet && (len(p.Lockers) != 1 || p.Lockers[0].Masters[2].Error != "" || p.Lockers[0].Masters[0].Error == "") {
				t.Errorf("%+v", p)
			}
		}
	})
}

func TestNoLocker(t *testing.T) {
	t.Parallel()
	base := mount(t)
	if status := ask[console.Status](t, http.MethodGet, base+"masters", http.StatusOK); status.Ready || status.Lockers == nil {
		t.Errorf("%+v", status)
	}
	ask[console.Status](t, http.MethodGet, base+"masters?ready", http.StatusServiceUnavailable)
	if locks := ask[console.Locks](t, http.MethodGet, base+"locks", http.StatusOK); locks.Locks == nil || len(locks.Locks) > 0 {
		t.Errorf("%+v", locks)
	}
	ask[console.Problem](t, http.MethodGet, base+"locks/a", http.StatusNotFound)
	ask[console.Problem](t, http.MethodDelete, base+"locks/a?fence=1", http.StatusNotFound)
}

// Two lockers, as during a reload: with the same masters, a lock is shown once; with others, it is theirs.
func TestSeveralLockers(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 2)
	one, same, other := newLocker(t, servers[:1]), newLocker(t, servers[:1], redlock.WithTTL(20*time.Second)), newLocker(t, servers[1:])
	closed := newLocker(t, servers)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	base := mount(t, closed, one, same, other)
	lock, second := mustLock(t, same, "a"), mustLock(t, other, "b")
	mustLock(t, one, "b")
	locks := ask[console.Locks](t, http.MethodGet, base+"locks?limit=2", http.StatusOK)
	if len(locks.Locks) != 3 || locks.Held != 3 || locks.Locks[1].Key != "b" || locks.Locks[2].Fence != second.Fence() || locks.Next != "" {
		t.Errorf("a page ends between the locks on one key: %+v", locks)
	}
	if seen := ask[console.Inspection](t, http.MethodGet, base+"locks/a", http.StatusOK); len(seen.Lockers) != 1 || seen.Lockers[0].Fence != lock.Fence() {
		t.Errorf("%+v", seen)
	}
	if seen := ask[console.Inspection](t, http.MethodGet, base+"locks/b", http.StatusOK); len(seen.Lockers) != 2 {
		t.Errorf("%+v", seen)
	}
	ask[console.Problem](t, http.MethodGet, base+"locks/c", http.StatusNotFound)
	ask[console.Problem](t, http.MethodDelete, base+"locks/c?fence=1", http.StatusNotFound)
	ask[console.Released](t, http.MethodDelete, fmt.Sprint(base, "locks/b?fence=", second.Fence()), http.StatusOK)
	if seen := ask[console.Inspection](t, http.MethodGet, base+"locks/b", http.StatusOK); len(seen.Lockers) != 1 || seen.Lockers[0].Fence == second.Fence() {
		t.Errorf("%+v", seen)
	}
}

func TestMethodsAndPaths(t *testing.T) {
	t.Parallel()
	base := mount(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "X"} {
		for _, path := range []string{"", "masters", "locks", "page.css"} {
			ask[console.Problem](t, method, base+path, http.StatusMethodNotAllowed)
		}
	}
	ask[console.Problem](t, http.MethodPost, base+"locks/a", http.StatusMethodNotAllowed)
	for _, path := range []string{"x", "masters/", "masters/x", "page.html", "page/page.html"} {
		ask[console.Problem](t, http.MethodGet, base+path, http.StatusNotFound)
	}
	for _, path := range []string{"locks?limit=0", "locks?limit=1001", "locks?limit=x", "locks?limit=", "locks?prefix=a&prefix=b", "locks?key=%zz"} {
		ask[console.Problem](t, http.MethodGet, base+path, http.StatusBadRequest)
	}
	recorder := httptest.NewRecorder()
	console.New(func() []*redlock.Locker { return nil }).ServeHTTP(recorder, httptest.NewRequest(http.MethodPut, "http://localhost/locks/a", nil))
	if allow := recorder.Header().Get("Allow"); allow != "GET, HEAD, DELETE" {
		t.Errorf("Allow: %s", allow)
	}
}

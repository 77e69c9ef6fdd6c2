package console_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// book is a log that is kept.
type book struct{ redistest.Log }

// line returns the first line that has all of the words, or "".
func (b *book) line(words ...string) string {
	for line := range strings.Lines(b.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return line
		}
	}
	return ""
}

func (b *book) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// serveConsole returns the address of a console with options.
func serveConsole(t *testing.T, locker *redlock.Locker, opts ...console.Option) (base string) {
	t.Helper()
	server := httptest.NewServer(console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} }, opts...))
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// askAs asks by another host, as a browser does whose page has had its name lead to the console's address.
func askAs(t *testing.T, host, method, url string) int {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// A page of another site whose name leads to the console's address (DNS rebinding) reads no key, and releases no lock: for a browser it
// has the console's own origin, and only the Host tells.
func TestHosts(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, redistest.Start(t, 1))
	lock := mustLock(t, locker, "order:42")
	local, named, any := serveConsole(t, locker), serveConsole(t, locker, console.WithHosts("Ops.example")), serveConsole(t, locker, console.WithHosts("*"))
	for _, path := range []string{"", "locks", "masters", "masters?ready", "page.js", "locks/order:42"} {
		for _, host := range []string{"evil.test", "evil.test:7701", "sub.localhost:7401", "localhost.evil.test", "127.0.0.1.evil.test", "10.0.0.1:80", "[::ffff:10.0.0.1]:80", "0.0.0.0"} {
			if status := askAs(t, host, http.MethodGet, local+path); status != http.StatusForbidden {
				t.Errorf("%s asked as %s: status %d", path, host, status)
			}
		}
		for _, host := range []string{"", "localhost", "LOCALHOST:7401", "127.0.0.1:1", "127.8.0.1", "[::1]:80", "[::1]", "ops.example", "OPS.example:443"} {
			if status := askAs(t, host, http.MethodGet, named+path); status != http.StatusOK {
				t.Errorf("%s asked as %q: status %d", path, host, status)
			}
		}
		if status := askAs(t, "evil.test", http.MethodGet, any+path); status != http.StatusOK {
			t.Errorf("%s asked of one that allows all: status %d", path, status)
		}
	}
	if status := askAs(t, "evil.test", http.MethodDelete, fmt.Sprint(local, "locks?key=order:42&fence=", lock.Fence())); status != http.StatusForbidden || lock.Err() != nil {
		t.Errorf("a release: status %d, %v", status, lock.Err())
	}
}

// A console that only shows ends no lock, forgets no result, and its page has no button.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, redistest.Start(t, 1))
	lock := mustLock(t, locker, "order:42")
	base := serveConsole(t, locker, console.WithReadOnly())
	for _, path := range []string{fmt.Sprint("locks/order:42?fence=", lock.Fence()), "locks/order:42", "results/order:42"} {
		if refused := ask[console.Problem](t, http.MethodDelete, base+path, http.StatusForbidden); !strings.HasSuffix(refused.Type, "#read_only") {
			t.Errorf("%s: %+v", path, refused)
		}
	}
	if err := lock.Err(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"", "?key=order:42"} {
		for address, want := range map[string]bool{base: false, serveConsole(t, locker): true} {
			if text := pageAt(t, address+path); strings.Contains(text, "data-release") != want {
				t.Errorf("%s%s: a button to release: %t", address, path, !want)
			}
		}
	}
}

// TestAudit: what somebody has done by force is in the log of the process that was asked, and in that of the holder, without the key.
func TestAudit(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var asked, holders book
		holder := net.Locker(t, redlock.WithLogger(holders.logger()))
		other := net.Locker(t, redlock.WithInstance("web2/43"))
		h := console.New(func() []*redlock.Locker { return []*redlock.Locker{other} }, console.WithLogger(asked.logger()), console.WithUser(func(*http.Request) string { return "ann" }))
		lock := mustLock(t, holder, "order:42", redlock.WithLabel("pay"))
		for _, c := range []struct {
			path   string
			status int
		}{{"locks/order:42?fence=1", http.StatusConflict}, {fmt.Sprint("locks/order:42?fence=", lock.Fence()), http.StatusOK}, {"results/order:42", http.StatusNotFound}} {
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "http://localhost/"+c.path, nil)); w.Code != c.status {
				t.Errorf("%s: %d, want %d", c.path, w.Code, c.status)
			}
		}
		hash, fence := "key_hash="+lockname.Hash("order:42"), fmt.Sprint("fence=", lock.Fence())
		for _, words := range [][]string{
			{"released by force", hash, fence, "result=done", "from=192.0.2.1:", "user=ann"},
			{"released by force", hash, "fence=1 ", "another lock", "from=192.0.2.1:", "user=ann"},
			{"forgotten", hash, "No result is remembered", "from=192.0.2.1:", "user=ann"},
		} {
			if asked.line(words...) == "" {
				t.Errorf("the log of the process that was asked has no line with %q:\n%s", words, asked.String())
			}
		}
		<-lock.Context().Done()
		synctest.Wait()
		if holders.line("lease lost", "released by force", hash, fence, "rule=pay", `by="web2/43, asked by ann at 192.0.2.1:`) == "" {
			t.Errorf("the log of the holder doesn't say by whom:\n%s", holders.String())
		}
		if asked.line("order:42")+holders.line("order:42") != "" {
			t.Error("a log has the key")
		}
	})
}

// Of many keys, those are shown first for which most calls wait, and then the oldest; the page begins so, too.
func TestHottestFirst(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, redistest.Start(t, 1))
	base := serveConsole(t, locker)
	const keys = 130
	for i := range keys {
		mustLock(t, locker, fmt.Sprintf("a:%03d", keys-i))
	}
	mustLock(t, locker, "z")
	mustLock(t, locker, "y")
	wait := func(key string, calls int) {
		for range calls {
			go func() {
				if lock, err := locker.Lock(t.Context(), key, redlock.WithWait(time.Minute)); err == nil {
					_ = lock.Unlock()
				}
			}()
		}
	}
	wait("z", 3)
	wait("y", 2)
	var hot console.Locks
	eventually(t, "all wait", func() bool {
		hot = ask[console.Locks](t, http.MethodGet, base+"locks?sort=waiting&limit=3", http.StatusOK)
		return hot.Waiting == 5
	})
	if len(hot.Locks) != 3 || hot.Locks[0].Key != "z" || hot.Locks[1].Key != "y" || hot.Locks[2].Key != "a:130" || hot.Keys != keys+2 || hot.Next != "" {
		t.Errorf("%+v", hot)
	}
	if named := ask[console.Locks](t, http.MethodGet, base+"locks?sort=key&limit=1", http.StatusOK); named.Locks[0].Key != "a:001" || named.Next == "" {
		t.Errorf("%+v", named)
	}
	ask[console.Problem](t, http.MethodGet, base+"locks?sort=age", http.StatusBadRequest)
	ask[console.Problem](t, http.MethodGet, base+"locks?sort=waiting&after=a", http.StatusBadRequest)
	if _, list, _ := strings.Cut(pageAt(t, base), "<tbody>"); !strings.Contains(list[strings.Index(list, `class="keys"`):][:1200], `href="?key=z"`) {
		t.Errorf("the page doesn't begin with the key that is wanted most:\n%s", list)
	}
	if text := pageAt(t, base+"?sort=key"); strings.Contains(text, `data-row="locks?key=z"`) || !strings.Contains(text, "after=") {
		t.Error("the page can't be sorted by key")
	}
}

func pageAt(t *testing.T, url string) string {
	t.Helper()
	recorded, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer recorded.Body.Close()
	var text strings.Builder
	if err := recorded.Write(&text); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// TestAuditOfUnixSocket: a client of a Unix socket has no address, and the log says that.
func TestAuditOfUnixSocket(t *testing.T) {
	t.Parallel()
	locker := redlocktest.New(t)
	var asked book
	h := console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} }, console.WithLogger(asked.logger()))
	lock := mustLock(t, locker, "order:42")
	r := httptest.NewRequest(http.MethodDelete, fmt.Sprint("http://localhost/locks/order:42?fence=", lock.Fence()), nil)
	r.RemoteAddr = "@" // as net/http has it
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK || asked.line("released by force", `from="a user of the Unix socket"`) == "" {
		t.Errorf("%d, and the log has\n%s", w.Code, asked.String())
	}
}

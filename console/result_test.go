package console_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// pausing shortens the time for which inspect.Forget pauses, which is the time-out.
var pausing = redlock.WithTimeout(2 * time.Second)

// leave leaves a result. On a busy machine a quorum may not confirm that in time; the masters remember it all the same.
func leave(t *testing.T, lock *redlock.Lock, result []byte) {
	t.Helper()
	if err := lock.UnlockWith(result, time.Hour); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatal(err)
	}
}

// A result shows without its content, and can be forgotten unless somebody holds the key.
func TestResults(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	locker := newLocker(t, servers, pausing)
	base := mount(t, locker)
	const key, content = "dedupe:a/b", "what-the-response-was"
	path, result := base+"locks/"+escape(key), base+"results/"+escape(key)
	ask[console.Problem](t, http.MethodDelete, result, http.StatusNotFound)
	lock := mustLock(t, locker, key)
	leave(t, lock, []byte(content))
	var seen console.InspectedLocker
	eventually(t, "all masters remember it", func() bool {
		_, _ = locker.TryLock(t.Context(), key, redlock.WithRecall()) // whoever meets a result hands it to the masters that lack it
		seen = ask[console.Inspection](t, http.MethodGet, path, http.StatusOK).Lockers[0]
		return seen.Masters[0].Result != nil && seen.Masters[1].Result != nil && seen.Masters[2].Result != nil
	})
	for _, r := range []*console.Result{seen.Result, seen.Masters[0].Result, seen.Masters[1].Result, seen.Masters[2].Result} {
		if r.Fence != lock.Fence() || r.Bytes != len(content) || r.KeepSeconds <= 0 || r.KeepSeconds > time.Hour.Seconds() {
			t.Errorf("%+v", r)
		}
	}
	if !seen.Remembered || seen.Held {
		t.Errorf("%+v", seen)
	}
	page := text(t, base+"?key="+key)
	if !strings.Contains(page, "A result is remembered") || strings.Contains(page, content) {
		t.Errorf("the page shows of a result:\n%s", page)
	}

	held := mustLock(t, locker, key)
	if p := ask[console.Problem](t, http.MethodDelete, base+"results?key="+key, http.StatusConflict); !strings.HasSuffix(p.Type, "#held") {
		t.Errorf("while the key is held: %+v", p)
	}
	if err := held.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatal(err)
	}
	ask[console.Problem](t, http.MethodDelete, result, http.StatusForbidden, "Sec-Fetch-Site", "cross-site")
	if done := ask[console.Forgotten](t, http.MethodDelete, result, http.StatusOK); done.Key != key || done.Left != nil {
		t.Errorf("%+v", done)
	}
	if p := ask[console.Problem](t, http.MethodDelete, result, http.StatusNotFound); !strings.HasSuffix(p.Type, "#unknown_result") {
		t.Errorf("for the second time: %+v", p)
	}
	ask[console.Problem](t, http.MethodGet, path, http.StatusNotFound)
	ask[console.Problem](t, http.MethodGet, result, http.StatusMethodNotAllowed)
}

// What some masters may still remember is said, and what a minority remembers is not called remembered.
func TestResultsWithIllMasters(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	locker := newLocker(t, servers, pausing)
	base := mount(t, locker)
	for _, key := range []string{"a", "b"} {
		leave(t, mustLock(t, locker, key), nil)
		eventually(t, "all masters remember it", func() bool {
			_, _ = locker.TryLock(t.Context(), key, redlock.WithRecall()) // whoever meets a result hands it to the masters that lack it
			for _, s := range servers {
				if s.Client().Exists(t.Context(), "redlock:{"+key+"}:result").Val() == 0 {
					return false
				}
			}
			return true
		})
	}
	for _, s := range servers[1:] {
		s.Client().Del(t.Context(), "redlock:{b}:result")
	}
	if seen := ask[console.Inspection](t, http.MethodGet, base+"locks/b", http.StatusOK).Lockers[0]; seen.Remembered || seen.Result == nil || seen.Masters[1].Result != nil {
		t.Errorf("%+v", seen)
	}
	if page := text(t, base+"?key=b"); !strings.Contains(page, "Too few masters remember a result") {
		t.Errorf("the page shows of a result of few masters:\n%s", page)
	}
	servers[2].Kill()
	if done := ask[console.Forgotten](t, http.MethodDelete, base+"results/a", http.StatusOK); len(done.Left) != 1 || done.Left[0].Name != servers[2].URL() || done.Left[0].Error == "" {
		t.Errorf("%+v", done)
	}
	servers[1].Kill()
	if p := ask[console.Problem](t, http.MethodDelete, base+"results/b", http.StatusServiceUnavailable); p.Detail == "" {
		t.Errorf("%+v", p)
	}
}

// The memory of a server is on the page.
func TestMemoryOfMasters(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1, "--maxmemory", "100mb")
	if err := servers[0].Client().SetRange(t.Context(), "large", 90<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	base := mount(t, newLocker(t, servers))
	eventually(t, "the memory is known", func() bool {
		m := ask[console.Status](t, http.MethodGet, base+"masters", http.StatusOK).Lockers[0].Masters[0]
		return m.UsedMemory >= 90<<20 && m.Maxmemory == 100<<20
	})
	if page := text(t, base); !strings.Contains(page, " % of 104.9 MB") || !strings.Contains(page, "nearly full") {
		t.Errorf("the page shows of the memory:\n%s", page)
	}
}

// text returns the page at a URL.
func text(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, response.StatusCode, err)
	}
	return string(body)
}

// Two lockers with other prefixes are two, even if both remember one key, and two with the same prefix and masters are one.
func TestLockersOfOneKey(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	one, other := newLocker(t, servers), newLocker(t, servers, redlock.WithPrefix("other"))
	for _, l := range []*redlock.Locker{one, other} {
		leave(t, mustLock(t, l, "key"), nil)
	}
	base := mount(t, one, other, newLocker(t, servers))
	if seen := ask[console.Inspection](t, http.MethodGet, base+"locks/key", http.StatusOK).Lockers; len(seen) != 2 || seen[0].Result.Fence == seen[1].Result.Fence {
		t.Errorf("shown are %+v, want the two", seen)
	}
}

// A key that no lock can have is the mistake of who asks.
func TestLongKey(t *testing.T) {
	t.Parallel()
	base := mount(t, newLocker(t, redistest.Start(t, 1)))
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		ask[console.Problem](t, method, base+"locks?fence=1&key="+strings.Repeat("k", redlock.MaxKeyLength+1), http.StatusBadRequest)
	}
}

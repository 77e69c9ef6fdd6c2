package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestForgetCommand names a response by the ID of its delivery, shows it, and forgets it: with a delivery that runs, a master that is away
// and too few of them.
func TestForgetCommand(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout 2s"), payRule+"respond served")) // for which forget pauses: the console waits for 5 s
	other, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm), redlock.WithInstance("web2/4711"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	command := func(want int, args ...string) string {
		t.Helper()
		return commandAt(t, c.admin, want, args...)
	}
	lock := func(key string) *redlock.Lock {
		t.Helper()
		lock, err := other.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	leave := func(lock *redlock.Lock, result []byte, keep time.Duration) { // the masters remember it even if their replies are late
		t.Helper()
		if err := lock.UnlockWith(result, keep); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatal(err)
		}
	}
	answered := func(keys []string, id, scope string) {
		t.Helper()
		key := middleware.Delivery{Keys: keys, ID: id, Host: "shop.example.com", Scope: scope}.Key()
		leave(lock(key), make([]byte, 1234), 24*time.Hour)
		eventually(t, "all masters remember the response", func() bool {
			_, _ = other.TryLock(t.Context(), key, redlock.WithRecall()) // hands it to one that didn't answer in time
			for _, s := range servers {
				if s.Client().Exists(t.Context(), "redlock:{"+key+"}:result").Val() == 0 {
					return false
				}
			}
			return true
		})
	}

	if text := command(3, "inspect", "--id", "evt_1", "--host", "shop.example.com", "order:42"); !strings.Contains(text, "no result is remembered") {
		t.Errorf("nothing to show: %s", text)
	}
	if text := command(3, "forget", "--id", "evt_1", "--host", "shop.example.com", "order:42"); !strings.Contains(text, "no master remembers anything") {
		t.Errorf("nothing to forget: %s", text)
	}
	answered([]string{"order:42"}, "evt_1", "")
	var inspected string
	eventually(t, "the masters have forgotten the fence, which is another column", func() bool {
		inspected = command(0, "inspect", "--id", "evt_1", "--host", "shop.example.com", "order:42")
		return strings.Contains(inspected, "FENCE  QUEUE")
	})
	for _, want := range []string{"key     dedupe:", "\nresult  1.2kB for ", "  REMEMBERS\n"} {
		if !strings.Contains(inspected, want) {
			t.Errorf("no %q in\n%s", want, inspected)
		}
	}
	var seen console.Inspection
	unmarshal(t, command(0, "inspect", "--json", "--id", "evt_1", "--host", "shop.example.com", "order:42"), &seen)
	if l := seen.Lockers[0]; !l.Remembered || l.Result.Bytes != 1234 || l.Masters[2].Result.Fence != l.Result.Fence {
		t.Errorf("%+v", seen)
	}

	running := lock(middleware.Delivery{Keys: []string{"order:42"}, ID: "evt_1", Host: "shop.example.com"}.Key())
	if text := command(3, "forget", "--id", "evt_1", "--host", "shop.example.com", "order:42"); !strings.Contains(text, "the delivery runs now") {
		t.Errorf("a delivery that runs: %s", text)
	}
	if err := running.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatal(err)
	}
	late := false // on a busy machine the masters may have forgotten it, but answer too late
	eventually(t, "it is forgotten", func() bool {
		text, stderr, code := redlockCommand(t, "forget", "--id", "evt_1", "--host", "shop.example.com", "order:42", "--address", c.admin)
		switch {
		case code == 2, code == 3 && strings.Contains(text+stderr, "the delivery runs now"): // until it is over there, too
			late = late || code == 2
			return false
		case (code != 3 || !late) && (code != 0 || text != "forgotten: the next one with this key runs again\n"):
			t.Errorf("forgotten: exit code %d, %s%s", code, text, stderr)
		}
		return true
	})
	command(3, "inspect", "--id", "evt_1", "--host", "shop.example.com", "order:42")

	scope := filepath.Join(t.TempDir(), "scope")
	if err := os.WriteFile(scope, []byte("Bearer "+secret+"\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	signed := middleware.Delivery{Keys: []string{"a"}, ID: "evt_3", Site: "shop", Place: "POST /hook?tenant=a", Signer: "acme"}
	leave(lock(signed.Key()), nil, time.Hour)
	command(0, "inspect", "--id", "evt_3", "--site", "shop", "--place", "POST /Hook/?tenant=a", "--signer", "acme", "a")
	command(3, "inspect", "--id", "evt_3", "--site", "shop", "--place", "POST /hook?tenant=a", "a")
	answered([]string{"a", "b"}, "evt_2", "Bearer "+secret)
	command(3, "inspect", "--id", "evt_2", "--host", "shop.example.com", "a", "b")
	for _, named := range [][]string{{"--scope-file", scope, "b", "a"}, {"--scope", "Bearer " + secret, "a", "b"}} {
		if text := command(0, append([]string{"inspect", "--id", "evt_2", "--host", "Shop.example.com:443"}, named...)...); strings.Contains(text, secret) {
			t.Errorf("the scope is shown: %s", text)
		}
	}
	servers[2].Kill()
	eventually(t, "Caddy notices that a master is gone", func() bool { return strings.Contains(command(0, "masters"), "unreachable") })
	late = false
	eventually(t, "it is forgotten with one master away", func() bool {
		text, stderr, code := redlockCommand(t, "forget", "--id", "evt_2", "--host", "shop.example.com", "--scope-file", scope, "a", "b", "--address", c.admin)
		if code != 2 && (code != 3 || !late) {
			t.Fatalf("with one master away: exit code %d, %s%s", code, text, stderr)
		}
		done := strings.Contains(text+stderr, servers[2].URL()+" may still remember it")
		if done && !late && !strings.Contains(text+stderr, "forgotten") {
			t.Errorf("with one master away: %s%s", text, stderr)
		}
		late = true
		return done || code == 3
	})
	servers[1].Kill()
	eventually(t, "no quorum", func() bool {
		_, _, code := redlockCommand(t, "masters", "--address", c.admin)
		return code == 2
	})
	command(2, "forget", "--id", "evt_2", "--host", "shop.example.com", "a")
	for _, args := range [][]string{
		{"forget"}, {"forget", "a", "b"}, {"forget", "--id", "", "a"}, {"forget", "--id", "evt_1", "a"}, {"forget", "--host", "x", "a"}, {"forget", "--id", "x", "--host", "x", "--site", "x", "a"}, {"inspect", "--scope", "x", "a"}, {"inspect", "--id", "x", "--host", "x", "--place", "POST shop.example.com/hook", "a"}, {"inspect", "--id", "x", "--host", "x", "--scope-file", scope + ".none"},
		{"inspect", "--id", "x", "--host", "x", "--scope", "y", "--scope-file", scope}, {"inspect", "--id", "x", "--host", "x", "--scope-file", os.DevNull},
	} {
		if text, stderr, code := redlockCommand(t, args...); code != 1 || !strings.HasPrefix(stderr, "Error: ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, text, stderr)
		}
	}
}

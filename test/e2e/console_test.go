package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// askAdmin sends a request to Caddy's admin endpoint, and decodes the response, which must have the status.
func askAdmin[T any](t *testing.T, c *caddyProcess, method, path string, status int, header ...string) (value T) {
	t.Helper()
	a := sendAs(t, c, method, path, header...)
	for deadline := time.Now().Add(bound); method == http.MethodGet && status == http.StatusOK && a.status == http.StatusServiceUnavailable && time.Now().Before(deadline); {
		a = sendAs(t, c, method, path, header...) // too few masters answered in time, on a busy machine
	}
	if a.status != status {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, a.status, status, a.body)
	}
	if strings.Contains(a.body, secret) {
		t.Errorf("%s %s shows the password: %s", method, path, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, a.body)
	}
	return value
}

// awaitMasters waits until so many masters of the only locker grant locks.
func awaitMasters(t *testing.T, c *caddyProcess, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d masters are available", n), func() bool {
		lockers := askAdmin[console.Status](t, c, http.MethodGet, "/redlock/masters", http.StatusOK).Lockers
		return len(lockers) == 1 && lockers[0].Available == n
	})
}

// The console on the admin endpoint: before there is a configuration with redlock, with one, through a reload with other settings
// while requests hold locks, and after the last one is gone.
func TestConsole(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, "--requirepass", secret)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", "respond without"))
	if status := askAdmin[console.Status](t, c, http.MethodGet, "/redlock/masters", http.StatusOK); status.Ready || len(status.Lockers) > 0 {
		t.Errorf("without redlock: %+v", status)
	}
	askAdmin[console.Problem](t, c, http.MethodGet, "/redlock/locks/a", http.StatusNotFound)

	rule := "redlock /orders/*/pay order:{path.1}\n"
	config := func(setting string) string {
		return caddyfile(mastersOption(servers, setting, "password "+secret), rule+b.proxy())
	}
	load := func(config string) {
		t.Helper()
		if a := c.load(t, config); a.status != http.StatusOK {
			t.Fatalf("POST /load: status %d: %s", a.status, a.body)
		}
	}
	load(config("timeout 2s"))
	awaitMasters(t, c, 3)
	wait := b.hold(t, c.url+"/orders/1/pay", c.url+"/orders/2/pay")
	old := askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks", http.StatusOK)
	if len(old.Locks) != 2 || old.Locks[0].Key != "order:1" || !old.Locks[1].Held {
		t.Fatalf("%+v", old)
	}

	load(config("timeout 3s"))
	newer := postAll(t, c.url+"/orders/3/pay")
	eventually(t, "the third request is in the backend", func() bool { return b.inside() == 3 })
	status := askAdmin[console.Status](t, c, http.MethodGet, "/redlock/masters", http.StatusOK)
	if len(status.Lockers) != 2 || status.Lockers[0].Held != 1 || status.Lockers[1].Held != 2 {
		t.Errorf("during a reload, the newest first: %+v", status)
	}
	locks := askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks", http.StatusOK)
	if len(locks.Locks) != 3 {
		t.Errorf("during a reload: %+v", locks)
	}
	// The lock is that of the former configuration, and both see it on their masters.
	path := "/redlock/locks/order:1"
	if seen := askAdmin[console.Inspection](t, c, http.MethodGet, path, http.StatusOK); len(seen.Lockers) != 1 || !seen.Lockers[0].Held || seen.Lockers[0].Fence != old.Locks[0].Fence {
		t.Errorf("%+v", seen)
	}
	for _, origin := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"}} {
		if a := sendAs(t, c, http.MethodDelete, fmt.Sprint(path, "?fence=", old.Locks[0].Fence), origin...); a.status != http.StatusForbidden {
			t.Errorf("%q: status %d: %s", origin, a.status, a.body)
		}
	}
	eventually(t, "the key is released", func() bool { // when the masters know its fence
		a := sendAs(t, c, http.MethodDelete, fmt.Sprint(path, "?fence=", old.Locks[0].Fence))
		if a.status != http.StatusOK && a.status != http.StatusConflict && a.status != http.StatusServiceUnavailable && a.status != http.StatusNotFound {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		return a.status == http.StatusOK || a.status == http.StatusNotFound
	})
	eventually(t, "the released key is free", func() bool {
		return len(askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks?prefix=order:1", http.StatusOK).Locks) == 0
	})

	release()
	wait()
	newer()
	eventually(t, "the former locker is closed", func() bool {
		return len(askAdmin[console.Status](t, c, http.MethodGet, "/redlock/masters", http.StatusOK).Lockers) == 1
	})
	load(caddyfile("", "respond without"))
	eventually(t, "no locker is left", func() bool {
		return len(askAdmin[console.Status](t, c, http.MethodGet, "/redlock/masters", http.StatusOK).Lockers) == 0
	})
}

// sendAs sends a request to the admin endpoint; a Host in the header is the request's.
func sendAs(t *testing.T, c *caddyProcess, method, path string, header ...string) received {
	t.Helper()
	r := request(c.admin+path, header...)
	r.Method = method
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	return send(t, r)
}

// A key is the same in each way to name it: the mux of the admin endpoint doesn't clean it.
func TestConsoleKeys(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	b, _ := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), "redlock {query.k}\n"+b.proxy()))
	values := []string{"a%2F%2Fb", "..", ".", "%3Cscript%3E", "a%2F..%2Fb", "%7Bx%7D", "%2525", "a+b", "%C3%A4", "%3F%23%3B"}
	var urls []string
	for _, value := range values {
		urls = append(urls, c.url+"/?k="+value)
	}
	sendAll(t, requests(urls)...)
	var locks console.Locks
	eventually(t, "the requests hold their keys", func() bool {
		locks = askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks", http.StatusOK)
		return locks.Held == len(values)
	})
	for _, lock := range locks.Locks {
		for _, path := range []string{lock.Href, "locks/" + strings.ReplaceAll(url.PathEscape(lock.Key), ".", "%2E")} {
			seen := askAdmin[console.Inspection](t, c, http.MethodGet, "/redlock/"+path, http.StatusOK)
			if seen.Key != lock.Key || seen.Lockers[0].Fence != lock.Fence {
				t.Errorf("%q at %s: %+v", lock.Key, path, seen)
			}
		}
	}
}

// A socket, and no endpoint at all.
func TestConsoleEndpoints(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	socket := filepath.Join(t.TempDir(), "admin")
	site := "redlock a\nrespond ok"
	runCaddy(t, strings.Replace(caddyfile(mastersOption(servers, "timeout "+calm.String()), site), "{$ADMIN}", "unix/"+socket, 1))
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	eventually(t, "the socket shows the master", func() bool { // the endpoint and the site may be there before the app redlock has started
		response, err := client.Get("http://caddy/redlock/masters")
		if err != nil {
			t.Fatal(err)
		}
		a := read(t, response)
		return a.status == http.StatusOK && strings.Contains(a.body, servers[0].Addr())
	})

	c := runCaddy(t, strings.Replace(caddyfile(mastersOption(servers, "timeout "+calm.String()), site), "{$ADMIN}", "off", 1))
	if a := post(t, c.url); a.status != http.StatusOK || listens(strings.TrimPrefix(c.admin, "http://")) {
		t.Errorf("without an admin endpoint: status %d", a.status)
	}
}

// The commands of docs/console.md, and its configuration.
func TestConsoleDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	_, options, _ := strings.Cut(document, "```caddyfile\n{\n\tadmin localhost:2019 ")
	options, _, found := strings.Cut(options, "}\n```")
	commands := regexp.MustCompile(`(?m)^curl (?:-X ([A-Z]+) )?'?http://localhost:2019([^'\n]+)'?$`).FindAllStringSubmatch(document, -1)
	if !found || len(commands) != 5 {
		t.Fatalf("found %q, %q", options, commands)
	}
	servers := redistest.Start(t, 1)
	b, _ := newHeldBackend(t)
	port := fmt.Sprint(redistest.FreePort(t))
	config := caddyfile(mastersOption(servers, "timeout "+calm.String()), payRule+b.proxy())
	c := runCaddy(t, strings.Replace(config, "{$ADMIN}", "localhost:"+port+" "+strings.ReplaceAll(options, "2019", port), 1))
	c.admin = "http://localhost:" + port
	b.hold(t, c.url+"/orders/42/pay")
	lock := askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks", http.StatusOK).Locks[0]
	for _, command := range commands {
		path := regexp.MustCompile(`fence=\d+`).ReplaceAllString(command[2], fmt.Sprint("fence=", lock.Fence))
		a := sendAs(t, c, cmp.Or(command[1], http.MethodGet), path)
		if a.status != http.StatusOK || path != "/redlock/masters?ready" && path != "/redlock/masters" && !strings.Contains(a.body, lock.Key) {
			t.Errorf("%s: status %d: %s", command[0], a.status, a.body)
		}
	}
	// What a browser sends for a page that is opened by hand, and for the next one, from there.
	for _, header := range [][]string{{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", "none"}, {"Sec-Fetch-Mode", "cors", "Referer", c.admin + "/redlock/"}} {
		if a := sendAs(t, c, http.MethodGet, "/redlock/", header...); a.status != http.StatusOK {
			t.Errorf("%q: status %d: %s", header, a.status, a.body)
		}
	}
}

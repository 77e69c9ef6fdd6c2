package agent_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// TestOddRequests: each is answered, and the connection is closed where the next request can't be told from this one.
func TestOddRequests(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const next = "GET /healthz HTTP/1.1\r\nHost: redlock\r\n\r\n"
	for name, c := range map[string]struct {
		send   string
		status int
		closed bool
	}{
		"HTTP/1.0":       {"POST /v1/lock HTTP/1.0\r\nHost: redlock\r\nContent-Length: 2\r\n\r\n{}", 505, true},
		"garbage":        {"POST /v1/\x00\r\n\r\n", 400, true},
		"no such path":   {"POST /v1/other HTTP/1.1\r\nHost: redlock\r\nContent-Length: 2\r\n\r\n{}", 404, false},
		"no such method": {"GET /v1/lock HTTP/1.1\r\nHost: redlock\r\n\r\n", 405, false},
		"large head":     {"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nA: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", 431, true},
		"full target":    {"POST http://redlock/v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: 2\r\n\r\n{}", 404, false},
		"two lengths":    {"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, true},
		"bad chunk":      {"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400, true},
		"refused":        {"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: 2\r\n\r\n{}", 400, false},
		"last":           {"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", 400, true},
		"asks first":     {"POST /v1/rule HTTP/1.1\r\nHost: redlock\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n{\"key\":\"a\"}", 100, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := dialWire(t, client)
			if _, err := io.WriteString(w, c.send+next); err != nil {
				t.Fatal(err)
			}
			response := w.response()
			if response.StatusCode != c.status || response.Header.Get("Redlock-Agent") != "1" && c.status != 100 {
				t.Errorf("status %d, version %q; want %d", response.StatusCode, response.Header.Get("Redlock-Agent"), c.status)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			if c.status == 100 {
				if response = w.response(); response.StatusCode != 200 {
					t.Errorf("then status %d", response.StatusCode)
				}
				_, _ = io.Copy(io.Discard, response.Body)
			}
			if after, err := http.ReadResponse(w.responses, nil); (err != nil) != c.closed || err == nil && after.StatusCode != 200 {
				t.Errorf("the next request: %v, %v", after, err)
			}
		})
	}
}

// TestFollowedWhileHeld: a request behind one that holds a lock ends the hold, as the connection can't be watched any more; the client may
// rely on what it was promised.
func TestFollowedWhileHeld(t *testing.T) {
	locker := newLocker(t, live)
	w := dialWire(t, serve(t, "unix", agent.New(locker)))
	const body = `{"key":"k","ttl":"3s"}`
	if _, err := fmt.Fprintf(w, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: %d\r\n\r\n%sGET", len(body), body); err != nil {
		t.Fatal(err)
	}
	if response := w.response(); response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	requireFree(t, locker, "k")
	if _, err := io.ReadAll(w.responses); err != nil {
		t.Error(err)
	}
}

// TestPanic: a request that panics ends its own connection only.
func TestPanic(t *testing.T) {
	panics := func(string) (middleware.Observer, func()) { panic("of the test") }
	client := serve(t, "unix", agent.New(newLocker(t, live), agent.WithObservers(panics)))
	if response, err := client.Post("http://redlock/v1/rule", "application/json", strings.NewReader(`{"key":"a"}`)); err == nil {
		t.Errorf("status %d", response.StatusCode)
	}
	h := post(t, client, "/v1/lock", `{"key":"k"}`)
	h.first()
	h.end()
}

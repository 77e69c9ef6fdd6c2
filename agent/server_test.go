package agent_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestOddRequests: each is answered, and the connection is closed where the next request can't be told from this one. What isn't a request
// of HTTP is answered by net/http's server, without the version.
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
		"full target":    {"POST http://redlock/v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: 2\r\n\r\n{}", 400, false},
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
			if response.StatusCode != c.status {
				t.Errorf("status %d, want %d", response.StatusCode, c.status)
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

const wholeLock = "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nContent-Length: 22\r\n\r\n" + `{"key":"k","ttl":"3s"}`

// TestFollowedWhileHeld: what comes behind a request that holds a lock ends the hold, as the connection can't be watched any more; the client
// may rely on what it was promised. If it came with the request, it waits.
func TestFollowedWhileHeld(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	w := dialWire(t, client)
	_, _ = io.WriteString(w, wholeLock)
	if response := w.response(); response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	_, _ = io.WriteString(w, "GET /healthz")
	requireFree(t, locker, "k")
	_, _ = io.Copy(io.Discard, w) // until it is closed

	w = dialWire(t, client)
	_, _ = io.WriteString(w, strings.Replace(wholeLock, "3s", "1m", 1)+"GET /healthz HTTP/1.1\r\n")
	if response := w.response(); response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	requireHeld(t, locker, "k")
	_ = w.Close()
	requireFree(t, locker, "k") // before its ttl
}

// TestHalfClosed: a client that says no more has left, whether it would still read or not.
func TestHalfClosed(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		locker := newLocker(t, live)
		client := serve(t, network, agent.New(locker))
		for _, request := range []string{
			strings.Replace(wholeLock, "3s", "1m", 1),
			"POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\na\r\n{\"key\":\"k\"\r\n2\r\n}\n\r\n",
		} {
			w := dialWire(t, client)
			_, _ = io.WriteString(w, request)
			if response := w.response(); response.StatusCode != http.StatusOK {
				t.Fatal(response.Status)
			}
			requireHeld(t, locker, "k")
			if err := w.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			requireFree(t, locker, "k")
			_, _ = io.Copy(io.Discard, w) // until it is closed
		}
	}
}

// TestAfterHealth: a client may ask whether the agent is ready, and then for a lock, over one connection.
func TestAfterHealth(t *testing.T) {
	w := dialWire(t, serve(t, "unix", agent.New(newLocker(t, live))))
	for _, path := range []string{"/healthz", "/readyz", "/nothing"} {
		_, _ = fmt.Fprintf(w, "GET %s HTTP/1.1\r\nHost: redlock\r\n\r\n", path)
		_, _ = io.Copy(io.Discard, w.response().Body)
	}
	w.send("/v1/lock", `{"key":"k"}`+"\n")
	if response := w.response(); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

// TestStrangers: connections to a TCP address that have not shown the token make room for newer ones, and neither for a client's nor on the
// Unix socket.
func TestStrangers(t *testing.T) {
	locker := newLocker(t, live)
	const room = 4
	a := agent.New(locker, agent.WithToken("secret"), agent.WithMaxClients(room))
	unix, tcp := listen(t, "unix"), listen(t, "tcp")
	serveOn(t, a, unix, tcp)
	client := dialWire(t, clientOf(t, tcp))
	const ask = "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"key\":\"%s\"}\n\r\n"
	_, _ = fmt.Fprintf(client, ask, "k")
	if response := client.response(); response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	var strangers []*wire
	for i := range 10 * room {
		s := dialWire(t, clientOf(t, tcp))
		if i%2 == 0 {
			_, _ = io.WriteString(s, "GET /healthz HTTP/1.1\r\nHost: redlock\r\n\r\n")
		}
		strangers = append(strangers, s)
	}
	for i, network := range []net.Listener{tcp, unix} {
		w := dialWire(t, clientOf(t, network))
		_, _ = fmt.Fprintf(w, ask, string(rune('a'+i)))
		if response := w.response(); response.StatusCode != http.StatusOK {
			t.Error(network.Addr().Network(), response.Status)
		}
	}
	for _, s := range strangers[:9*room] {
		_, _ = io.Copy(io.Discard, s) // until it is closed
	}
	requireHeld(t, locker, "k")
	client.end()
	requireFree(t, locker, "k")
}

// TestIdleStrangers: a connection without the token is closed while one that had it before may still be used, whatever was asked on it.
func TestIdleStrangers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	t.Parallel()
	listener := listen(t, "tcp")
	serveOn(t, agent.New(newLocker(t, live), agent.WithToken("secret")), listener)
	const token = "Authorization: Bearer secret\r\n"
	ask := func(w *wire, path, more string) (status int) {
		_, _ = fmt.Fprintf(w, "GET %s HTTP/1.1\r\nHost: redlock\r\n%s\r\n", path, more)
		response, err := http.ReadResponse(w.responses, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return 0
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	known := dialWire(t, clientOf(t, listener))
	ask(known, "/nothing", token)
	ask(known, "/healthz", "")
	var strangers []*wire
	for i, path := range []string{"/healthz", "/readyz", "/nothing"} {
		strangers = append(strangers, dialWire(t, clientOf(t, listener)))
		ask(strangers[i], path, "")
	}
	for _, s := range strangers {
		_, _ = io.Copy(io.Discard, s) // until it is closed
	}
	if status := ask(known, "/nothing", token); status != http.StatusNotFound {
		t.Errorf("once the strangers are gone, the client gets status %d", status)
	}
}

// TestFullDoor: who finds no room is told by the end of the connection, and the next one gets in once somebody has left.
func TestFullDoor(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live), agent.WithMaxClients(1)))
	const ask = "GET /healthz HTTP/1.1\r\nHost: redlock\r\n\r\n"
	first, second := dialWire(t, client), dialWire(t, client)
	for _, w := range []*wire{first, second} {
		_, _ = io.WriteString(w, ask)
		w.response()
	}
	for range 5 {
		_, _ = io.Copy(io.Discard, dialWire(t, client)) // until it is closed
	}
	_ = first.Close()
	for {
		w := dialWire(t, client)
		_, _ = io.WriteString(w, ask)
		if _, err := http.ReadResponse(w.responses, nil); err == nil {
			return
		}
	}
}

// TestPanic: a request that panics ends its own connection only.
func TestPanic(t *testing.T) {
	panics := func(rule string) (middleware.Observer, func()) {
		if strings.HasPrefix(rule, "/") { // at the start
			return nil, nil
		}
		panic("of the test")
	}
	client := serve(t, "unix", agent.New(newLocker(t, live), agent.WithObservers(panics)))
	if response, err := client.Post("http://redlock/v1/rule", "application/json", strings.NewReader(`{"key":"a"}`)); err == nil {
		t.Errorf("status %d", response.StatusCode)
	}
	h := post(t, client, "/v1/lock", `{"key":"k"}`)
	h.first()
	h.end()
}

// The response to a call whose wait the agent has ended may still be on its way when the last holder leaves: the client gets it, even without grace.
func TestLastResponses(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, masters *simnet.Net) {
		locker := masters.Locker(t)
		if _, err := locker.Lock(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
		p := newPipes()
		a, served := agent.New(locker), make(chan error, 1)
		go func() { served <- a.Serve(t.Context(), 0, p) }()
		here, there := net.Pipe()
		p.come <- there
		if _, err := io.WriteString(here, "POST /v1/lock HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"key\":\"key\"}"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.Retire()
		time.Sleep(time.Second) // the client is slow to read
		response, err := http.ReadResponse(bufio.NewReader(here), nil)
		if err != nil || response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%v, %v", response, err)
		}
		_ = here.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// hostileKinds has what hostile clients send at once, and how they go on.
var hostileKinds = map[string]struct {
	headers, body, more string
	leaves              bool
}{
	"slow headers":          {"X-Slow: ", "", "a", false},
	"slow bodies":           {"Content-Length: 1000000\r\n\r\n", "{", " ", false},
	"slow chunks":           {"Transfer-Encoding: chunked\r\n\r\n", "80000\r\n{", " ", false},
	"declared and not sent": {"Content-Length: 1048576\r\n\r\n", "", "", false},
	"one byte":              {"Content-Length: 1000\r\n\r\n", "{", "", false},
	"left half-way":         {"Content-Length: 2000\r\n\r\n", strings.Repeat(" ", 1000), "", true},
}

// hostile keeps n connections of a kind to a server, half of them for an order and half for a webhook, until stop is called. Ten of them go on after
// each call of next: however slow the machine is, the server isn't asked for more than it can do.
func hostile(t *testing.T, server, kind string, n int) (next, stop func()) {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	k := hostileKinds[kind]
	open := func(i int) net.Conn {
		conn, err := net.Dial("tcp", address.Host)
		if err != nil {
			t.Error(err)
			return nil
		}
		path := []string{"/orders/1/pay", "/hook"}[i%2]
		_, _ = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: "+address.Host+"\r\nContent-Type: application/json\r\n"+k.headers+k.body)
		return conn
	}
	var conns []net.Conn
	for i := range n {
		if conn := open(i); conn != nil {
			conns = append(conns, conn)
		}
	}
	turns := make(chan struct{}, 10)
	var works sync.WaitGroup
	works.Go(func() {
		for len(conns) > 0 {
			for i, conn := range conns {
				if _, on := <-turns; !on {
					return
				}
				if k.leaves {
					_ = conn.Close()
					if conn = open(i); conn == nil {
						return
					}
					conns[i] = conn
				} else if _, err := io.WriteString(conn, k.more); err != nil {
					t.Errorf("a hostile client was disconnected: %v", err)
					return
				}
			}
		}
	})
	next = func() {
		for range cap(turns) {
			select {
			case turns <- struct{}{}:
			default: // the former ones are under way, or a client was disconnected
			}
		}
	}
	return next, func() {
		close(turns)
		works.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
}

// p99s sends honest requests to the servers in turn, and returns the 99th percentile of their times for each server. All of them must
// be served although the hostile connections stay: a request that waited for one of these would wait for ever.
func p99s(t *testing.T, next func(), servers ...string) []time.Duration {
	t.Helper()
	client := &http.Client{Timeout: 3 * bound} // none waits for ever
	defer client.CloseIdleConnections()
	took := make([][]time.Duration, len(servers))
	for i := range 200 {
		for s, server := range servers {
			path := []string{fmt.Sprintf("/orders/%d/pay", s), "/hook"}[i%2]
			next()
			start := time.Now()
			response, err := client.Post(server+path, "application/json", strings.NewReader(fmt.Sprintf(`{"id":"%d-%d"}`, s, i)))
			if err != nil {
				t.Fatalf("an honest request: %v", err)
			}
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if took[s] = append(took[s], time.Since(start)); err != nil || string(text) != "served" {
				t.Fatalf("an honest request: %d %s %v", response.StatusCode, text, err)
			}
		}
	}
	worst := make([]time.Duration, len(servers))
	for s := range servers {
		slices.Sort(took[s])
		worst[s] = took[s][len(took[s])*99/100]
	}
	return worst
}

// testHostile requires that honest requests are served beside hostile connections. It logs how long they take, beside those to a
// server that has none, at the same time on the same machine: other processes may slow down either of them, so that nothing is
// required of the ratio.
func testHostile(t *testing.T, attacked, quiet string) {
	n := 1000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if most := int(min(limit.Cur, 1<<20)) - 500; most < 2*n { // both ends may be in this process
		n = most / 2
	}
	for kind := range hostileKinds {
		t.Run(kind, func(t *testing.T) {
			next, stop := hostile(t, attacked, kind, n)
			defer stop()
			worst := p99s(t, next, quiet, attacked)
			t.Logf("%d connections; p99 of honest requests: %v, and %v where there are none: ratio %.2f", n, worst[1], worst[0], float64(worst[1])/float64(worst[0]))
		})
	}
}

// readAll reads the body, however slowly the client sends it.
func readAll(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "served")
}

func TestHostileConnectionsToCaddy(t *testing.T) {
	needTime(t)
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(readAll))
	t.Cleanup(backend.Close)
	config := caddyfile(mastersOption(redistest.Start(t, 3), "timeout "+calm.String())+"\nservers {\ntimeouts {\nread_header 1h\n}\n}", `
		redlock /orders* order:{path.1:int} {
			buffer_body
			body_timeout 1h
		}
		redlock /hook hook:{body.id} {
			body_timeout 1h
		}
		reverse_proxy `+backend.Listener.Addr().String())
	testHostile(t, runCaddy(t, config).url, runCaddy(t, config).url)
}

func TestHostileConnectionsToNetHTTP(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	serve := func() string {
		locker, err := redlock.Open(redistest.URLs(servers), redlock.WithTimeout(calm), redlock.WithRestartGuard(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close() })
		served := http.HandlerFunc(readAll)
		patient := time.Hour
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id:int}", middleware.Rule{BufferBody: new(true), BodyTimeout: patient})(served))
		mux.Handle("POST /hook", middleware.New(locker, "hook:{body.id}", middleware.Rule{BodyTimeout: patient})(served))
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.URL
	}
	testHostile(t, serve(), serve())
}

// Behind a trusted proxy, clients are told apart by X-Forwarded-For: one that sends much does not keep out another.
func TestShareOfAClientInCaddy(t *testing.T) {
	t.Parallel()
	c := runCaddy(t, strings.Replace(caddyfile("redlock {\nbody_budget 2MiB\n}", `
		redlock hook:{body.id} {
			body_timeout 1h
		}
		respond "served"`), "{\n", "{\n\tservers {\n\t\ttrusted_proxies static 127.0.0.1/32\n\t}\n", 1))
	address := strings.TrimPrefix(c.url, "http://")
	for i := range 20 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		var sent sync.WaitGroup
		sent.Go(func() { // as much as Caddy takes
			_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Type: application/json\r\nContent-Length: 1048576\r\n\r\n{\"id\":%d%s", address, i, strings.Repeat(" ", 1_000_000))
		})
		defer sent.Wait()
		defer func() { _ = conn.Close() }()
	}
	client := &http.Client{Timeout: bound}
	for i := range 20 {
		time.Sleep(20 * time.Millisecond) // the more Caddy has read, the harder it is
		body := fmt.Sprintf(`{"id":"honest%d","x":"%s"}`, i, strings.Repeat("x", 60_000))
		request, err := http.NewRequest(http.MethodPost, c.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Forwarded-For", "192.0.2.2")
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("another client: %d", response.StatusCode)
		}
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// slowShop is an upstream that answers bit by bit: each part when it is told to.
type slowShop struct {
	*httptest.Server
	part chan string // "" ends the response
	runs chan bool
}

func newSlowShop(t *testing.T, mediaType string) *slowShop {
	s := &slowShop{part: make(chan string), runs: make(chan bool, 100)}
	ended := make(chan struct{})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.runs <- true
		w.Header().Set(contentType, mediaType)
		for {
			select {
			case part := <-s.part:
				if part == "" {
					return
				}
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
			case <-ended:
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(sync.OnceFunc(func() { close(ended) }))
	return s
}

func (s *slowShop) proxy() string { return proxyTo(s.Listener.Addr()) }

func idempotentRequest(url string) *http.Request {
	return withBody(url, "{}", "Idempotency-Key", `"a"`, "Authorization", "Bearer alice")
}

// TestRememberedStreams: a client gets each part of a response as soon as the upstream has sent it. The repeat gets
// all at once; events are not remembered.
func TestRememberedStreams(t *testing.T) {
	t.Parallel()
	for mediaType, replayed := range map[string]bool{"text/event-stream": false, "text/plain": true} {
		t.Run(mediaType, func(t *testing.T) {
			s := newSlowShop(t, mediaType)
			c := runCaddy(t, caddyfile("", rememberRule+s.proxy()))
			stream := func() {
				t.Helper()
				answered := make(chan *http.Response, 1)
				go func() {
					response, err := client.Do(idempotentRequest(c.url).WithContext(t.Context()))
					if err != nil {
						t.Error(err)
						close(answered)
						return
					}
					answered <- response
				}()
				within(t, s.runs, "the request runs")
				var response *http.Response
				for _, part := range []string{"one\n", "two\n", "three\n"} {
					s.part <- part
					if response == nil {
						if response = within(t, answered, "the response begins"); response == nil {
							return
						}
						defer response.Body.Close()
					}
					got := make([]byte, len(part))
					if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != part { // the upstream waits until it is read
						t.Fatalf("%q, %v: want %q", got, err, part)
					}
				}
				s.part <- ""
				if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
					t.Errorf("behind the end: %q, %v", rest, err)
				}
			}
			stream()
			if !replayed {
				stream()
				return
			}
			if a := send(t, idempotentRequest(c.url)); a.body != "one\ntwo\nthree\n" || a.header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%d %v %q: want the first response", a.status, a.header, a.body)
			}
		})
	}
}

// TestRememberedForAClientThatLeaves: a client leaves in the middle of the first response. The request runs to its end, and the client's repeat gets all of
// that response, after 409 as long as it runs.
func TestRememberedForAClientThatLeaves(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	s := newSlowShop(t, "text/plain")
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), rememberRule+s.proxy()))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	begun := make(chan *http.Response, 1)
	go func() {
		response, err := client.Do(idempotentRequest(c.url).WithContext(ctx))
		if err != nil {
			t.Error(err)
		}
		begun <- response
	}()
	within(t, s.runs, "the request runs")
	s.part <- "one\n"
	response := within(t, begun, "the response begins")
	if response == nil {
		return
	}
	leave()
	_ = response.Body.Close()
	a := send(t, idempotentRequest(c.url))
	requireStatus(t, a, http.StatusConflict)
	if outcome := a.header.Get("Redlock-Outcome"); outcome != "duplicate" {
		t.Errorf("outcome %q while the first runs", outcome)
	}
	s.part <- "two\n"
	s.part <- ""
	eventually(t, "the response is remembered", func() bool {
		a = send(t, idempotentRequest(c.url))
		return a.status == http.StatusOK
	})
	if a.body != "one\ntwo\n" || a.header.Get("Idempotency-Replayed") != "true" || len(s.runs) > 0 {
		t.Errorf("%q, %v, %d more runs", a.body, a.header, len(s.runs))
	}
}

// TestRememberAndUpgrades: a connection that is taken over for another protocol is no response to remember.
func TestRememberAndUpgrades(t *testing.T) {
	t.Parallel()
	var runs safeBuffer
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(&runs, "r")
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		line, _ := buffer.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}))
	t.Cleanup(upstream.Close)
	c := runCaddy(t, caddyfile("", strings.Replace(rememberRule, "remember 1h", "remember 1h\nallow_upgrade", 1)+"reverse_proxy "+upstream.Listener.Addr().String()))
	for n := 1; n <= 2; n++ {
		eventually(t, "a connection is taken over", func() bool {
			conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nIdempotency-Key: a\r\nAuthorization: x\r\n\r\nhello\n")
			all, err := io.ReadAll(conn)
			if err != nil && !errors.Is(err, net.ErrClosed) {
				t.Log(err)
			}
			return strings.Contains(string(all), " 101 ") && strings.HasSuffix(string(all), "echo hello\n")
		})
		if got := len(runs.String()); got < n {
			t.Errorf("%d connections have reached the upstream, want %d", got, n)
		}
	}
}

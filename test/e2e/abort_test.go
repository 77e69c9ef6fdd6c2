package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestHoldAfterAbort: Caddy's proxy gives up on an upstream that goes on working. The key stays locked for the time of
// hold_after_abort, and then passes to the next that waits. Caddy does not wait for it when it exits.
func TestHoldAfterAbort(t *testing.T) {
	t.Parallel()
	begun, done := make(chan bool, 10), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut: // works on, even when the proxy has left
			begun <- true
			<-done
		default:
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}))
	t.Cleanup(upstream.Close)
	t.Cleanup(func() { close(done) })
	address := upstream.Listener.Addr().String()
	proxy := "@put method PUT\nreverse_proxy @put " + address + " {\ntransport http {\nresponse_header_timeout 200ms\n}\n}\nreverse_proxy " + address
	c := runCaddy(t, caddyfile("", `
		handle /long/* {
			redlock long:{path.1} {
				hold_after_abort 1m
			}
			`+proxy+`
		}
		handle /short/* {
			redlock short:{path.1} {
				hold_after_abort 500ms
				wait 10s
			}
			`+proxy+`
		}`))
	put := func(path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, c.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		<-begun
		return response.StatusCode
	}
	if status := put("/long/1"); status < 500 {
		t.Errorf("the proxy has not given up: %d", status)
	}
	requireStatus(t, post(t, c.url+"/long/1"), http.StatusLocked)
	requireStatus(t, post(t, c.url+"/long/2"), http.StatusOK)

	put("/short/1")
	requireStatus(t, post(t, c.url+"/short/1"), http.StatusOK)
}

// TestHoldAfterBrokenUpload: a client breaks off its upload after the upstream has begun to read it. The key stays locked; without
// hold_after_abort it is free as soon as the proxy has noticed.
func TestHoldAfterBrokenUpload(t *testing.T) {
	t.Parallel()
	begun, broken := make(chan bool, 1), make(chan error, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			return
		}
		_, _ = io.ReadFull(r.Body, make([]byte, 1000))
		begun <- true
		_, err := io.Copy(io.Discard, r.Body)
		broken <- err
	}))
	t.Cleanup(upstream.Close)
	proxy := "reverse_proxy " + upstream.Listener.Addr().String()
	c := runCaddy(t, caddyfile("", `
		handle /held/* {
			redlock held:{path.1} {
				hold_after_abort 1m
			}
			`+proxy+`
		}
		handle /free/* {
			redlock free:{path.1}
			`+proxy+`
		}`))
	for _, path := range []string{"/held/1", "/free/1"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		// More than the transports on the way buffer before they send.
		_, _ = fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\n\r\n%s", path, conn.RemoteAddr(), strings.Repeat("x", 100_000))
		within(t, begun, "the upstream reads")
		requireStatus(t, post(t, c.url+path), http.StatusLocked)
		_ = conn.Close()
		if within(t, broken, "the upload breaks off") == nil {
			t.Error("the upstream has read a whole body")
		}
		if path == "/free/1" {
			eventually(t, "the key is free", func() bool { return post(t, c.url+path).status == http.StatusOK })
		}
	}
	// By now the first would be free, as the second is, without hold_after_abort.
	requireStatus(t, post(t, c.url+"/held/1"), http.StatusLocked)
}

// within receives a value that must come soon.
func within[T any](t *testing.T, from <-chan T, what string) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(bound):
		t.Fatalf("not within %v: %s", bound, what)
	}
	return value
}

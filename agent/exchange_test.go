package agent_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// wire is a connection on which requests are written as bytes.
type wire struct {
	t testing.TB
	net.Conn
	responses *bufio.Reader
}

// dialWire connects to an agent that client reaches.
func dialWire(t testing.TB, client *http.Client) *wire {
	t.Helper()
	c, err := client.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &wire{t, c, bufio.NewReader(c)}
}

// send writes a request whose body stays open after these lines.
func (w *wire) send(path, lines string) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", path, len(lines), lines); err != nil {
		w.t.Fatal(err)
	}
}

// end ends the body of the request.
func (w *wire) end() {
	w.t.Helper()
	if _, err := io.WriteString(w, "0\r\n\r\n"); err != nil {
		w.t.Fatal(err)
	}
}

// response reads the head of a response.
func (w *wire) response() *http.Response {
	w.t.Helper()
	response, err := http.ReadResponse(w.responses, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return response
}

// TestKeptConnections asks again and again over the same connections, on which clients end their bodies as soon as they are answered: none
// of these ends is taken for that of the next request.
func TestKeptConnections(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	lock, err := locker.TryLock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	requests := 1000
	if redistest.Few() {
		requests = 200
	}
	done := make(chan struct{})
	for i := range 8 {
		w := dialWire(t, client)
		go func() {
			defer func() { done <- struct{}{} }()
			for n := range requests {
				body, want := fmt.Sprintf(`{"key":"k%d"}`, i), http.StatusOK
				if n%2 == 0 {
					body, want = `{"key":"held","try":true}`, http.StatusLocked
				}
				w.send("/v1/lock", body+"\n")
				response, err := http.ReadResponse(w.responses, nil)
				if err != nil || response.StatusCode != want {
					t.Errorf("request %d of connection %d: %v, %v; want %d", n, i, response, err, want)
					return
				}
				w.end()
				if _, err := io.Copy(io.Discard, response.Body); err != nil {
					t.Errorf("request %d of connection %d: %v", n, i, err)
					return
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestGivenUpClientThatLeaves: a client that was given up, and whose lock is then lost, is still noticed when it leaves. The wake-up for
// the loss had its connection read with a deadline that was over, again and again, until the end that the client had been promised.
func TestGivenUpClientThatLeaves(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker)) // which must end in time, and that is sooner than the TTL
	w := dialWire(t, client)
	w.send("/v1/lock", `{"key":"k","heartbeat":"1ms"}`+"\n")
	lines := json.NewDecoder(w.response().Body)
	var first, last line
	if err := errors.Join(lines.Decode(&first), lines.Decode(&last)); err != nil || last.Lost != "heartbeat" {
		t.Fatalf("%+v, %v", last, err)
	}
	if err := locker.Close(); err != nil { // which loses the lock
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // so that the wake-up comes before the end of the connection
	_ = w.Close()
}

//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// lock asks for the lock on k as curl does, and returns the response, or nil.
func (a *agentProcess) lock(body string) *http.Response {
	response, err := a.client().Post("http://redlock/v1/lock", "", strings.NewReader(body))
	if err != nil {
		return nil
	}
	_ = response.Body.Close()
	return response
}

// waiting returns how many calls of the agent wait for a lock. Those that wait for one of the same process are in no queue of the masters.
func (a *agentProcess) waiting() (n int) {
	response, err := a.client().Get("http://redlock/console/masters")
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	var status struct{ Lockers []struct{ Waiting int } }
	_ = json.NewDecoder(response.Body).Decode(&status)
	for _, l := range status.Lockers {
		n += l.Waiting
	}
	return n
}

// requireStopping fails if a response is not that of an agent that is about to stop.
func requireStopping(t *testing.T, what string, response *http.Response) {
	t.Helper()
	if response == nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("%s: %v, want 503 with Retry-After", what, response)
	}
}

// requireExit fails if the agent does not end with this exit code, -1 being that of a signal.
func (a *agentProcess) requireExit(want int) {
	a.t.Helper()
	eventually(a.t, "the agent has ended", func() bool {
		select {
		case <-a.exited:
			return true
		default:
			return false
		}
	})
	if code := a.cmd.ProcessState.ExitCode(); code != want {
		a.t.Errorf("exit code %d, want %d", code, want)
	}
}

// TestAgentEnds: TERM refuses new requests and ends waits; those who hold locks may end, also with masters that hang.
func TestAgentEnds(t *testing.T) {
	t.Parallel()
	for _, hung := range []int{0, 1, 2} {
		servers := redistest.Start(t, 3)
		a := startAgent(t, servers, "--grace", "10m", "--restart-guard", "off", "--timeout", "500ms")
		h := a.hold(`{"key":"k","ttl":"10m"}`)
		waits := make(chan *http.Response, 1)
		go func() { waits <- a.lock(`{"key":"k"}`) }()
		eventually(t, "one waits", func() bool { return a.waiting() == 1 })
		for _, s := range servers[:hung] {
			s.Pause()
		}
		a.signal(syscall.SIGTERM)
		requireStopping(t, "who waited", <-waits)
		requireStopping(t, "a new request", a.lock(`{"key":"other"}`))
		select {
		case <-a.exited:
			t.Error("the agent ended while a client held a lock")
		default:
		}
		_, _ = io.WriteString(h, "0\r\n\r\n")
		_ = h.Close()
		a.requireExit(0)
		for _, s := range servers[:hung] {
			s.Resume()
		}
	}
}

// TestAgentLeavesLocks: a lock that is still held after the grace, or when a second TERM comes, is left to its ttl.
func TestAgentLeavesLocks(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	for _, c := range []struct {
		grace  string
		second bool
		code   int
	}{{"1ms", false, 1}, {"0s", false, 1}, {"10m", true, -1}} {
		var log bytes.Buffer
		a := newAgent(t, servers, "--grace", c.grace)
		a.log = &log
		a.start()
		h := a.hold(`{"key":"k","ttl":"10m"}`)
		a.signal(syscall.SIGTERM)
		if c.second {
			eventually(t, "the agent is about to stop", func() bool {
				response := a.lock(`{"key":"other","try":true}`)
				return response != nil && response.StatusCode == http.StatusServiceUnavailable
			})
			a.signal(syscall.SIGTERM)
		}
		a.requireExit(c.code)
		if c.code == 1 && !strings.Contains(log.String(), "still held locks") {
			t.Errorf("the agent said %s", &log)
		}
		if len(servers[0].Keys()) == 0 {
			t.Error("the lock was released")
		}
		_ = h.Close()
		servers[0].Client().FlushAll(t.Context())
	}
}

// TestAgentEndsWithoutHolders: who only keeps a connection is no reason to wait, and nothing to complain about.
func TestAgentEndsWithoutHolders(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	for _, grace := range []string{"0s", "10ms"} {
		a := startAgent(t, servers, "--grace", grace)
		c := a.dial()
		a.signal(syscall.SIGTERM)
		a.requireExit(0)
		_ = c.Close()
	}
}

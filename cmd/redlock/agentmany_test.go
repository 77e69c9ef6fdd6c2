//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// resident returns the memory of the agent in KiB.
func (a *agentProcess) resident() (kib int) {
	a.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		a.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		a.t.Fatal(err)
	}
	return kib
}

// requireService takes and releases a lock.
func (a *agentProcess) requireService(key string) {
	a.t.Helper()
	c := a.hold(`{"key":"` + key + `"}`)
	if _, err := io.WriteString(c, "0\r\n\r\n"); err != nil {
		a.t.Fatal(err)
	}
	lines := bufio.NewReader(c)
	for {
		text, err := lines.ReadString('\n')
		if err != nil || text == "0\r\n" {
			a.t.Fatalf("key %s was not released: %v", key, err)
		}
		if text == `{"released":true}`+"\n" {
			return
		}
	}
}

// TestManyClients: thousands hold and wait, others send half of what they ought to, lies and garbage, and read nothing. The agent's memory
// is bounded, it serves all others meanwhile, and all keys are free once the clients have gone.
func TestManyClients(t *testing.T) {
	holders, waiters, hostile := 5000, 1000, 300
	if redistest.Few() {
		holders, waiters, hostile = 200, 40, 60
	}
	servers := redistest.Start(t, 3)
	a := startAgent(t, servers)
	before := a.resident()
	var all []net.Conn
	var mu sync.Mutex
	each := func(n int, one func(i int) net.Conn) {
		var group sync.WaitGroup
		for worker := range 16 {
			group.Go(func() {
				for i := worker; i < n; i += 16 {
					c := one(i)
					mu.Lock()
					all = append(all, c)
					mu.Unlock()
				}
			})
		}
		group.Wait()
	}
	const ttl = `"ttl":"1m"`
	each(holders, func(i int) net.Conn { return a.mustHold(fmt.Sprintf(`{"key":"held%d",%s}`, i, ttl)) })
	each(waiters, func(i int) net.Conn { return a.begin(fmt.Sprintf(`{"key":"held%d",%s}`+"\n", i%100, ttl)) })
	eventually(t, "all wait", func() bool { return a.waiting() == waiters })
	calm := a.resident()
	marks, garbage := strings.Repeat("\n", 4<<10), strings.Repeat("\x00\r{}", 1<<10)
	const head = "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\n"
	each(hostile, func(i int) net.Conn {
		switch i % 6 {
		case 0: // half a head
			return a.raw(head + "X-Half: ")
		case 1: // half a line
			return a.raw(head + "Transfer-Encoding: chunked\r\n\r\nffffff\r\n" + `{"key":"ha`)
		case 2: // a length that isn't sent
			return a.raw(head + "Content-Length: 60000\r\n\r\n{")
		case 3: // a turn with a frame that isn't sent
			const turn = `{"key":"{body.a}"}` + "\n" + `{"method":"POST","target":"/","header":{"Content-Type":["application/json"]},"length":-1,"body":true}` + "\n2000000000\n{"
			return a.raw(fmt.Sprintf("POST /v1/turn HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(turn), turn))
		case 4: // garbage instead of marks
			c := a.begin(fmt.Sprintf(`{"key":"garbage%d",%s}`+"\n", i, ttl))
			flood(c, garbage)
			return c
		default: // marks, and it never reads the lines that answer them
			c := a.begin(fmt.Sprintf(`{"key":"marks%d",%s}`+"\n", i, ttl))
			flood(c, marks)
			return c
		}
	})
	for i := range 20 {
		a.requireService(fmt.Sprintf("other%d", i))
	}
	full := a.resident()
	t.Logf("resident: %d KiB idle, %d KiB with %d holders and %d who wait, %d KiB with %d hostile clients more", before, calm, holders, waiters, full, hostile)
	if most := before + 128*(holders+waiters+hostile) + 64<<10; full > most {
		t.Errorf("%d KiB, want at most %d", full, most)
	}
	for _, c := range all {
		if c != nil {
			_ = c.Close()
		}
	}
	redistest.RequireNoKeys(t, servers)
}

// TestAgentFewFiles: an agent that may open too few files for its clients says so at its start. Whom it doesn't let in is told so, or is closed out at
// once, and doesn't hang.
func TestAgentFewFiles(t *testing.T) {
	t.Parallel()
	const files, clients = 200, 50
	log := new(redistest.Log)
	a := newAgent(t, redistest.Start(t, 1))
	a.limit, a.log = "-n 200", log
	a.start()
	eventually(t, "a warning with the numbers", func() bool {
		return regexp.MustCompile(`level=WARN .*LimitNOFILE.* open_files=200 needed=16484 max_clients=8192 clients=50\n`).MatchString(log.String())
	})
	var held []net.Conn
	for i := range clients {
		held = append(held, a.hold(fmt.Sprintf(`{"key":"held%d"}`, i)))
	}
	for i := range clients / 2 { // the agent closes their connections half a second later
		c := a.begin(fmt.Sprintf(`{"key":"more%d"}`+"\n", i))
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "at most 50 clients") {
			t.Fatalf("%s: %s", response.Status, text)
		}
	}
	var idle []net.Conn
	for range files {
		idle = append(idle, a.dial())
	}
	_, _ = io.Copy(io.Discard, idle[files-1]) // until it is closed
	for _, c := range append(idle, held[0]) {
		_ = c.Close()
	}
	eventually(t, "another client is let in", func() bool {
		response, err := a.client().Post("http://redlock/v1/lock", "application/json", strings.NewReader(`{"key":"other","max_hold":"1s"}`))
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	if text := log.String(); strings.Contains(text, "too many open files") || strings.Contains(text, "lost") {
		t.Error(text)
	}
}

// TestFilesOfUnit: the limit of open files in the unit for systemd is enough for the default.
func TestFilesOfUnit(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/redlock-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	var files int
	_, limit, _ := strings.Cut(string(text), "\nLimitNOFILE=")
	if _, err := fmt.Sscan(limit, &files); err != nil || clientsWithin(files, 2) < agent.DefaultMaxClients {
		t.Errorf("%d open files are enough for %d clients on two sockets: %v", files, clientsWithin(files, 2), err)
	}
	for _, c := range []struct{ files, listeners, clients int }{{1024, 1, 462}, {1024, 2, 231}, {101, 1, 1}, {0, 1, 1}, {math.MaxInt, 1, math.MaxInt/2 - 50}} {
		if got := clientsWithin(c.files, c.listeners); got != c.clients {
			t.Errorf("%+v: %d clients", c, got)
		}
	}
}

// flood sends many of these, if there is a connection.
func flood(c net.Conn, text string) {
	for range 50 {
		if c != nil {
			_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", len(text), text)
		}
	}
}

// raw sends these bytes. It returns nil if it can't.
func (a *agentProcess) raw(text string) net.Conn {
	c, err := net.Dial("unix", a.path)
	if err != nil {
		a.t.Error(err)
		return nil
	}
	_, _ = io.WriteString(c, text)
	return c
}

// begin sends a request for a lock whose body stays open.
func (a *agentProcess) begin(line string) net.Conn {
	return a.raw(fmt.Sprintf("POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line))
}

// mustHold is hold for goroutines of a test.
func (a *agentProcess) mustHold(body string) net.Conn {
	c := a.begin(body + "\n")
	if c == nil {
		return nil
	}
	if response, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil); err != nil || response.StatusCode != http.StatusOK {
		a.t.Errorf("%s: %v, %v", body, response, err)
	}
	return c
}

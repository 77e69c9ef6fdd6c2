//go:build unix

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// believer is a client that believes in its lock for exactly as long as the wire says.
type believer struct {
	fence uint64
	mu    sync.Mutex
	sent  time.Time
	end   time.Time
	gone  bool
	close func()
}

// believe takes the lock on k, or returns nil.
func believe(ctx context.Context, a *agentProcess, ttl time.Duration) *believer {
	conn, err := net.Dial("unix", a.path)
	if err != nil {
		return nil
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	b := &believer{sent: time.Now()}
	line := fmt.Sprintf(`{"key":"k","ttl":"%v","wait":"2s"}`+"\n", ttl)
	_, _ = fmt.Fprintf(conn, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		_ = conn.Close()
		return nil
	}
	lines := bufio.NewReader(response.Body)
	if !b.read(lines) {
		_ = conn.Close()
		return nil
	}
	unhook()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b.read(lines) {
		}
	}()
	b.close = func() {
		_, _ = io.WriteString(conn, "0\r\n\r\n")
		select {
		case <-ended:
		case <-time.After(50 * time.Millisecond): // a stopped agent
		}
		_ = conn.Close()
		<-ended
	}
	return b
}

// read takes a line, and reports whether the lock is still held.
func (b *believer) read(lines *bufio.Reader) bool {
	var line struct {
		Fence uint64 `json:"fence"`
		Valid int64  `json:"valid_ms"`
	}
	text, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &line)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || line.Valid == 0 {
		b.gone = true
		return false
	}
	if line.Fence > 0 {
		b.fence = line.Fence
	}
	b.end = b.sent.Add(time.Duration(line.Valid) * time.Millisecond)
	return true
}

func (b *believer) believes() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.gone && time.Now().Before(b.end)
}

// rotation is a file in which clients note when they were sure to hold the lock, as a resource sees them.
type rotation struct{ path string }

// note adds a stay: from was noted once the client had the lock, and until before it made sure that it still did. Both are of the
// monotonic clock, since began.
func (r rotation) note(from, until time.Duration, fence uint64) error {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, int64(from), int64(until), fence)
	return errors.Join(err, f.Close())
}

// stays returns how many there were, how many of them began before the one before had ended, and how many fences did not grow.
func (r rotation) stays() (all, overlaps, back int) {
	type stay struct {
		from, until int64
		fence       uint64
	}
	text, _ := os.ReadFile(r.path)
	var stays []stay
	for line := range strings.Lines(string(text)) {
		var s stay
		if _, err := fmt.Sscan(line, &s.from, &s.until, &s.fence); err == nil {
			stays = append(stays, s)
		}
	}
	slices.SortFunc(stays, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	end, fence := int64(-1), uint64(0)
	for _, s := range stays {
		if s.from <= end {
			overlaps++
		}
		if s.fence <= fence {
			back++
		}
		end, fence = max(end, s.until), max(fence, s.fence)
	}
	return len(stays), overlaps, back
}

// TestRotation: what the file says is counted.
func TestRotation(t *testing.T) {
	r := rotation{filepath.Join(t.TempDir(), "stays")}
	for _, s := range [][3]int64{{5, 9, 2}, {0, 3, 1}, {8, 20, 3}, {30, 40, 3}, {35, 36, 5}} {
		if err := r.note(time.Duration(s[0]), time.Duration(s[1]), uint64(s[2])); err != nil {
			t.Fatal(err)
		}
	}
	if all, overlaps, back := r.stays(); all != 5 || overlaps != 2 || back != 1 {
		t.Errorf("%d stays, %d overlaps, %d fences back; want 5, 2, 1", all, overlaps, back)
	}
}

// TestAgentsThatFail kills, stops and restarts agents under their clients, and masters under the agents, and cuts agents off from their
// masters. The clients never meet, and their fences grow.
func TestAgentsThatFail(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	agents := make([]*agentProcess, 2)
	ways := make([][]*redistest.Forwarder, len(agents)) // of each agent to the masters
	for i := range agents {
		var urls []string
		for _, s := range servers {
			way := redistest.NewForwarder(t, s)
			ways[i] = append(ways[i], way)
			urls = append(urls, "redis://"+way.Addr())
		}
		agents[i] = newAgent(t, servers, "--masters", strings.Join(urls, ","), "--max-ttl", "2s", "--restart-guard", "3s", "--timeout", "300ms")
		agents[i].start()
	}
	r, began := rotation{filepath.Join(t.TempDir(), "stays")}, time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	end := func() { cancel(); clients.Wait() }
	defer end()
	for i := range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				b := believe(ctx, agents[i%len(agents)], time.Second)
				if b == nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				stay := rand.N(300 * time.Millisecond)
				if i < 3 { // these hold across renewals, and want to hold for longer than what fails here lets them
					stay = 4 * time.Second
				}
				from, until := time.Since(began), time.Duration(-1)
				for now := from; b.believes() && now < from+stay; now = time.Since(began) {
					until = now
					time.Sleep(100 * time.Microsecond)
				}
				b.close()
				if until >= 0 {
					if err := r.note(from, until, b.fence); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	fail := []func(a int){
		func(a int) { agents[a].kill(); agents[a].start() },
		func(a int) { // for more than the lease
			agents[a].signal(syscall.SIGSTOP)
			time.Sleep(2200 * time.Millisecond)
			agents[a].signal(syscall.SIGCONT)
		},
		func(a int) { // what it sends is kept back, and comes when its leases are over
			setAll(ways[a], redistest.Weather{Requests: true, Replies: rand.N(2) == 0})
			time.Sleep(rand.N(2500 * time.Millisecond))
			setAll(ways[a], redistest.Weather{})
		},
		func(a int) {
			for _, w := range ways[a] {
				w.Cut()
			}
		},
		func(int) { // a quorum hangs
			for _, s := range servers[:2] {
				s.Pause()
			}
			time.Sleep(rand.N(2500 * time.Millisecond))
			for _, s := range servers[:2] {
				s.Resume()
			}
		},
		func(int) { // masters forget everything
			for _, s := range servers[:1+rand.N(2)] {
				s.Kill()
				s.Restart()
			}
		},
	}
	rounds := 12
	if n, err := strconv.Atoi(os.Getenv("CHAOS_TURNS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		fail[round%len(fail)](rand.N(len(agents)))
		time.Sleep(rand.N(400 * time.Millisecond))
	}
	before, _, _ := r.stays()
	eventually(t, "turns after all of this", func() bool { all, _, _ := r.stays(); return all > before+2 })
	end()
	all, overlaps, back := r.stays()
	if overlaps > 0 || back > 0 {
		t.Errorf("%d turns, %d overlaps, %d fences that were smaller than one before", all, overlaps, back)
	}
	t.Logf("%d turns", all)
}

func setAll(ways []*redistest.Forwarder, weather redistest.Weather) {
	for _, w := range ways {
		w.Set(weather)
	}
}

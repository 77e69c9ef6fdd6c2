package e2e

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// payScript takes a lock of the agent for a part of a request, which ends in the way that the parameter how says.
const payScript = `<?php
require CLIENT;
$log = fn (string $text) => file_put_contents(LOG, "$text\n", FILE_APPEND);
(new Redlock\Agent(SOCKET))->withLock('order:42', function (Redlock\Lock $lock) use ($log) {
    $log("begin {$lock->fence}");
    switch ($_GET['how']) {
        case 'work': usleep(50000); break;
        case 'exit': exit;
        case 'error': throw new Exception('declined');
        case 'memory': str_repeat('x', 1 << 40);
        case 'limit': set_time_limit(1); for (;;);
        case 'hang': for (;;) sleep(1);
    }
    $lock->check();
    $log("end {$lock->fence}");
});
echo 'paid';
`

// TestLockInPHP: the lock of the agent that a request takes in php-fpm is released when the request ends, however it does; the process lives on.
func TestLockInPHP(t *testing.T) {
	t.Parallel()
	if os.Getenv("CLIENTS") != "required" {
		t.Skip("needs php-fpm: make clients")
	}
	p := newPHP(t)
	p.url = runCaddy(t, caddyfile("", "root * "+p.dir+"\nphp_fastcgi "+startFPM(t))).url
	p.check(t, "work", "exit", "error", "memory", "limit")
	p.takeTurns(t)
	p.url = runCaddy(t, caddyfile("", "root * "+p.dir+"\nphp_fastcgi "+startFPM(t, "request_terminate_timeout = 5s"))).url
	p.check(t, "hang")
}

// phpSite is a folder with the script, and an agent for it.
type phpSite struct {
	dir, log, url string
	locker        *redlock.Locker
}

func newPHP(t *testing.T) *phpSite {
	t.Helper()
	p := &phpSite{dir: t.TempDir()}
	p.log = filepath.Join(p.dir, "log")
	socket := filepath.Join(p.dir, "s")
	p.locker = serveAgent(t, socket)
	client, err := filepath.Abs("../../clients/php/redlock.php")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("CLIENT", "'"+client+"'", "LOG,", "'"+p.log+"',", "SOCKET", "'"+socket+"'").Replace(payScript)
	if err := os.WriteFile(filepath.Join(p.dir, "pay.php"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// serveAgent runs an agent on a Unix socket, and returns the locker that it has.
func serveAgent(t *testing.T, socket string) *redlock.Locker {
	t.Helper()
	// A lock that nobody releases is not free before the test fails.
	locker, err := redlock.Open(redistest.URLs(redistest.Start(t, 3)), redlock.WithRestartGuard(0), redlock.WithMaxTTL(10*bound), redlock.WithTTL(10*bound), redlock.WithTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = agent.New(locker).Serve(ctx, 0, l)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return locker
}

// get sends a request whose work ends in this way, and returns whether it was answered with 200.
func (p *phpSite) get(t *testing.T, how string) bool {
	response, err := http.Get(p.url + "/pay.php?how=" + how)
	if err != nil {
		t.Errorf("%s: %v", how, err)
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// check sends requests one by one, after each of which the key must be free.
func (p *phpSite) check(t *testing.T, ways ...string) {
	t.Helper()
	for _, how := range ways {
		before := len(p.lines(t))
		answered := make(chan bool, 1)
		go func() { answered <- p.get(t, how) }()
		eventually(t, how+" has begun", func() bool { return len(p.lines(t)) > before })
		if how == "hang" || how == "limit" {
			if _, err := p.locker.TryLock(t.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("%s: %v while the script has the lock", how, err)
			}
		}
		if ok := <-answered; ok != (how == "work" || how == "exit") {
			t.Errorf("%s: answered with 200: %v", how, ok)
		}
		lock, err := p.locker.Lock(t.Context(), "order:42", redlock.WithWait(bound))
		if err != nil {
			t.Fatalf("%s: the lock was not released: %v", how, err)
		}
		_ = lock.Unlock()
	}
}

// takeTurns sends some at once.
func (p *phpSite) takeTurns(t *testing.T) {
	t.Helper()
	before := len(p.lines(t))
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if !p.get(t, "work") {
				t.Error("a request that works was not answered with 200")
			}
		})
	}
	all.Wait()
	lines := p.lines(t)[before:]
	for i := 0; i+1 < len(lines); i += 2 {
		if fence, ok := strings.CutPrefix(lines[i], "begin "); !ok || lines[i+1] != "end "+fence {
			t.Fatalf("they did not take turns: %q", lines)
		}
	}
	if len(lines) != 12 {
		t.Errorf("%q, want 6 that begin and end", lines)
	}
}

func (p *phpSite) lines(t *testing.T) []string {
	text, err := os.ReadFile(p.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

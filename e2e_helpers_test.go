package caddyredlock_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// bound is for what a healthy process does at once, however busy the machine is.
const bound = 20 * time.Second

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "caddy-redlock"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// build builds cmd/caddy, once.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(buildDir, "caddy")
	if out, err := exec.Command("go", "build", "-race", "-o", binary, "./cmd/caddy").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/caddy: %w\n%s", err, out)
	}
	return binary, nil
})

// caddyCommand is `caddy <args>`, with nothing of the user's own in its environment.
func caddyCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// caddyfile is a configuration of one site, in which {$LISTEN} and {$ADMIN} are for runCaddy.
func caddyfile(global, site string) string {
	return "{\n\tadmin {$ADMIN}\n\tauto_https off\n\tdefault_bind 127.0.0.1\n" + global + "\n}\n" +
		"http://{$LISTEN} {\n" + site + "\n}\n"
}

// mastersOption is the global option with these masters, which have just started, and further lines.
func mastersOption(servers []*redistest.Server, lines ...string) string {
	return "redlock {\nmasters " + strings.Join(redistest.URLs(servers), " ") + "\nrestart_guard off\n" + strings.Join(lines, "\n") + "\n}"
}

// caddyProcess is a running Caddy.
type caddyProcess struct {
	url, admin string
	cmd        *exec.Cmd
	log        *safeBuffer
	exited     chan struct{} // closed when the process has ended
}

// runCaddy runs Caddy with a Caddyfile until the end of the test.
func runCaddy(t *testing.T, config string) *caddyProcess {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	listen, admin := freeAddr(t), freeAddr(t)
	c := &caddyProcess{
		url:    "http://" + listen,
		admin:  "http://" + admin,
		cmd:    caddyCommand(t, "run", "--adapter", "caddyfile", "--config", file),
		log:    new(safeBuffer),
		exited: make(chan struct{}),
	}
	c.cmd.Env = append(c.cmd.Env, "LISTEN="+listen, "ADMIN="+admin, "CADDY_ADMIN="+admin)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait() // see ProcessState
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.exited
		log := c.log.String()
		if strings.Contains(log, "WARNING: DATA RACE") || strings.Contains(log, "panic") {
			t.Error("data race or panic in Caddy")
		}
		if t.Failed() {
			t.Logf("Caddy's log, at most the last 20 KB:\n%s", log[max(0, len(log)-20_000):])
		}
	})
	eventually(t, "Caddy serves", func() bool {
		select {
		case <-c.exited:
			t.Fatal("Caddy has ended")
		default:
		}
		return listens(listen)
	})
	return c
}

func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// freeAddr is an address on which nobody listens. Its port is below those of outgoing connections.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000))
		if listener, err := net.Listen("tcp", addr); err == nil {
			_ = listener.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

type safeBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// answer is an HTTP answer; the status is 0 if there was none.
type answer struct {
	status int
	header http.Header
	body   string
}

var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 250},
	Timeout:   time.Minute,
}

// send sends a request. It may be called in any goroutine.
func send(t *testing.T, r *http.Request) answer {
	t.Helper()
	response, err := client.Do(r)
	if err != nil {
		t.Errorf("%s %s: %v", r.Method, r.URL, err)
		return answer{}
	}
	return read(t, response)
}

func read(t *testing.T, response *http.Response) answer {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s %s: %v", response.Request.Method, response.Request.URL, err)
	}
	return answer{status: response.StatusCode, header: response.Header, body: string(body)}
}

// request makes a POST request; the header is names and values by turns.
func request(url string, header ...string) *http.Request {
	r, err := http.NewRequest(http.MethodPost, url, nil)
	if err != nil {
		panic(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func post(t *testing.T, url string, header ...string) answer {
	t.Helper()
	return send(t, request(url, header...))
}

// postAll posts to all URLs at once, and gives a function that waits for the answers.
func postAll(t *testing.T, urls ...string) (wait func() []answer) {
	t.Helper()
	answers := make([]answer, len(urls))
	var done sync.WaitGroup
	for i, url := range urls {
		done.Go(func() { answers[i] = post(t, url) })
	}
	return func() []answer {
		done.Wait()
		return answers
	}
}

// requireStatus fails the test on another status, and on a refusal that doesn't say when to retry.
func requireStatus(t *testing.T, a answer, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d; body %q", a.status, status, a.body)
	}
	requireRetryAfter(t, a)
}

func requireRetryAfter(t *testing.T, a answer) {
	t.Helper()
	switch a.status {
	case http.StatusLocked, http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		var seconds int
		if _, err := fmt.Sscanf(a.header.Get("Retry-After"), "%d", &seconds); err != nil || seconds < 1 {
			t.Errorf("status %d with Retry-After %q, want whole seconds from 1", a.status, a.header.Get("Retry-After"))
		}
	}
}

// backend is what the locks protect. The key of a request is its whole path.
type backend struct {
	*httptest.Server
	work func() // what a request does while it runs

	mu       sync.Mutex
	running  map[string]int
	served   map[string]int
	overlaps map[string]int // by key, the requests that found another one running
}

func newBackend(t *testing.T, work func()) *backend {
	b := &backend{work: work, running: map[string]int{}, served: map[string]int{}, overlaps: map[string]int{}}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// newHeldBackend is a backend whose requests run until release is called.
func newHeldBackend(t *testing.T) (b *backend, release func()) {
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	b = newBackend(t, func() { <-held })
	t.Cleanup(release) // before b.Close, which waits for the requests
	return b, release
}

// hold posts to all URLs at once, and waits until the requests are in the backend.
func (b *backend) hold(t *testing.T, urls ...string) (wait func() []answer) {
	t.Helper()
	wait = postAll(t, urls...)
	eventually(t, "the requests are in the backend", func() bool { return b.inside() == len(urls) })
	return wait
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Path
	b.mu.Lock()
	if b.running[key] > 0 {
		b.overlaps[key]++
	}
	b.running[key]++
	b.mu.Unlock()
	b.work()
	b.mu.Lock()
	b.running[key]--
	b.served[key]++
	b.mu.Unlock()
	_, _ = io.WriteString(w, "done")
}

// inside counts the requests that run now.
func (b *backend) inside() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, running := range b.running {
		n += running
	}
	return n
}

// servedAt counts the requests of a path that have run.
func (b *backend) servedAt(path string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.served[path]
}

// servedTotal counts all requests that have run.
func (b *backend) servedTotal() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, served := range b.served {
		n += served
	}
	return n
}

func (b *backend) proxy() string { return "reverse_proxy " + b.Listener.Addr().String() }

// output runs a command to its end and gives what it wrote, and its exit code.
func output(t *testing.T, cmd *exec.Cmd) (text string, code int) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// received is an HTTP response; the status is 0 if there was none.
type received struct {
	status int
	header http.Header
	body   string
	at     time.Time // when it had come
}

var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 250},
	Timeout:   10 * time.Minute, // beyond the waits of rules
}

// send sends a request, which is canceled when the test ends. It may be called in any goroutine.
func send(t *testing.T, r *http.Request) received {
	t.Helper()
	response, err := client.Do(r.WithContext(t.Context()))
	if err != nil {
		if t.Context().Err() == nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		return received{}
	}
	return read(t, response)
}

func read(t *testing.T, response *http.Response) received {
	t.Helper()
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s %s: %v", response.Request.Method, response.Request.URL, err)
	}
	return received{status: response.StatusCode, header: response.Header, body: string(body), at: time.Now()}
}

// request returns a POST request; the header is alternating names and values.
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

// repeated returns so many requests that are alike.
func repeated(n int, url string, header ...string) []*http.Request {
	all := make([]*http.Request, n)
	for i := range all {
		all[i] = request(url, header...)
	}
	return all
}

func requests(urls []string) []*http.Request {
	all := make([]*http.Request, len(urls))
	for i, url := range urls {
		all[i] = request(url)
	}
	return all
}

func post(t *testing.T, url string, header ...string) received {
	t.Helper()
	return send(t, request(url, header...))
}

// sendAll sends all requests at once. wait waits for the responses and returns them.
func sendAll(t *testing.T, requests ...*http.Request) (wait func() []received) {
	t.Helper()
	responses := make([]received, len(requests))
	var done sync.WaitGroup
	for i, r := range requests {
		done.Go(func() { responses[i] = send(t, r) })
	}
	t.Cleanup(done.Wait) // they use t
	return func() []received {
		done.Wait()
		return responses
	}
}

// postAll posts to all URLs at once.
func postAll(t *testing.T, urls ...string) (wait func() []received) {
	t.Helper()
	return sendAll(t, requests(urls)...)
}

// requireStatus fails the test if the status is another one, or if a refusal lacks Retry-After.
func requireStatus(t *testing.T, a received, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d; body %q", a.status, status, a.body)
	}
	requireRetryAfter(t, a)
}

func requireRetryAfter(t *testing.T, a received) {
	t.Helper()
	switch a.status {
	case http.StatusLocked, http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		var seconds int
		if _, err := fmt.Sscanf(a.header.Get("Retry-After"), "%d", &seconds); err != nil || seconds < 1 {
			t.Errorf("status %d with Retry-After %q, want whole seconds from 1", a.status, a.header.Get("Retry-After"))
		}
	}
}

// backend is what the locks protect. It counts requests by key: the parameters "key", or the whole path.
type backend struct {
	*httptest.Server
	work func() // what a request does while it runs

	mu       sync.Mutex
	running  map[string]int
	served   map[string]int
	overlaps map[string]int // by key: requests that came while another one was running
}

func newBackend(t *testing.T, work func()) *backend {
	b := &backend{work: work, running: map[string]int{}, served: map[string]int{}, overlaps: map[string]int{}}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// newHeldBackend returns a backend whose requests run until release is called.
func newHeldBackend(t *testing.T) (b *backend, release func()) {
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	b = newBackend(t, func() { <-held })
	t.Cleanup(release) // before b.Close, which waits for the requests
	return b, release
}

// hold posts to all URLs at once, and waits until the requests are in the backend.
func (b *backend) hold(t *testing.T, urls ...string) (wait func() []received) {
	t.Helper()
	return b.holdRequests(t, requests(urls)...)
}

// holdRequests sends all requests at once, and waits until they are in the backend.
func (b *backend) holdRequests(t *testing.T, requests ...*http.Request) (wait func() []received) {
	t.Helper()
	wait = sendAll(t, requests...)
	eventually(t, "the requests are in the backend", func() bool { return b.inside() == len(requests) })
	return wait
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys := slices.Compact(r.URL.Query()["key"])
	if len(keys) == 0 {
		keys = []string{r.URL.Path}
	}
	b.mu.Lock()
	for _, key := range keys {
		if b.running[key] > 0 {
			b.overlaps[key]++
		}
		b.running[key]++
	}
	b.mu.Unlock()
	b.work()
	b.mu.Lock()
	for _, key := range keys {
		b.running[key]--
		b.served[key]++
	}
	b.mu.Unlock()
	_, _ = io.WriteString(w, "done")
}

// inside returns how many requests run now.
func (b *backend) inside() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, running := range b.running {
		n += running
	}
	return n
}

// servedAt returns how many requests of a path have run.
func (b *backend) servedAt(path string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.served[path]
}

// servedTotal returns how many requests have run.
func (b *backend) servedTotal() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, served := range b.served {
		n += served
	}
	return n
}

func (b *backend) proxy() string { return proxyTo(b.Listener.Addr()) }

// proxyTo has Caddy wait for an upstream that a busy machine doesn't run: without a time-out of its own a connection has 3 s. The transport has these
// settings, too.
func proxyTo(upstream net.Addr, transport ...string) string {
	return "reverse_proxy " + upstream.String() + " {\ntransport http {\ndial_timeout 1m\n" + strings.Join(transport, "\n") + "\n}\n}"
}

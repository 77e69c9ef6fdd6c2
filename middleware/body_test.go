package middleware_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// byBody serializes by the field id of the body.
func byBody(t *testing.T, h http.HandlerFunc, opts ...middleware.Option) *httptest.Server {
	t.Helper()
	return serve(t, middleware.New(newLocker(t, live), "order:{body.id}", opts...)(h))
}

func postBody(t *testing.T, url, contentType string, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	return do(t, req)
}

// unknownLength hides what http.NewRequest would take the length from.
type unknownLength struct{ io.Reader }

func TestBodyIsHandedOn(t *testing.T) {
	server := byBody(t, func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnOf(r.Context())
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = r.Body.Close()
		}
		_, _ = fmt.Fprintf(w, "%s %d %v %s", turn.Key, r.ContentLength, err, body)
	})
	for _, body := range []string{
		" {\"id\" : 42}\n",
		`{"x":"` + strings.Repeat("x", 16<<10-len(`{"x":"","id":42}`)) + `","id":42}`,
		`{"x":"` + strings.Repeat("x", 700_000) + `","id":42}`,
		`{"x":"` + strings.Repeat("x", 1<<20-len(`{"x":"","id":42}`)) + `","id":42}`, // the longest
	} {
		got := postBody(t, server.URL, jsonType, strings.NewReader(body))
		if want := fmt.Sprintf("order:42 %d <nil> %s", len(body), body); got.body != want {
			t.Errorf("got %.100q, want %.100q", got.body, want)
		}
		got = postBody(t, server.URL, jsonType, unknownLength{strings.NewReader(body)})
		if want := "order:42 -1 <nil> " + body; got.body != want {
			t.Errorf("of unknown length: got %.100q, want %.100q", got.body, want)
		}
	}
	form := byBody(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.FormValue("id")) })
	if got := postBody(t, form.URL, formType, strings.NewReader("a=1&id=%34%32")); got.body != "42" {
		t.Errorf("FormValue: %q", got.body)
	}
}

// Trailers come with the end of the body, also those that were not announced.
func TestTrailers(t *testing.T) {
	for _, template := range []string{"{body.id}", "{method}"} {
		server := serve(t, middleware.New(newLocker(t, live), template)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
		})))
		for _, announced := range []string{"Trailer: Checksum, Fencing-Token, Fencing_token\r\n", "Trailer: Checksum\r\n"} {
			got := raw(t, server, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close, Fencing-Token\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"+announced+
				"\r\n8\r\n{\"id\":1}\r\n0\r\nChecksum: abc\r\nFencing-Token: 9\r\nFencing_Token: 9\r\n\r\n")
			if got.body != `{"id":1} <nil> map[Checksum:[abc]]` {
				t.Errorf("%s: handler got %q, want the body, and of the trailers the checksum only", template, got.body)
			}
		}
	}
}

// raw sends bytes to a server, and reads its answer.
func raw(t *testing.T, server *httptest.Server, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, request)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response, string(body)}
}

// untouchable is a body that must not be read.
type untouchable struct{ t *testing.T }

func (u untouchable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func (u untouchable) Close() error { return nil }

func TestBodyIsNotTouched(t *testing.T) {
	for template, want := range map[string]string{"order:{header.X}": "order:1", "{header.X|body.id}": "1"} {
		handler := middleware.New(newLocker(t, live), template)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnOf(r.Context())
			_, _ = io.WriteString(w, turn.Key)
		}))
		r := httptest.NewRequest(http.MethodPost, "/", untouchable{t})
		r.Header.Set("X", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Body.String() != want {
			t.Errorf("%s: %d %s", template, w.Code, w.Body)
		}
	}
}

func TestBodyRefusals(t *testing.T) {
	server := byBody(t, ok, middleware.WithMaxBody(100))
	large := `{"id":1,"x":"` + strings.Repeat("x", 100) + `"}`
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(large)), http.StatusRequestEntityTooLarge, "body_too_large")
	requireProblem(t, postBody(t, server.URL, jsonType, unknownLength{strings.NewReader(large)}), http.StatusRequestEntityTooLarge, "body_too_large")
	requireProblem(t, postBody(t, server.URL, "text/plain", strings.NewReader("1")), http.StatusUnsupportedMediaType, "unsupported_body")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{"id":1,"id":2}`)), http.StatusBadRequest, "bad_key")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{"id":"s3cret`)), http.StatusBadRequest, "bad_key")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{}`)), http.StatusBadRequest, "missing_key")
	requireProblem(t, raw(t, server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), http.StatusBadRequest, "bad_key")

	limited := serve(t, http.MaxBytesHandler(middleware.New(newLocker(t, live), "{body.id}")(http.HandlerFunc(ok)), 50))
	requireProblem(t, postBody(t, limited.URL, jsonType, unknownLength{strings.NewReader(large)}), http.StatusRequestEntityTooLarge, "body_too_large")
}

// A client that doesn't send its body holds no lock meanwhile, and room for its body only for a time.
func TestSlowBody(t *testing.T) {
	const timeout = 300 * time.Millisecond
	l := newLocker(t, live)
	budget := middleware.NewBudget(1 << 20)
	server := serve(t, middleware.New(l, "order:{body.id}", middleware.WithBodyTimeout(timeout), middleware.WithBodyBudget(budget))(http.HandlerFunc(ok)))
	for _, length := range []string{"Content-Length: 1048576", "Transfer-Encoding: chunked"} {
		start := time.Now()
		slow := make(chan answer, 1)
		go func() {
			slow <- raw(t, server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+length+"\r\n\r\n8\r\n{\"id\":42")
		}()
		time.Sleep(timeout / 3)
		requireFree(t, l, "order:42")
		if got := postBody(t, server.URL, jsonType, strings.NewReader(`{"id":42}`)); got.body != "served" { // waits for room
			t.Errorf("another request: %d %s", got.StatusCode, got.body)
		}
		requireProblem(t, receive(t, slow, "the answer"), http.StatusRequestTimeout, "body_timeout")
		if d := time.Since(start); d < timeout || d > bound {
			t.Errorf("%s: answered after %v, want %v", length, d, timeout)
		}
	}
	requireRoom(t, server.URL)
}

// requireRoom fails if a body of 1 MiB finds no room.
func requireRoom(t *testing.T, url string) {
	t.Helper()
	body := `{"id":7,"x":"` + strings.Repeat("x", 1<<20-15) + `"}`
	if got := postBody(t, url, jsonType, strings.NewReader(body)); got.body != "served" {
		t.Errorf("room in the budget is not given back: %d %s", got.StatusCode, got.body)
	}
}

func TestBodyBudget(t *testing.T) {
	budget := middleware.NewBudget(1 << 20)
	running, end := make(chan bool), make(chan bool)
	server := byBody(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Hold") != "" {
			running <- true
			<-end
		}
		ok(w, r)
	}, middleware.WithBodyBudget(budget), middleware.WithBodyTimeout(200*time.Millisecond))
	held := make(chan answer, 1)
	go func() {
		r := newRequest(t, server.URL, "Hold", "1", "Content-Type", jsonType)
		body := `{"id":1,"x":"` + strings.Repeat("x", 600_000) + `"}`
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		held <- do(t, r)
	}()
	receive(t, running, "the first request")
	got := postBody(t, server.URL, jsonType, strings.NewReader(`{"id":2,"x":"`+strings.Repeat("x", 600_000)+`"}`))
	requireProblem(t, got, http.StatusServiceUnavailable, "body_budget")
	requireRetryAfter(t, got, time.Second)
	if got := postBody(t, server.URL, jsonType, strings.NewReader(`{"id":3}`)); got.body != "served" {
		t.Errorf("a small body, for which there is room: %d %s", got.StatusCode, got.body)
	}
	close(end)
	if got := receive(t, held, "the answer"); got.body != "served" {
		t.Errorf("the first: %d %s", got.StatusCode, got.body)
	}
	requireRoom(t, server.URL)
}

// 100 clients at once send 10 MiB each, most of them without saying so before.
func TestManyLargeBodies(t *testing.T) {
	const budget = middleware.DefaultBodyBudget
	server := byBody(t, ok, middleware.WithBodyBudget(middleware.NewBudget(budget)))
	large := bytes.Repeat([]byte(" "), 10<<20)
	live := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	runtime.GC()
	before := live()
	// what is garbage is not counted: the collector shall be as eager as memory is scarce
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(before + budget*11/10))
	var most atomic.Int64
	done, watched := make(chan bool), make(chan bool)
	go func() {
		defer close(watched)
		for {
			most.Store(max(most.Load(), live()))
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	// the client's own connections and goroutines are in the same heap; they are few
	transport := &http.Transport{DisableKeepAlives: true, WriteBufferSize: 1 << 10, ReadBufferSize: 1 << 10}
	defer transport.CloseIdleConnections()
	var clients sync.WaitGroup
	for i := range 100 {
		clients.Go(func() {
			var body io.Reader = bytes.NewReader(large)
			if i%10 != 0 {
				body = unknownLength{body}
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", jsonType)
			response, err := transport.RoundTrip(req)
			if err != nil { // the server closes without reading on; the client may see that first
				var op *net.OpError
				if !errors.As(err, &op) {
					t.Errorf("client: %v", err)
				}
				return
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("status %d, want 413", response.StatusCode)
			}
		})
	}
	clients.Wait()
	close(done)
	<-watched
	if used, most := most.Load()-before, int64(budget*11/10); used > most {
		t.Errorf("%d bytes of memory used, want at most %d", used, most)
	} else {
		t.Logf("%d bytes of memory used, of a budget of %d", used, budget)
	}
}

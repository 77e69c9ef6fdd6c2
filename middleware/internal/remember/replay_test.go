package remember_test

import (
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

const mostBytes = 1000

// remembering is a server that records the response to its first request and writes it again for all others.
type remembering struct {
	next http.Handler

	mu     sync.Mutex
	stored []byte
	is     bool // remembered
	runs   int
}

// ran returns how often the handler ran, and what is stored, when no request is being served.
func (s *remembering) ran() (times int, stored []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs, s.stored
}

func (s *remembering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := w.Header()
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "private")
	h.Set("Vary", "Accept-Encoding")
	h.Set("X-Visit", fmt.Sprint(s.runs))
	h.Set("Set-Cookie", fmt.Sprintf("visit=%d", s.runs))
	if s.is {
		a, err := remember.Decode(s.stored, nil, storedUnder)
		if err != nil {
			panic(err)
		}
		a.Write(w, r.Method)
		return
	}
	s.runs++
	recorder := remember.NewRecorder(h, mostBytes, anyRoom)
	s.next.ServeHTTP(&recorded{w, recorder}, r)
	a, why := recorder.Response(r.Method, h)
	if s.is = why == ""; !s.is {
		return
	}
	var err error
	if s.stored, err = a.Encode(nil, storedUnder); err != nil {
		panic(err)
	}
}

type recorded struct {
	http.ResponseWriter
	recorder *remember.Recorder
}

func (w *recorded) WriteHeader(status int) {
	w.recorder.Begin(status, w.Header())
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorded) Write(p []byte) (int, error) {
	w.recorder.Begin(http.StatusOK, w.Header())
	w.recorder.Write(p)
	return w.ResponseWriter.Write(p)
}

func (w *recorded) Flush() {
	w.recorder.Begin(http.StatusOK, w.Header())
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// response is what a client gets.
type response struct {
	status  int
	header  http.Header
	body    string
	length  int64
	readErr error
}

func do(t *testing.T, server *httptest.Server, method string) response {
	t.Helper()
	r, err := http.NewRequest(method, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(body), resp.ContentLength, err}
}

func serve(t *testing.T, s *remembering, http2 bool) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = http2
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of what some handlers do wrong on purpose
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

func write(w http.ResponseWriter, parts ...string) {
	for _, part := range parts {
		_, _ = io.WriteString(w, part)
	}
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }

// replayed are responses that are remembered, byte for byte.
var replayed = map[string]struct {
	method string // default POST
	serve  http.HandlerFunc
}{
	"nothing": {"", func(http.ResponseWriter, *http.Request) {}},
	"status":  {"", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }},
	"JSON": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		write(w, `{"id":42}`)
	}},
	"guessed type": {"", func(w http.ResponseWriter, _ *http.Request) { write(w, "<html><p>Thank you.") }},
	"no type": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		write(w, "<html><p>Thank you.")
	}},
	"HEAD": {http.MethodHead, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "123456") }},
	"HEAD with a body": {http.MethodHead, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		write(w, "a body", " that isn't sent")
	}},
	"204": {"", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	"304": {http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"7"`)
		w.WriteHeader(http.StatusNotModified)
		write(w, "refused by the server")
	}},
	"chunked": {"", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 20 {
			fmt.Fprintf(w, "part %d\n", i)
			flush(w)
		}
	}},
	"flush first": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		flush(w)
		w.Header().Set("X-Late", "is not sent")
		write(w, "body")
	}},
	"declared length": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "8")
		write(w, "abcd", "efgh")
	}},
	"early hints": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Final", "yes")
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusInternalServerError) // too late
		write(w, "done")
	}},
	"headers of others": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("X-Frame-Options")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Add("Vary", "Origin")
		w.Header()["X-Many"] = []string{"a", "b, c", "a"}
		write(w, "done")
	}},
	"at the limit": {"", func(w http.ResponseWriter, _ *http.Request) { write(w, strings.Repeat("x", mostBytes-1), "y") }},
	"at the limit, declared": {"", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(mostBytes))
		write(w, strings.Repeat("x", mostBytes))
	}},
	"proxied": {"", func(w http.ResponseWriter, r *http.Request) {
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "X-Internal")
			w.Header().Set("X-Internal", "secret")
			w.Header().Set("X-Payment", "42")
			w.Header().Set("Date", "Sun, 22 Nov 2026 15:00:00 GMT")
			write(w, "part 1, ")
			flush(w)
			write(w, "part 2")
		}))
		defer backend.Close()
		target, _ := url.Parse(backend.URL)
		httputil.NewSingleHostReverseProxy(target).ServeHTTP(w, r)
	}},
}

func TestReplay(t *testing.T) {
	t.Parallel()
	for name, c := range replayed {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/http2=%v", name, http2), func(t *testing.T) {
				s := &remembering{next: c.serve}
				server := serve(t, s, http2)
				method := c.method
				if method == "" {
					method = http.MethodPost
				}
				first := do(t, server, method)
				for range 2 {
					again := do(t, server, method)
					if runs, _ := s.ran(); runs != 1 || again.header.Get("Idempotency-Replayed") != "true" {
						t.Fatalf("it ran %d times: %+v", runs, again)
					}
					requireSame(t, first, again, method)
				}
			})
		}
	}
}

// requireSame fails if the same response looks different. The server sets Date, if the handler doesn't, and each length that it
// knows; the replay's length is always known. Each visit has its own cookie and number.
func requireSame(t *testing.T, first, again response, method string) {
	t.Helper()
	if first.status != again.status || first.body != again.body || first.readErr != nil || again.readErr != nil {
		t.Errorf("first %+v, then %+v", first, again)
	}
	if first.length >= 0 && again.length != first.length || method != http.MethodHead && again.length != int64(len(again.body)) {
		t.Errorf("length %d and then %d for %d bytes", first.length, again.length, len(again.body))
	}
	if got := again.header["Set-Cookie"]; !slices.Equal(got, []string{"visit=1"}) || again.header.Get("X-Visit") != "1" {
		t.Errorf("the repeated request has the cookies %q and the visit %s", got, again.header.Get("X-Visit"))
	}
	a, b := first.header.Clone(), again.header.Clone()
	for _, name := range []string{"Content-Length", "Idempotency-Replayed", "Set-Cookie", "X-Visit"} {
		a.Del(name)
		b.Del(name)
	}
	if a.Get("X-Payment") == "" {
		a.Del("Date")
		b.Del("Date")
	}
	if !maps.EqualFunc(a, b, slices.Equal[[]string]) {
		t.Errorf("headers %v and then %v", a, b)
	}
}

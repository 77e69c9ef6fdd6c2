package e2e

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// shop is an upstream that answers each request anew, in the way that the path names. It counts requests by host.
type shop struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[string]int
}

func newShop(t *testing.T) *shop {
	s := &shop{runs: make(map[string]int)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *shop) proxy() string { return "reverse_proxy " + s.Listener.Addr().String() }

func (s *shop) runsOf(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[host]
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.runs[strings.Split(r.Host, ":")[0]]++
	s.mu.Unlock()
	receipt := "receipt " + rand.Text() + "\n"
	if r.URL.Path != "/" { // long enough to be compressed
		receipt += strings.Repeat("thank you ", 100)
	}
	flush := func() { _ = http.NewResponseController(w).Flush() }
	h := w.Header()
	h.Set(contentType, "text/plain")
	h.Set("Etag", `"`+rand.Text()+`"`)
	switch r.URL.Path {
	case "/created":
		h["Link"] = []string{"</receipts>; rel=up", "</shop>; rel=index"}
		h.Set("Location", "/receipts/"+rand.Text())
		w.WriteHeader(http.StatusCreated)
	case "/invalid":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case "/error":
		w.WriteHeader(http.StatusInternalServerError)
	case "/busy":
		w.WriteHeader(http.StatusConflict)
	case "/closed":
		panic(http.ErrAbortHandler)
	case "/broken":
		_, _ = io.WriteString(w, receipt)
		flush()
		panic(http.ErrAbortHandler)
	case "/empty":
		h.Del(contentType)
		w.WriteHeader(http.StatusNoContent)
		return
	case "/unmodified":
		h.Del(contentType)
		w.WriteHeader(http.StatusNotModified)
		return
	case "/cookie":
		h.Set("Set-Cookie", "session="+rand.Text())
	case "/large":
		receipt += strings.Repeat("x", 100_000)
	case "/hints":
		h.Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	case "/trailers":
		h.Set("Trailer", "Sum")
		defer h.Set("Sum", "7")
	case "/events":
		h.Set(contentType, "text/event-stream")
	case "/flushed":
		_, _ = io.WriteString(w, "first ")
		flush()
	}
	_, _ = io.WriteString(w, receipt)
}

// rememberCase is a site that gets the same request twice.
type rememberCase struct {
	name, site, rule string // LOCK in the site is the rule, with further lines
	method, path     string
	header           []string
	runs             int // that reach the upstream
}

var (
	lengths = regexp.MustCompile(`(?m)^(\d{3}) -?\d+$|^Content-Length .*\n`)
	hints   = regexp.MustCompile(`(?m)^103 .*\n`)
)

// TestRememberBesideOtherHandlers: a repeat gets the first response, with all its headers, whatever other handlers the site has before and
// behind the rule. What is not a final and complete response isn't remembered.
func TestRememberBesideOtherHandlers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	proxy := "LOCK\n" + s.proxy()
	gzip := []string{"Accept-Encoding", "gzip"}
	cases := []rememberCase{
		{name: "200", site: proxy, path: "/text", runs: 1},
		{name: "short", site: proxy, path: "/", runs: 1},
		{name: "201", site: proxy, path: "/created", runs: 1},
		{name: "422", site: proxy, path: "/invalid", runs: 1},
		{name: "204", site: proxy, path: "/empty", runs: 1},
		{name: "304", site: proxy, path: "/unmodified", runs: 1},
		{name: "PUT", site: proxy, path: "/", method: "PUT", runs: 1},
		{name: "GET", site: proxy, path: "/", method: "GET", runs: 1},
		{name: "HEAD", site: proxy, path: "/", method: "HEAD", runs: 1},
		{name: "HEAD of what is flushed", site: proxy, path: "/flushed", method: "HEAD", runs: 1},
		{name: "early hints", site: proxy, path: "/hints", runs: 1},
		{name: "flushed", site: proxy, path: "/flushed", runs: 1},
		{name: "large, and allowed", site: proxy, rule: "remember 1h\nremember_size 200KB", path: "/large", runs: 1},
		{name: "500", site: proxy, path: "/error", runs: 2},
		{name: "409", site: proxy, path: "/busy", runs: 2},
		{name: "upstream without a response", site: proxy, path: "/closed", runs: 2},
		{name: "response that is broken off", site: proxy, path: "/broken", runs: 2},
		{name: "events", site: proxy, path: "/events", runs: 2},
		{name: "trailers", site: proxy, path: "/trailers", runs: 2},
		{name: "encode behind", site: "LOCK\nencode gzip\n" + s.proxy(), path: "/text", header: gzip, runs: 1},
		{name: "encode before", site: "route {\nencode gzip\nLOCK\n" + s.proxy() + "\n}", path: "/text", header: gzip, runs: 1},
		{name: "encode behind, not accepted", site: "LOCK\nencode gzip\n" + s.proxy(), path: "/text", runs: 1},
		{name: "headers before", site: "header Before yes\nheader >Deferred yes\nheader -Etag\n" + proxy, path: "/created", runs: 1},
		{name: "headers behind", site: "route {\nLOCK\nheader Behind yes\nheader >Deferred yes\nheader -Server\n" + s.proxy() + "\n}", path: "/created", runs: 1},
		{name: "buffered", site: "LOCK\n" + s.proxy() + " {\nresponse_buffers 10KB\n}", path: "/flushed", runs: 1},
		{name: "intercept behind", site: "LOCK\nintercept {\n@e status 422\nreplace_status @e 410\n}\n" + s.proxy(), path: "/invalid", runs: 1},
		{name: "intercept before", site: "route {\nintercept {\n@e status 422\nreplace_status @e 410\n}\nLOCK\n" + s.proxy() + "\n}", path: "/invalid", runs: 1},
		{name: "handled response", site: "LOCK\n" + s.proxy() + " {\n@e status 500\nhandle_response @e {\nheader Handled yes\ncopy_response 404\n}\n}", path: "/error", runs: 1},
		{name: "error of a handler", site: "LOCK\n" + s.proxy() + " {\n@e status 422\nhandle_response @e {\nerror 422\n}\n}\nhandle_errors {\nrespond sorry\n}", path: "/invalid", runs: 2},
		{name: "error of a handler, answered inside", site: "LOCK\n" + s.proxy() + " {\n@e status 422\nhandle_response @e {\nrespond sorry 404\n}\n}", path: "/invalid", runs: 1},
		{name: "rewritten", site: "route {\nrewrite * /created\nLOCK\n" + s.proxy() + "\n}", path: "/", runs: 1},
		{name: "log_append", site: "log\nlog_append outcome {http.redlock.outcome}\n" + proxy, path: "/", runs: 1},
		{name: "invoked", site: "NAMED\nroute {\nLOCK\n" + s.proxy() + "\n}", path: "/", runs: 1},
		{name: "statuses", site: proxy, rule: "remember 1h\nremember_status 2xx", path: "/invalid", runs: 2},
		{name: "not remembered", site: proxy, rule: "wait 1s", path: "/", runs: 2},
	}
	config := "{\nadmin {$ADMIN}\nauto_https off\ndefault_bind 127.0.0.1\n}\nhttp://{$LISTEN} {\nrespond up\n}\n"
	for i, c := range cases {
		lines := c.rule
		if lines == "" {
			lines = "remember 1h"
		}
		site, named := strings.ReplaceAll(c.site, "LOCK", "redlock {\nidempotency_key required\nscope {header.Authorization}\n"+lines+"\n}"), ""
		if before, after, ok := strings.Cut(site, "NAMED"); ok {
			site, named = fmt.Sprintf("%sinvoke r%d", before, i), fmt.Sprintf("&(r%d) {\n%s\n}\n", i, after)
		}
		config += fmt.Sprintf("%shttp://c%d.test:{$PORT} {\n%s\n}\n", named, i, site)
	}
	caddy := runCaddy(t, config)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for n, http2 := range []bool{false, true} {
				host := fmt.Sprintf("c%d.test", i)
				header := append([]string{"Idempotency-Key", fmt.Sprint("k", i, "-", n), "Authorization", "Bearer alice"}, c.header...)
				method := c.method
				if method == "" {
					method = http.MethodPost
				}
				before := s.runsOf(host)
				first := caddy.transcript(t, ask(method, c.path, "", header...), host, http2)
				again := caddy.transcript(t, ask(method, c.path, "", header...), host, http2)
				for tries := 0; tries < 1000 && strings.Contains(again, "Redlock-Outcome [duplicate]"); tries++ { // a response that was flushed whole ends before its handler
					time.Sleep(time.Millisecond)
					again = caddy.transcript(t, ask(method, c.path, "", header...), host, http2)
				}
				if runs := s.runsOf(host) - before; runs != c.runs {
					t.Errorf("HTTP/2 %v: %d of two requests ran, want %d", http2, runs, c.runs)
				}
				const mark = "Idempotency-Replayed [true]\n"
				if marked := strings.Contains(again, mark); marked != (c.runs == 1) || strings.Contains(first, mark) {
					t.Errorf("HTTP/2 %v: Idempotency-Replayed in the wrong place:\n%.1000s\n%.1000s", http2, first, again)
				}
				if c.path == "/flushed" || c.path == "/large" || strings.Contains(c.name, "encode") { // a repeat has its length where the first had none
					first, again = lengths.ReplaceAllString(first, "$1"), lengths.ReplaceAllString(again, "$1")
				}
				first = hints.ReplaceAllString(first, "") // they come before what is remembered
				if again = strings.Replace(again, mark, "", 1); c.runs == 1 && first != again {
					t.Errorf("HTTP/2 %v\nfirst:  %.1000s\nrepeat: %.1000s", http2, first, again)
				}
			}
		})
	}
}

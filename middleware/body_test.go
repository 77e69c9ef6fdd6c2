package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// byBody serializes requests by the field id of the body.
func byBody(t *testing.T, h http.HandlerFunc, rule middleware.Rule) *httptest.Server {
	t.Helper()
	return serve(t, middleware.New(newLocker(t, live), "order:{body.id}", rule)(h))
}

func postBody(t *testing.T, url, contentType string, body io.Reader) received {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	return do(t, req)
}

// upload posts JSON that the server may not read to its end. It tries again where a busy client finds its connection closed before it has
// read the response, for which net/http's server gives it half a second.
func upload(t *testing.T, url, body string, chunked bool) received {
	t.Helper()
	for {
		r := newRequest(t, url, "Content-Type", jsonType)
		if r.Body = io.NopCloser(strings.NewReader(body)); !chunked {
			r.ContentLength = int64(len(body))
		}
		if response, err := http.DefaultClient.Do(r); err == nil {
			text, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			return received{response, string(text)}
		}
	}
}

// unknownLength hides the type from which http.NewRequest would take the length.
type unknownLength struct{ io.Reader }

func TestBodyIsHandedOn(t *testing.T) {
	t.Parallel()
	server := byBody(t, func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = r.Body.Close()
		}
		_, _ = fmt.Fprintf(w, "%s %d %v %s", turn.Key, r.ContentLength, err, body)
	}, middleware.Rule{})
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
	form := byBody(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.FormValue("id")) }, middleware.Rule{})
	if got := postBody(t, form.URL, formType, strings.NewReader("a=1&id=%34%32")); got.body != "42" {
		t.Errorf("FormValue: %q", got.body)
	}
}

// Trailers come with the end of the body, even those that were not announced: a header of that name may already be in the key.
func TestTrailers(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	show := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
	})
	handlers := map[string]http.Handler{}
	for _, template := range []string{"{body.id}", "{method}"} {
		handlers[template] = middleware.New(l, template, middleware.Rule{})(show)
		for _, inner := range []string{"in:{body.id}", "in:{method}"} { // each rule has a fence header of its own
			handlers[template+" "+inner] = middleware.New(l, template, middleware.Rule{})(middleware.New(l, inner, middleware.Rule{FenceHeader: "Inner-Fence"})(show))
		}
	}
	handlers["{method} buffered"] = middleware.New(l, "{method}", middleware.Rule{BufferBody: new(true), FenceHeader: "Inner-Fence"})(middleware.New(l, "in", middleware.Rule{})(show))
	for template, handler := range handlers {
		server := serve(t, handler)
		for _, announced := range []string{"Trailer: Checksum, Fencing-Token, Fencing_token\r\n", "Trailer: Checksum\r\n"} {
			got := raw(t, server, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close, Fencing-Token\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"+announced+
				"\r\n8\r\n{\"id\":1}\r\n0\r\nChecksum: abc\r\nFencing-Token: 9\r\nFencing_Token: 9\r\nFencing.Token: 9\r\nX-Order: 43\r\n"+map[bool]string{true: "Inner-Fence: 9\r\n"}[strings.Contains(template, " ")]+"\r\n")
			if got.body != `{"id":1} <nil> map[Checksum:[abc]]` {
				t.Errorf("%s: handler got %q, want the body, and of the trailers the checksum that was announced", template, got.body)
			}
		}
	}
}

// raw sends bytes to a server, and reads its response.
func raw(t *testing.T, server *httptest.Server, request string) received {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return exchange(t, conn, request)
}

// exchange sends a request as it is written here, and reads the response meanwhile.
func exchange(t *testing.T, conn net.Conn, request string) received {
	t.Helper()
	var sent sync.WaitGroup
	defer sent.Wait()
	defer func() { _ = conn.Close() }()
	sent.Go(func() { _, _ = io.WriteString(conn, request) })
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return received{response, string(body)}
}

// untouchable is a body that must not be read.
type untouchable struct{ t *testing.T }

func (u untouchable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func (u untouchable) Close() error { return nil }

func TestBodyIsNotTouched(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{"order:{header.X}": "order:1", "{header.X|body.id}": "1"} {
		handler := middleware.New(newLocker(t, live), template, middleware.Rule{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
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
	t.Parallel()
	server := byBody(t, ok, middleware.Rule{MaxBody: 100})
	large := `{"id":1,"x":"` + strings.Repeat("x", 100) + `"}`
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(large)), http.StatusRequestEntityTooLarge, "body_too_large")
	requireProblem(t, postBody(t, server.URL, jsonType, unknownLength{strings.NewReader(large)}), http.StatusRequestEntityTooLarge, "body_too_large")
	requireProblem(t, postBody(t, server.URL, "text/plain", strings.NewReader("1")), http.StatusUnsupportedMediaType, "unsupported_body")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{"id":1,"id":2}`)), http.StatusBadRequest, "bad_key")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{"id":"s3cret`)), http.StatusBadRequest, "bad_key")
	requireProblem(t, postBody(t, server.URL, jsonType, strings.NewReader(`{}`)), http.StatusBadRequest, "missing_key")
	requireProblem(t, postBody(t, server.URL, formType, strings.NewReader(`{"id":42,"x":"&id=7&"}`)), http.StatusBadRequest, "bad_key")
	list := serve(t, middleware.New(newLocker(t, live), "{body.items[].id}", middleware.Rule{OnMissingKey: middleware.Pass})(http.HandlerFunc(ok)))
	requireProblem(t, postBody(t, list.URL, jsonType, strings.NewReader(`{"items":[{"id":1},{}]}`)), http.StatusBadRequest, "bad_key")
	requireProblem(t, raw(t, server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), http.StatusBadRequest, "body_broken")

	limited := serve(t, http.MaxBytesHandler(middleware.New(newLocker(t, live), "{body.id}", middleware.Rule{})(http.HandlerFunc(ok)), 50))
	requireProblem(t, postBody(t, limited.URL, jsonType, unknownLength{strings.NewReader(large)}), http.StatusRequestEntityTooLarge, "body_too_large")
}

// A client that asks whether to send its body is told once, although an upstream tells it, too. Where no rule reads the body,
// the ReverseProxy may tell it twice: Go's Transport begins to send before it passes on the upstream's answer.
func TestContinueOnce(t *testing.T) {
	t.Parallel()
	upstream := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(address)
	proxy.Transport = &http.Transport{ExpectContinueTimeout: bound, DisableKeepAlives: true}
	for template, rule := range map[string]middleware.Rule{"{json.id}": {}, "{method}": {BufferBody: new(true)}, "dry:{method}": {BufferBody: new(true), DryRun: true}} {
		server := serve(t, middleware.New(newLocker(t, live), template, rule)(proxy))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		const body = `{"id":1}`
		_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
		reader := bufio.NewReader(conn)
		if line, _ := reader.ReadString('\n'); !strings.Contains(line, "100 Continue") {
			t.Errorf("%s: %s", template, line)
		}
		_, _ = io.WriteString(conn, body)
		rest, err := io.ReadAll(reader)
		_ = conn.Close()
		if text := string(rest); err != nil || strings.Contains(text, "100 Continue") || !strings.HasSuffix(text, body) {
			t.Errorf("%s: %v, %s", template, err, text)
		}
	}
}

// TestEndOfBodyLasts: net/http's server closes a body that was read when the response begins. Its transport reads once more after
// the end, to see whether more comes, and must not find a closed body: it would abandon the upstream.
func TestEndOfBodyLasts(t *testing.T) {
	t.Parallel()
	behindTheEnd := func(w http.ResponseWriter, r *http.Request) {
		read, err := io.ReadAll(r.Body)
		_ = http.NewResponseController(w).Flush()
		n, end := r.Body.Read(make([]byte, 1))
		_, _ = fmt.Fprintf(w, "%s %v %d %v", read, err, n, end)
	}
	const want = `{"id":42} <nil> 0 EOF`
	for name, template := range map[string]string{"its key is elsewhere": "order:{path.0}", "it has the key": "order:{body.id}"} {
		server := serve(t, middleware.New(newLocker(t, live), template, middleware.Rule{})(http.HandlerFunc(behindTheEnd)))
		for length, body := range map[string]io.Reader{"known": strings.NewReader(`{"id":42}`), "unknown": unknownLength{strings.NewReader(`{"id":42}`)}} {
			if got := postBody(t, server.URL+"/42", jsonType, body); got.body != want {
				t.Errorf("%s, length %s: %q, want %q", name, length, got.body, want)
			}
		}
	}
}

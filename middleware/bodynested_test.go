package middleware_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// gunzip decodes a body and keeps its length on the wire, as some decoders do.
func gunzip(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decoded, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = decoded
		r.Header.Del("Content-Encoding")
		next.ServeHTTP(w, r)
	})
}

// A body that was decoded is read to its end, whatever its declared length.
func TestDecodedBodies(t *testing.T) {
	t.Parallel()
	server := serve(t, gunzip(middleware.New(newLocker(t, live), "order:{body.id}", middleware.Rule{BodyBudget: middleware.NewBudget(1 << 20)})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v %s", turn.Key, err, body)
		}))))
	random := rand.NewChaCha8([32]byte{})
	noise := make([]byte, 60_000)
	_, _ = random.Read(noise)
	for name, body := range map[string]string{
		"short":         "id=1",
		"compressible":  "id=1&x=" + strings.Repeat("x", 500_000),
		"hardly":        fmt.Sprintf("id=1&x=%x", noise),
		"the longest":   "id=1&x=" + strings.Repeat("x", 1<<20-7),
		"a second name": "id=1&x=" + strings.Repeat("x", 500_000) + "&id=2",
		"too long":      "id=1&x=" + strings.Repeat("x", 1<<20),
	} {
		var packed bytes.Buffer
		writer := gzip.NewWriter(&packed)
		_, _ = io.WriteString(writer, body)
		_ = writer.Close()
		got := postBody(t, server.URL, formType, &packed)
		switch name {
		case "a second name":
			requireProblem(t, got, http.StatusBadRequest, "bad_key")
		case "too long":
			requireProblem(t, got, http.StatusRequestEntityTooLarge, "body_too_large")
		default:
			if got.body != "order:1 <nil> "+body {
				t.Errorf("%s: %d %.200q", name, got.StatusCode, got.body)
			}
		}
	}
}

// Some handlers give a request a body and leave its length at 0.
func TestBodyOfDeclaredLengthZero(t *testing.T) {
	t.Parallel()
	handler := middleware.New(newLocker(t, live), "order:{body.id|header.X}", middleware.Rule{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		_, _ = io.WriteString(w, turn.Key)
	}))
	for body, want := range map[string]string{`{"id":1}`: "order:1", "": "order:x"} {
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(body))
			handler.ServeHTTP(w, r)
		}))
		if got := post(t, server.URL, "Content-Type", jsonType, "X", "x"); got.body != want {
			t.Errorf("%q: %d %s, want %s", body, got.StatusCode, got.body, want)
		}
	}
}

// A rule may read what the rule around it could not: each has its own limit.
func TestBodiesOfNestedRules(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	show := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v %s", turn.Key, err, body)
	})
	rule := func(name string, max int64, rule middleware.Rule) func(http.Handler) http.Handler {
		rule.MaxBody, rule.BodyBudget = max, middleware.NewBudget(max)
		return middleware.New(l, name+":{body.id}", rule)
	}
	body := `{"x":"` + strings.Repeat("x", 1_500_000) + `","id":42}`
	for name, c := range map[string]struct {
		handler http.Handler
		want    string // or a refusal
	}{
		"dry run around, too small": {rule("a", 1<<20, middleware.Rule{DryRun: true})(rule("b", 2<<20, middleware.Rule{})(show)), "b:42 <nil> " + body},
		"dry run around":            {rule("a", 2<<20, middleware.Rule{DryRun: true})(rule("b", 2<<20, middleware.Rule{})(show)), "b:42 <nil> " + body},
		"dry runs, too small":       {rule("a", 1<<10, middleware.Rule{DryRun: true})(rule("b", 1<<20, middleware.Rule{DryRun: true})(show)), " <nil> " + body},
		"dry run inside":            {rule("a", 2<<20, middleware.Rule{})(rule("b", 2<<20, middleware.Rule{DryRun: true})(show)), "b:42 <nil> " + body},
		"dry run inside, too small": {rule("a", 2<<20, middleware.Rule{})(rule("b", 1<<20, middleware.Rule{DryRun: true})(show)), " <nil> " + body},
		"both":                      {rule("a", 2<<20, middleware.Rule{})(rule("b", 2<<20, middleware.Rule{})(show)), "b:42 <nil> " + body},
		"the inner too small":       {rule("a", 2<<20, middleware.Rule{})(rule("b", 1<<20, middleware.Rule{})(show)), "body_too_large"},
		"the outer too small":       {rule("a", 1<<20, middleware.Rule{})(rule("b", 2<<20, middleware.Rule{})(show)), "body_too_large"},
		"only the inner reads":      {middleware.New(l, "{method}", middleware.Rule{})(rule("b", 2<<20, middleware.Rule{})(show)), "b:42 <nil> " + body},
	} {
		server := serve(t, c.handler)
		for _, chunked := range []bool{false, true} {
			got := upload(t, server.URL, body, chunked)
			if c.want == "body_too_large" {
				requireProblem(t, got, http.StatusRequestEntityTooLarge, c.want)
			} else if got.body != c.want {
				t.Errorf("%s: %d %.200q, want %.50q", name, got.StatusCode, got.body, c.want)
			}
		}
	}
}

// The body can still be read after a refusal, as by Caddy's handle_errors.
func TestBodyAfterRefusal(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "42")
	hold(t, l, "post")
	budget := middleware.NewBudget(1 << 20)
	for template, max := range map[string]int64{"{method}": 0, "{body.id}": 0, "{body.x}": 0, "{body.a.id}": 100} {
		rule, err := middleware.Compile(middleware.Rule{Keys: []string{template}, BodyBudget: budget, MaxBody: max})
		if err != nil {
			t.Fatal(err)
		}
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := rule.Serve(l, w, r, func(http.ResponseWriter, *http.Request) error { return nil })
			var refusal middleware.Refusal
			if !errors.As(err, &refusal) {
				t.Errorf("%s: %v", template, err)
			}
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v", body, err)
		}))
		for range 3 { // the budget has room for one of them
			body := `{"id":42,"y":"` + strings.Repeat("y", 600_000) + `"}`
			for _, reader := range []io.Reader{strings.NewReader(body), unknownLength{strings.NewReader(body)}} {
				if got := postBody(t, server.URL, jsonType, reader); got.body != body+" <nil>" {
					t.Errorf("%s: %.100q", template, got.body)
				}
			}
		}
	}
}

// The upstream of a proxy sees the body as the client sent it.
func TestProxiedBody(t *testing.T) {
	t.Parallel()
	upstream := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d %v %s %v", r.ContentLength, r.TransferEncoding, body, err)
	}))
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }}
	for _, rule := range []middleware.Rule{{OnClientAbort: middleware.Cancel}, {}, {DryRun: true}} {
		server := byBody(t, proxy.ServeHTTP, rule)
		const body = `{"id":42}`
		if got := postBody(t, server.URL, jsonType, strings.NewReader(body)); got.body != "9 [] "+body+" <nil>" {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
		if got := postBody(t, server.URL, jsonType, unknownLength{strings.NewReader(body)}); got.body != "-1 [chunked] "+body+" <nil>" {
			t.Errorf("of unknown length: %d %s", got.StatusCode, got.body)
		}
	}
}

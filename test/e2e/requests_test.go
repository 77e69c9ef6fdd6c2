package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// Requests with and without a key, and the responses to them.
func TestRequestsWithAndWithoutKey(t *testing.T) {
	t.Parallel()
	const rules = `
		redlock /header  a:{header.X-Order}
		redlock /query   b:{query.order}
		redlock /cookie  c:{http.request.cookie.order}
		redlock /two     d:{header.X-Order}:{query.order}
		redlock /unknown e:{http.request.nonsense}
		redlock /pass    f:{header.X-Order} {
			on_missing_key pass
		}
		respond "{http.redlock.outcome} {http.redlock.key}"
		handle_errors {
			respond "{http.redlock.outcome} {http.redlock.key}" {err.status_code}
		}
	`
	c := runCaddy(t, caddyfile("", rules))
	for _, test := range []struct {
		target string
		header []string
		status int
		body   string // outcome and key
	}{
		{"/header", []string{"X-Order", "42"}, 200, "acquired a:42"},
		{"/header", []string{"x-order", "a/b c"}, 200, "acquired a:a%2Fb%20c"},
		{"/header", nil, 400, "missing_key "},
		{"/header", []string{"X-Order", ""}, 400, "missing_key "},
		{"/header", []string{"X-Order", "42", "X-Order", "43"}, 400, "bad_key "},
		{"/header", []string{"X-Order", "42", "x-order", "42"}, 400, "bad_key "},
		{"/query?order=42", nil, 200, "acquired b:42"},
		{"/query", nil, 400, "missing_key "},
		{"/query?order=", nil, 400, "missing_key "},
		{"/query?order=42&order=43", nil, 400, "bad_key "},
		{"/query?order=42;order=43", nil, 400, "bad_key "},
		{"/cookie", []string{"Cookie", "order=42"}, 200, "acquired c:42"},
		{"/cookie", nil, 400, "missing_key "},
		{"/cookie", []string{"Cookie", "order=42; order=43"}, 400, "bad_key "},
		{"/two?order=c", []string{"X-Order", "a:b"}, 200, "acquired d:a%3Ab:c"},
		{"/two?order=b:c", []string{"X-Order", "a"}, 200, "acquired d:a:b%3Ac"},
		{"/two?order=c", nil, 400, "missing_key "},
		{"/unknown", nil, 400, "missing_key "},
		{"/pass", []string{"X-Order", "42"}, 200, "acquired f:42"},
		{"/pass", nil, 200, "missing_key "},
		{"/pass", []string{"X-Order", "42", "X-Order", "43"}, 400, "bad_key "},
	} {
		t.Run(strings.Trim(test.target+" "+strings.Join(test.header, " "), " /"), func(t *testing.T) {
			a := post(t, c.url+test.target, test.header...)
			if a.status != test.status || a.body != test.body {
				t.Errorf("status %d, body %q; want %d, %q", a.status, a.body, test.status, test.body)
			}
		})
	}
}

// Long values make keys that are hashed, so that they don't fill the masters' memory.
func TestLongValueIsHashed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	b, release := newHeldBackend(t)
	option := "servers {\nmax_header_size 1MB\n}\n" + mastersOption(servers, "timeout "+calm.String())
	c := runCaddy(t, caddyfile(option, "redlock order:{header.X-Order}\n"+b.proxy()))
	value := strings.Repeat("x", 64<<10)
	wait := b.holdRequests(t, request(c.url, "X-Order", value))
	want := []string{fmt.Sprintf("redlock:{sha256:%x}", sha256.Sum256([]byte("order:"+value)))}
	if keys := servers[0].Keys(); !slices.Equal(keys, want) {
		t.Errorf("keys on the master: %.200q, want %q", keys, want)
	}
	requireStatus(t, post(t, c.url, "X-Order", value), http.StatusLocked)
	release()
	requireStatus(t, post(t, c.url, "X-Order", value[1:]), http.StatusOK)
	requireStatus(t, wait()[0], http.StatusOK)
	redistest.RequireNoKeys(t, servers)
}

// While one request pays order 42, no other spelling of its path gets through.
func TestUncleanPath(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", payRule+b.proxy()))
	wait := b.hold(t, c.url+"/orders/42/pay")
	for path, status := range map[string]int{
		"/orders/42/pay":              http.StatusLocked,
		"/orders/4%32/pay":            http.StatusLocked, // the same path, escaped
		"/orders/42/pay?x=/../43/pay": http.StatusLocked,
		"/./orders/42/pay":            http.StatusBadRequest,
		"/orders/./42/pay":            http.StatusBadRequest,
		"/orders/%2e/42/pay":          http.StatusBadRequest,
		"//orders/42/pay":             http.StatusBadRequest,
		"/orders//42/pay":             http.StatusBadRequest,
		"/orders/42//pay":             http.StatusBadRequest,
		"/orders/42/./pay":            http.StatusBadRequest,
		"/x/../orders/42/pay":         http.StatusBadRequest,
		"/orders/43/../42/pay":        http.StatusBadRequest,
		"/orders/43/%2e%2e/42/pay":    http.StatusBadRequest,
		"/../orders/42/pay":           http.StatusBadRequest,
	} {
		r := request(c.url)
		r.URL = &url.URL{Scheme: "http", Host: r.URL.Host, Opaque: path} // sent as it is
		if strings.HasPrefix(path, "//") {
			r.URL.Opaque = "//" + r.URL.Host + path
		}
		if a := send(t, r); a.status != status {
			t.Fatalf("POST %s: status %d, want %d", path, a.status, status)
		}
	}
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	if n := b.servedTotal(); n != 1 {
		t.Errorf("%d requests came through, want 1", n)
	}
}

func TestStatusesCanBeSet(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		redlock /a/* {path.1} {
			held_status 429
			no_quorum_status 503
		}
		redlock /b/* {path.1} {
			on_no_quorum pass
		}
		respond /b/* "served {http.redlock.outcome}"
		`+b.proxy()+`
		handle_errors 503 {
			respond "{err.message}" 503
		}`))
	wait := b.hold(t, c.url+"/a/1")
	requireStatus(t, post(t, c.url+"/a/1"), http.StatusTooManyRequests)
	requireStatus(t, post(t, c.url+"/b/1"), http.StatusLocked) // on_no_quorum is not for held locks
	release()
	requireStatus(t, wait()[0], http.StatusOK)

	servers[1].Kill()
	servers[2].Kill()
	eventually(t, "Caddy notices that two masters are gone", func() bool {
		return post(t, c.url+"/a/2").status == http.StatusServiceUnavailable
	})
	refused := post(t, c.url+"/a/3")
	requireStatus(t, refused, http.StatusServiceUnavailable)
	if !strings.HasPrefix(refused.body, "too few masters") || strings.Contains(refused.body, "127.0.0.1") || refused.header.Get("Redlock-Outcome") != "no_quorum" {
		t.Errorf("%q %v", refused.body, refused.header)
	}
	a := post(t, c.url+"/b/4")
	requireStatus(t, a, http.StatusOK)
	if a.body != "served no_quorum" {
		t.Errorf("body %q, want that of a request without its lock", a.body)
	}
}

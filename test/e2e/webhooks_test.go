package e2e

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

func withBody(url, body string, header ...string) *http.Request {
	r := request(url, append([]string{"Content-Type", "application/json"}, header...)...)
	// As http.NewRequest does it: Go's client repeats a request with an Idempotency-Key whose connection a reload has closed.
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(body))
	return r
}

func githubSignature(secret, body string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(sum.Sum(nil))
}

func TestBodyKeysInCaddy(t *testing.T) {
	c := runCaddy(t, caddyfile("redlock {\nbody_budget 2MiB\n}", `
		redlock /json   order:{body.order.id|header.X-Order|query.order}
		redlock /small  order:{body.id} {
			max_body 16B
		}
		redlock /dry    order:{body.id} {
			dry_run
		}
		redlock /twice* order:{body.id}
		redlock /twice* order:{body.id}
		respond "{http.redlock.outcome} {http.redlock.key} {http.request.body}"
		handle_errors {
			respond "{http.redlock.outcome}" {err.status_code}
		}
	`))
	for _, test := range []struct {
		target, body string
		header       []string
		status       int
		want         string
	}{
		{"/json", `{"order":{"id":42}}`, nil, 200, `acquired order:42 {"order":{"id":42}}`},
		{"/json", `{}`, []string{"X-Order", "a:b"}, 200, `acquired order:a%3Ab {}`},
		{"/json?order=7", `{}`, nil, 200, `acquired order:7 {}`},
		{"/json", `{}`, nil, 400, "missing_key"},
		{"/json", `{"order":{"id":1},"order":{"id":2}}`, nil, 400, "bad_key"},
		{"/json", `{"order":{"id":1}}`, []string{"Content-Encoding", "gzip"}, 415, "unsupported_body"},
		{"/small", `{"id":1,"x":"0123456789"}`, nil, 413, "body_too_large"},
		{"/dry", `{"id":1}`, nil, 200, `dry_run order:1 {"id":1}`},
		{"/dry", `{}`, nil, 200, `missing_key  {}`},
		{"/twice", `{"id":1}`, nil, 200, `acquired order:1 {"id":1}`},
		{"/json", `{"order":{"id":42}}`, []string{"Connection", "Upgrade", "Upgrade", "websocket"}, 403, "upgrade"},
	} {
		if a := send(t, withBody(c.url+test.target, test.body, test.header...)); a.status != test.status || a.body != test.want {
			t.Errorf("%s %s: status %d, body %q; want %d, %q", test.target, test.body, a.status, a.body, test.status, test.want)
		}
	}
}

// TestTransfers: each of 1,000 payments, through two Caddys, locks the payer and the payee, in any order.
func TestTransfers(t *testing.T) {
	needTime(t)
	t.Parallel()
	const transfers, accounts = 1000, 10
	servers := redistest.Start(t, 3)
	b := newBackend(t, func() { time.Sleep(time.Millisecond) })
	config := caddyfile(mastersOption(servers, "timeout "+calm.String(), "max_ttl 2m"), `
		redlock payer:{body.from} payer:{body.to} {
			wait 20m
			ttl 2m
		}
		`+b.proxy())
	urls := []string{runCaddy(t, config).url, runCaddy(t, config).url}
	var requests []*http.Request
	for i := range transfers {
		from, to := rand.IntN(accounts), rand.IntN(accounts)
		requests = append(requests, withBody(fmt.Sprintf("%s/?key=%d&key=%d", urls[i%2], from, to), fmt.Sprintf(`{"from":%d,"to":%d}`, from, to)))
	}
	for _, a := range sendAll(t, requests...)() {
		if a.status != http.StatusOK {
			t.Errorf("status %d, want 200; body %q", a.status, a.body)
		}
	}
	requireNoOverlap(t, b)
	redistest.RequireNoKeys(t, servers)
}

// GitHub's deliveries are signed; each runs once at a time, and those of one repository run one after the other.
func TestWebhooksInCaddy(t *testing.T) {
	t.Setenv("REDLOCK_TEST_SECRET", secret)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(debugLog, `
		redlock {
			preset github
			verify github 0ld-secret {env.REDLOCK_TEST_SECRET} {file.`+secretFile(t, "file-secret")+`}
			wait 0
		}
		`+b.proxy()+`
		handle_errors {
			respond "{http.redlock.outcome}" {err.status_code}
		}`))
	const body = `{"repository":{"id":1296269}}`
	delivery := func(id, signature string) *http.Request {
		return withBody(c.url+"/hook", body, "X-GitHub-Delivery", id, "X-Hub-Signature-256", signature)
	}
	wait := b.holdRequests(t, delivery("a", githubSignature(secret, body)))
	for _, test := range []struct {
		id, secret string
		status     int
		outcome    string
	}{
		{"a", secret, 409, "duplicate"},
		{"b", secret, 423, "held"},
		{"b", "0ld-secret", 423, "held"},
		{"b", "file-secret", 423, "held"},
		{"b", "wrong", 401, "bad_signature"},
	} {
		a := send(t, delivery(test.id, githubSignature(test.secret, body)))
		if a.status != test.status || a.body != test.outcome {
			t.Errorf("delivery %s signed with %s: %d %s, want %d %s", test.id, test.secret, a.status, a.body, test.status, test.outcome)
		}
	}
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireSecrecy(t, c, secret, "file-secret", "1296269")
}

// The upstream goes on working after the client has left: no other request is let in until it is done.
func TestClientAbort(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", `
		redlock /run/* run:{path.1}
		redlock /cancel/* cancel:{path.1} {
			on_client_abort cancel
		}
		`+b.proxy()))
	for _, path := range []string{"/run/1", "/cancel/1"} {
		ctx, leave := context.WithCancel(t.Context())
		before := b.inside()
		left := make(chan bool)
		go func() {
			defer close(left)
			if response, err := client.Do(request(c.url + path).WithContext(ctx)); err == nil {
				_ = response.Body.Close()
			}
		}()
		eventually(t, "the request is in the backend", func() bool { return b.inside() == before+1 })
		leave()
		<-left
		if path == "/cancel/1" {
			eventually(t, "the lock is free", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if response, err := client.Do(request(c.url + path).WithContext(ctx)); err == nil {
					_ = response.Body.Close()
				}
				return b.inside() > before+1
			})
			continue
		}
		time.Sleep(200 * time.Millisecond) // so that Caddy notices
		requireStatus(t, post(t, c.url+path), http.StatusLocked)
	}
	release()
	eventually(t, "the lock is free", func() bool { return post(t, c.url+"/run/1").status == http.StatusOK })
}

// Nothing that a client sends under the name of the fencing token reaches the upstream.
func TestSpoofedFence(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		all := r.Header.Clone()
		for name, values := range r.Trailer {
			all[name] = append(all[name], values...)
		}
		seen <- all
	}))
	t.Cleanup(upstream.Close)
	c := runCaddy(t, caddyfile("redlock {\nmasters redis://127.0.0.1:1\ntimeout 1s\n}", `
		redlock /no_quorum {header.X-Order} {
			on_no_quorum pass
		}
		redlock /missing {query.x} {
			on_missing_key pass
		}
		redlock /body {body.id} {
			on_no_quorum pass
		}
		redlock /dry {header.X-Order} {
			dry_run
		}
		reverse_proxy `+upstream.Listener.Addr().String()))
	memory := runCaddy(t, caddyfile("", "redlock {header.X-Order}\nreverse_proxy "+upstream.Listener.Addr().String()))
	for _, target := range []string{c.url + "/no_quorum", c.url + "/missing", c.url + "/body", c.url + "/dry", memory.url + "/locked"} {
		host, path, _ := strings.Cut(strings.TrimPrefix(target, "http://"), "/")
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(bound))
		_, _ = fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: %s\r\nX-Order: 42\r\nContent-Type: application/json\r\nFencing-Token: 9\r\nfencing_token: 9\r\nFENCING-token: 9\r\nFencing.Token: 9\r\n"+
			"Connection: close, Fencing-Token\r\nTrailer: Fencing-Token, Checksum\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"id\":1}\r\n0\r\nFencing-Token: 9\r\nChecksum: c\r\nFencing_Token: 9\r\nFencing.Token: 9\r\n\r\n", path, host)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		_ = conn.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", target, response.StatusCode)
			continue
		}
		fences := 0
		header := <-seen
		for name, values := range header {
			if strings.EqualFold(strings.NewReplacer("_", "-", ".", "-").Replace(name), "Fencing-Token") {
				for _, v := range values {
					if fences++; v == "9" || !strings.HasSuffix(target, "/locked") {
						t.Errorf("%s: the upstream got %s: %s", target, name, v)
					}
				}
			}
		}
		if strings.HasSuffix(target, "/locked") && fences != 1 {
			t.Errorf("%d fencing tokens at the upstream, want ours: %v", fences, header)
		}
		if header.Get("Checksum") != "c" {
			t.Errorf("%s: the other trailer was lost: %v", target, header)
		}
	}
}

// The client gets events as soon as the upstream sends them.
func TestEventsStreamThrough(t *testing.T) {
	t.Parallel()
	next := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	t.Cleanup(upstream.Close)
	c := runCaddy(t, caddyfile("", "redlock {body.id}\nreverse_proxy "+upstream.Listener.Addr().String()))
	response, err := client.Do(withBody(c.url, `{"id":1}`).WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) { // the upstream waits until it is read
			t.Errorf("line %q", lines.Text())
		}
		lines.Scan()
		next <- true
	}
}

// A body that doesn't come ends at body_timeout, not at Caddy's own time-out of a minute.
func TestSlowBodyInCaddy(t *testing.T) {
	t.Parallel()
	c := runCaddy(t, caddyfile("", "redlock {body.id} {\nbody_timeout 300ms\n}\nrespond served\nhandle_errors {\nrespond \"{http.redlock.outcome}\" {err.status_code}\n}"))
	host := strings.TrimPrefix(c.url, "http://")
	for _, length := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(bound))
		_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n8\r\n{\"id\":42", host, length)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if a := read(t, response); a.status != http.StatusRequestTimeout || a.body != "body_timeout" {
			t.Errorf("%s: %d %s", length, a.status, a.body)
		}
		_ = conn.Close()
	}
	if a := send(t, withBody(c.url, `{"id":42}`)); a.body != "served" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

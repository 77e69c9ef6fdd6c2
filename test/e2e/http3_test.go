package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// addrForQUIC returns an address on which nobody listens, by TCP or UDP. FreePort keeps the UDP port of its own number, but no test uses
// those ports that are above that, and above what the kernel gives to outgoing connections: 61000 to 65000.
func addrForQUIC(t *testing.T) string {
	t.Helper()
	const above = 45000
	for range 1000 {
		port := redistest.FreePort(t) + above
		if port < 61000 {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		socket, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		_ = socket.Close()
		if !listens(addr) {
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// Over each version of HTTP, requests on one key wait for one another, whichever the first one came by, and what upstreams read in
// different ways is refused.
func TestKeysOverHTTPVersions(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	addr := addrForQUIC(t)
	runCaddy(t, `{
		admin {$ADMIN}
		auto_https disable_redirects
		skip_install_trust
		default_bind 127.0.0.1
		storage file_system `+t.TempDir()+`
	}
	http://{$LISTEN} {
	}
	https://`+addr+` {
		tls internal
		redlock {query.id}:{cookie.cart_id}
		`+b.proxy()+`
	}
	`)
	url := "https://" + addr + "/x?id="
	insecure := func(protocols ...string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} // of Caddy's own authority
	}
	http2 := &http.Transport{TLSClientConfig: insecure("h2"), ForceAttemptHTTP2: true}
	http1 := &http.Transport{TLSClientConfig: insecure("http/1.1"), TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	three := &http3.Transport{TLSClientConfig: insecure(), QUICConfig: &quic.Config{HandshakeIdleTimeout: bound, MaxIdleTimeout: bound}}
	defer three.Close()
	defer http2.CloseIdleConnections()
	defer http1.CloseIdleConnections()
	versions := map[int]http.RoundTripper{1: http1, 2: http2, 3: three}
	try := func(version int, id string, cookies ...string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+id, nil)
		if err != nil {
			return 0, err
		}
		r.Header["Cookie"] = cookies
		response, err := versions[version].RoundTrip(r)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		if response.ProtoMajor != version {
			return 0, fmt.Errorf("the response came over %s", response.Proto)
		}
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
	for version := range versions {
		eventually(t, fmt.Sprintf("Caddy serves HTTP/%d", version), func() bool { status, err := try(version, "1&id=2", "x=1"); return err == nil && status == 400 })
	}
	type result struct {
		status int
		err    error
	}
	first := make(chan result, len(versions))
	for version := range versions {
		go func() {
			status, err := try(version, fmt.Sprint(version), "theme=dark", "cart_id=7") // in HTTP/2 and 3 a client may send them apart
			first <- result{status, err}
		}()
	}
	eventually(t, "all are served at once", func() bool { return b.inside() == len(versions) })
	for version := range versions {
		for other := range versions {
			for _, c := range []struct {
				id      string
				cookies []string
				want    int
			}{
				{fmt.Sprint(other), []string{"cart_id=7"}, http.StatusLocked},
				{fmt.Sprintf("%%3%d", other), []string{"cart_id=7; x=1"}, http.StatusLocked},
				{fmt.Sprintf("%d&id=9", other), []string{"cart_id=7"}, http.StatusBadRequest},
				{fmt.Sprintf("9&ID=%d", other), []string{"cart_id=7"}, http.StatusBadRequest},
				{fmt.Sprint(other), []string{"cart_id=7", "cart_id=8"}, http.StatusBadRequest},
				{fmt.Sprint(other), []string{"cart_id=8", "x=1,cart_id=7"}, http.StatusBadRequest},
			} {
				if status, err := try(version, c.id, c.cookies...); err != nil || status != c.want {
					t.Errorf("HTTP/%d beside one over HTTP/%d, ?id=%s, %q: %d %v, want %d", version, other, c.id, c.cookies, status, err, c.want)
				}
			}
		}
	}
	release()
	for range versions {
		if r := <-first; r.err != nil || r.status != http.StatusOK {
			t.Errorf("the first request: %d %v", r.status, r.err)
		}
	}
}

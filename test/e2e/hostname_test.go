package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestHostKeys: a host makes one key however a client writes it, and so does a label of it.
func TestHostKeys(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	c := runCaddy(t, "{\nadmin {$ADMIN}\nauto_https off\ndefault_bind 127.0.0.1\n}\nhttp://:{$PORT} {\n"+`
		redlock /host host:{host}
		redlock /label label:{labels.1}
		`+b.proxy()+"\n}\n")
	to := func(host, path string) *http.Request {
		r := request(c.url + path)
		r.Host = host
		return r
	}
	wait := b.holdRequests(t, to("Shop.example", "/host"), to("other.example", "/host"), to("Shop.example", "/label"), to("other.example", "/label"))
	for _, host := range []string{"shop.example", "SHOP.EXAMPLE", "shop.example:80", "Shop.Example:8080", "shop.example.", "shop.example.:80"} {
		for _, path := range []string{"/host", "/label"} {
			if a := send(t, to(host, path)); a.status != http.StatusLocked {
				t.Errorf("%s%s: status %d", host, path, a.status)
			}
		}
	}
	requireStatus(t, send(t, to("example", "/label")), http.StatusBadRequest)
	release()
	for _, a := range wait() {
		requireStatus(t, a, http.StatusOK)
	}
}

// TestPathParts: what upstreams take for one path has one key, by Caddy's parts of it too.
func TestPathParts(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", `
		redlock /shop/a* file:{file}
		redlock /shop/b* dir:{dir}
		redlock /shop/c* base:{file.base}
		redlock /shop/d* ext:{file.ext}
		`+b.proxy()))
	paths := []string{"/shop/a.pdf", "/shop/b.pdf", "/shop/c.pdf", "/shop/d.pdf"}
	var requests []*http.Request
	for _, path := range paths {
		requests = append(requests, request(c.url+path))
	}
	wait := b.holdRequests(t, requests...)
	for _, path := range paths {
		for _, same := range []string{path, path + ";v=1", path + "/", strings.ReplaceAll(path, "a", "%61"), strings.Replace(path, ".", "%EF%BC%8E", 1)} {
			if a := send(t, request(c.url+same)); a.status != http.StatusLocked {
				t.Errorf("%s: status %d", same, a.status)
			}
		}
		for _, unclear := range []string{"/shop/" + path[6:7] + "%2Fx.pdf", path + "//x", path + "%2500"} {
			if a := send(t, request(c.url+unclear)); a.status != http.StatusBadRequest {
				t.Errorf("%s: status %d", unclear, a.status)
			}
		}
	}
	release()
	for _, a := range wait() {
		requireStatus(t, a, http.StatusOK)
	}
}

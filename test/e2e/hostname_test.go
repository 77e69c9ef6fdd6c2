package e2e

import (
	"net/http"
	"testing"
)

// TestHostKeys: a host makes one key however a client writes it, and so does a label of it.
func TestHostKeys(t *testing.T) {
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

package redlock_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestOtherPeers: who is no Redis server, or speaks TLS where we don't, or doesn't where we do, is told apart.
func TestOtherPeers(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closing.Close() })
	go func() {
		for {
			conn, err := closing.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	address := func(url string) string { return url[strings.LastIndex(url, "/")+1:] }
	for name, c := range map[string]struct{ url, say string }{
		"web server":     {"redis://" + address(web.URL), "no Redis server"},
		"TLS":            {"redis://" + address(secure.URL), "write rediss://"},
		"closes":         {"redis://" + closing.Addr().String(), "twemproxy"},
		"no TLS":         {"rediss://" + address(web.URL), "write redis://"},
		"Redis, no TLS":  {"rediss://" + redistest.Start(t, 1)[0].Addr(), "write redis://"},
		"unknown issuer": {"rediss://" + address(secure.URL), "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logBook
			newLocker(t, []string{c.url}, log.option(), redlock.WithTimeout(300*time.Millisecond))
			log.expect(t, "level=WARN", address(c.url), c.say)
		})
	}
}

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestAgentBehindTLS runs the Caddy that docs/agent.md shows in front of an agent: marks are answered while the body is open, a client that
// leaves frees its key, and the plugin for Traefik trusts the authority that it is told, and no other.
func TestAgentBehindTLS(t *testing.T) {
	t.Parallel()
	locker, err := redlock.Open([]string{"memory://"}, redlock.WithTTL(30*time.Second), redlock.WithMaxTTL(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = agent.New(locker, agent.WithToken("secret")).Serve(ctx, 0, l)
	}()
	t.Cleanup(func() { stop(); <-ended })

	document, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(document), "```caddyfile\n{\n")
	shown, _, closed := strings.Cut(shown, "```")
	if !ok || !closed {
		t.Fatal("docs/agent.md shows no Caddyfile")
	}
	authority := redistest.NewAuthority(t)
	certificate, key := authority.Issue("127.0.0.1")
	c := runCaddy(t, "{\nadmin {$ADMIN}\nauto_https disable_redirects\ndefault_bind 127.0.0.1\n"+strings.NewReplacer("/etc/redlock/cert.pem", certificate, "/etc/redlock/key.pem", key,
		"127.0.0.1:7070", l.Addr().String(), ":7443 {", ":{$PORT} {", "enable_full_duplex", "enable_full_duplex\nprotocols h1 h2").Replace(shown))
	address := strings.TrimPrefix(c.url, "http://")

	pem, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(bound))
	const ask = `{"key":"k"}`
	_, _ = fmt.Fprintf(conn, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\n\r\n", len(ask)+1, ask)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	lines := bufio.NewReader(response.Body)
	require := func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%q: %v, want %s", line, err, want)
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}
	require(`"fence":`)
	for mark := range 3 {
		_, _ = io.WriteString(conn, "1\r\n\n\r\n")
		require(fmt.Sprintf(`"mark":%d,`, mark+1))
	}
	_, _ = io.WriteString(conn, "0\r\n\r\n")
	require(`"released":true`)

	_, _ = fmt.Fprintf(conn, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\n\r\n", len(ask)+1, ask)
	eventually(t, "the key is taken again", func() bool { return locker.Status().Held == 1 })
	_ = conn.Close()
	eventually(t, "who has left has nothing", func() bool { return locker.Status().Held == 0 })

	for ca, want := range map[string]int{authority.File: http.StatusNoContent, redistest.NewAuthority(t).File: http.StatusConflict, "": http.StatusConflict} {
		config := traefik.CreateConfig()
		config.Agent, config.Token, config.CA = "https://"+address, "secret", ca
		config.Rule = map[string]any{"key": "k"}
		h, err := traefik.New(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), config, "test")
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != want {
			t.Errorf("with the authority %q: %d %s, want %d", ca, w.Code, w.Body, want)
		}
	}
}

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// reload runs "caddy reload" with the environment of c.
func (c *caddyProcess) reload(t *testing.T, file string, args ...string) {
	t.Helper()
	cmd := caddyCommand(t, append([]string{"reload", "--adapter", "caddyfile", "--address", strings.TrimPrefix(c.admin, "http://"), "--config", file}, args...)...)
	cmd.Env = append(cmd.Env, "LISTEN="+strings.TrimPrefix(c.url, "http://"), "ADMIN="+strings.TrimPrefix(c.admin, "http://"))
	if text, code := output(t, cmd); code != 0 {
		t.Fatalf("caddy reload: exit code %d\n%s", code, text)
	}
	c.awaitSuccession(t)
}

// A password, a certificate or an authority is changed in its file: a forced reload of the same configuration reads it, and connects
// anew. A request that holds a lock keeps it on the former connections until its end.
func TestRotation(t *testing.T) {
	needTime(t)
	t.Parallel()
	const former, next = "former-" + secret, "next-" + secret
	command := func(t *testing.T, servers []*redistest.Server, words ...any) {
		t.Helper()
		for _, s := range servers {
			if err := s.Client().Do(t.Context(), words...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	put := func(t *testing.T, into string, from ...string) {
		t.Helper()
		var all []byte
		for _, file := range from {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text...)
		}
		if err := os.WriteFile(into, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, change := range map[string]func(t *testing.T, first *redistest.Authority, servers []*redistest.Server, dir string){
		"password": func(t *testing.T, _ *redistest.Authority, servers []*redistest.Server, dir string) {
			command(t, servers, "ACL", "SETUSER", "redlock", ">"+next, "<"+former)
			put(t, dir+"/password", secretFile(t, next))
		},
		"certificate": func(t *testing.T, first *redistest.Authority, _ []*redistest.Server, dir string) {
			certificate, key := first.Issue("another client")
			put(t, dir+"/certificate", certificate)
			put(t, dir+"/key", key)
		},
		"authority": func(t *testing.T, first *redistest.Authority, servers []*redistest.Server, dir string) {
			second := redistest.NewAuthority(t)
			put(t, dir+"/both", first.File, second.File) // the clients' certificate is still of the first
			certificate, key := second.Issue("127.0.0.1")
			command(t, servers, "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key, "tls-ca-cert-file", dir+"/both")
			put(t, dir+"/ca", second.File)
		},
	} {
		t.Run(what, func(t *testing.T) {
			first := redistest.NewAuthority(t)
			servers, urls := first.Start(3)
			for _, s := range servers {
				if err := s.Client().ACLSetUser(t.Context(), "redlock", append([]string{"on", ">" + former}, redistest.LeastRights(t)...)...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			certificate, key := first.Issue("client")
			for name, from := range map[string]string{"ca": first.File, "certificate": certificate, "key": key, "password": secretFile(t, former)} {
				put(t, filepath.Join(dir, name), from)
			}
			b, release := newHeldBackend(t)
			config := caddyfile(debugLog+"redlock {\nmasters "+strings.Join(urls, " ")+"\nusername redlock\npassword {file."+dir+"/password}\n"+
				"tls {\ntrust_pool file "+dir+"/ca\nclient_auth "+dir+"/certificate "+dir+"/key\n}\n"+
				"max_ttl 30s\ninstance web-{env.LISTEN}\nrestart_guard off\ntimeout "+calm.String()+"\n}", "redlock /orders/*/pay order:{path.1} {\nttl 30s\n}\n"+b.proxy())
			file := filepath.Join(dir, "Caddyfile")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			c := runCaddy(t, config)
			c.reload(t, file) // so that the configuration is this file's
			requireConnections(t, servers, 1)
			wait := b.hold(t, c.url+"/orders/1/pay")
			another, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm))
			if err != nil {
				t.Fatal(err)
			}
			if seen, err := inspect.Key(t.Context(), another, "order:1"); err != nil || seen.Holder != "web-"+strings.TrimPrefix(c.url, "http://") {
				t.Errorf("the holder is %+v: %v", seen, err)
			}
			if err := another.Close(); err != nil {
				t.Error(err)
			}

			change(t, first, servers, dir)
			c.reload(t, file) // the same, and not forced: Caddy does nothing
			requireConnections(t, servers, 1)
			c.reload(t, file, "--force")
			requireConnections(t, servers, 2)
			requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusLocked) // which the new connections say

			release()
			requireStatus(t, wait()[0], http.StatusOK)
			redistest.RequireNoKeys(t, servers)
			requireConnections(t, servers, 1)
			requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusOK)
			c.reload(t, file, "--force") // nothing has changed: the connections stay
			requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusOK)
			requireConnections(t, servers, 1)
			requireSecrecy(t, c, former, next, "PRIVATE KEY")
		})
	}
}

// Servers that anybody may be are accepted, but not in silence.
func TestInsecureTLS(t *testing.T) {
	needTime(t)
	t.Parallel()
	authority := redistest.NewAuthority(t)
	_, urls := authority.Start(1)
	certificate, key := authority.Issue("client")
	c := runCaddy(t, caddyfile("redlock {\nmasters "+urls[0]+"\nrestart_guard off\ntimeout "+calm.String()+
		"\ntls {\nclient_auth "+certificate+" "+key+"\ninsecure_skip_verify\n}\n}", payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusOK)
	requireLogLine(t, c, `"level":"warn"`, "insecure_skip_verify is on", "use trust_pool")
}

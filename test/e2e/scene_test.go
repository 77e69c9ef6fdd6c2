package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// scene is where incidents happen: two Caddys on the first three of four masters.
type scene struct {
	servers []*redistest.Server
	urls    []string
	clock   *redistest.Clock // of the first
	network *redistest.Forwarder
	b       *backend
	web1    *caddyProcess
	web2    *caddyProcess
	options []string // of the masters
	file    string   // web1's configuration
	waits   []func() []received
}

func (s *scene) config(instance string, masters []string, options ...string) string {
	return caddyfile("redlock {\nmasters "+strings.Join(masters, " ")+"\nusername redlock\npassword "+secret+"\ninstance "+instance+"\n"+strings.Join(options, "\n")+"\n}",
		"redlock /orders/* order:{path.1} {\nname pay\nwait 5m\n}\n"+s.b.proxy())
}

// third starts another Caddy, whose configuration differs.
func (s *scene) third(t *testing.T, masters []string, options ...string) *caddyProcess {
	t.Helper()
	return runCaddy(t, s.config("web3", masters, append([]string{"timeout " + calm.String(), "restart_guard off"}, options...)...))
}

// kick ends the connections of the locks' user on the first master.
func (s *scene) kick(t *testing.T) { s.command(t, "CLIENT", "KILL", "USER", "redlock") }

// command runs a command on the first master.
func (s *scene) command(t *testing.T, words ...any) {
	t.Helper()
	if err := s.servers[0].Client().Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(words, err)
	}
}

// newScene returns one where all is well, and what ends the requests that are held.
func newScene(t *testing.T, i incident) (s *scene, release func()) {
	s = &scene{file: filepath.Join(t.TempDir(), "Caddyfile")}
	s.b, release = newHeldBackend(t)
	var env []string
	if i.clock {
		s.clock = redistest.NewClock(t)
		env = s.clock.Env()
	}
	durable := []string{"--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no"} // none that restarts forgets a lock
	s.servers = append([]*redistest.Server{redistest.StartWith(t, env, append(durable, i.args...)...)}, redistest.Start(t, 3, durable...)...)
	for _, server := range s.servers {
		withLeastRights(t, server)
	}
	s.urls = redistest.URLs(s.servers)
	if i.network {
		s.network = redistest.NewForwarder(t, s.servers[0])
		s.urls[0] = "redis://" + s.network.Addr()
	}
	options := i.options
	if i.life > 0 {
		authority := redistest.NewAuthority(t)
		authority.Life = i.life
		certificate, key := authority.Issue("127.0.0.1")
		port := fmt.Sprint(redistest.FreePort(t))
		s.command(t, "CONFIG", "SET", "tls-ca-cert-file", authority.File, "tls-cert-file", certificate, "tls-key-file", key, "tls-auth-clients", "no", "tls-port", port)
		s.urls[0] = "rediss://127.0.0.1:" + port
		options = []string{"restart_guard off", "tls {\ntrust_pool file " + authority.File + "\n}"}
	}
	if options == nil {
		options = []string{"restart_guard off"}
	}
	if !strings.HasPrefix(options[0], "timeout") {
		options = append(options, "timeout "+calm.String())
	}
	s.options = options
	config := s.config("web1", s.urls[:3], options...)
	s.web1 = runCaddy(t, config)
	s.web2 = runCaddy(t, s.config("web2", s.urls[:3], options...))
	if err := os.WriteFile(s.file, []byte(strings.NewReplacer("{$LISTEN}", "127.0.0.1:1", "{$ADMIN}", "off").Replace(config)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*caddyProcess{s.web1, s.web2} {
		awaitMasters(t, c, 3)
		requireLogLine(t, c, "of 3 masters available")
	}
	eventually(t, "all is well", func() bool { first := s.ill(t); return first+s.ill(t) == "" })
	return s, release
}

// ill names the masters that are, with their states.
func (s *scene) ill(t *testing.T) string {
	t.Helper()
	var all []string
	for _, m := range askAdmin[console.Status](t, s.web1, http.MethodGet, "/redlock/masters", http.StatusOK).Lockers[0].Masters {
		if m.State != "available" {
			all = append(all, m.Name+" "+string(m.State))
		}
	}
	return strings.Join(all, ", ")
}

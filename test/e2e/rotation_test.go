package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// rotating is a Caddy on three masters as deploy has them, of which each keeps its data over a restart.
type rotating struct {
	authority *redistest.Authority
	servers   []*redistest.Server
	urls      []string
	operators []*redis.Client
	dir       string // of Caddy: ca, certificate, key, password, Caddyfile
	caddy     *caddyProcess
}

const (
	formerPassword = "former-" + secret
	nextPassword   = "next-" + secret
	operators      = "operators-" + secret
)

func newRotating(t *testing.T) *rotating {
	r := &rotating{authority: redistest.NewAuthority(t), dir: t.TempDir()}
	certificate, key := r.authority.Issue("127.0.0.1")
	users := strings.NewReplacer("user default off\n", "", ">password", ">"+formerPassword, ">operator-password", ">"+operators).Replace(deployFile(t, "users.acl"))
	for range 3 {
		file := filepath.Join(t.TempDir(), "users.acl")
		if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
			t.Fatal(err)
		}
		port := fmt.Sprint(redistest.FreePort(t))
		s := redistest.StartWith(t, nil, "--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", r.authority.File,
			"--aclfile", file, "--appendonly", "yes")
		operator := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "operator", Password: operators, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
		t.Cleanup(func() { _ = operator.Close() })
		r.servers, r.urls, r.operators = append(r.servers, s), append(r.urls, "rediss://127.0.0.1:"+port), append(r.operators, operator)
	}
	certificate, key = r.authority.Issue("client")
	for name, from := range map[string]string{"ca": r.authority.File, "certificate": certificate, "key": key, "password": secretFile(t, formerPassword)} {
		r.write(t, name, from)
	}
	return r
}

// eachMaster runs a command of the operator on each master.
func (r *rotating) eachMaster(t *testing.T, words ...any) {
	t.Helper()
	for _, o := range r.operators {
		if err := o.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%v: %v", words[:2], err)
		}
	}
}

func (r *rotating) write(t *testing.T, name string, from ...string) {
	t.Helper()
	var text strings.Builder
	for _, file := range from {
		text.WriteString(readText(t, file))
	}
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rotating) reload(t *testing.T) {
	t.Helper()
	r.caddy.reload(t, filepath.Join(r.dir, "Caddyfile"), "--force")
}

// again restarts a master with its data, and waits until Caddy has all masters again.
func (r *rotating) again(t *testing.T, s *redistest.Server) {
	t.Helper()
	before := strings.Count(r.caddy.log.String(), "master available again")
	_ = s.Client().Shutdown(t.Context()).Err() // the connection ends
	s.Kill()                                   // it has ended by itself, and with SIGTERM would have as well
	s.Restart()
	eventually(t, "the master votes again", func() bool {
		return strings.Count(r.caddy.log.String(), "master available again") > before
	})
}

// TestRotations: what docs/operations.md says of rotation keeps the lock that a request holds, and the responses that are remembered.
func TestRotations(t *testing.T) {
	needTime(t)
	t.Parallel()
	hash := func(password string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(password))) }
	for what, rotate := range map[string]func(t *testing.T, r *rotating){
		"password": func(t *testing.T, r *rotating) {
			r.eachMaster(t, "ACL", "SETUSER", "redlock", "#"+hash(nextPassword))
			r.write(t, "password", secretFile(t, nextPassword))
			r.reload(t)
			r.eachMaster(t, "ACL", "SETUSER", "redlock", "!"+hash(formerPassword))
		},
		"setting": func(t *testing.T, r *rotating) {
			r.eachMaster(t, "CONFIG", "SET", "maxmemory", "512mb")
		},
		"certificate and authority": func(t *testing.T, r *rotating) {
			second := redistest.NewAuthority(t)
			r.write(t, "both", r.authority.File, second.File)
			r.write(t, "ca", r.authority.File, second.File)
			r.eachMaster(t, "CONFIG", "SET", "tls-ca-cert-file", filepath.Join(r.dir, "both"))
			r.reload(t)
			certificate, key := second.Issue("127.0.0.1")
			r.eachMaster(t, "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key)
			certificate, key = second.Issue("client")
			r.write(t, "certificate", certificate)
			r.write(t, "key", key)
			r.write(t, "ca", second.File)
			r.reload(t)
			r.eachMaster(t, "CONFIG", "SET", "tls-ca-cert-file", second.File)
		},
		"version": func(t *testing.T, r *rotating) {
			for _, s := range r.servers {
				r.again(t, s)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRotating(t)
			b, release := newHeldBackend(t)
			bank := newBackend(t, func() {})
			text := caddyfile(debugLog+"redlock {\nmasters "+strings.Join(r.urls, " ")+"\nusername redlock\npassword {file."+r.dir+"/password}\n"+
				"tls {\ntrust_pool file "+r.dir+"/ca\nclient_auth "+r.dir+"/certificate "+r.dir+"/key\n}\nmax_ttl 10s\ntimeout "+calm.String()+"\n}",
				"redlock /orders/*/pay order:{path.1} {\nmax_hold 1h\n}\nredlock /events/* event:{path.1} {\ndedupe {path.1}\nremember 1h\n}\nhandle /events/* {\n"+bank.proxy()+"\n}\n"+b.proxy())
			if err := os.WriteFile(filepath.Join(r.dir, "Caddyfile"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r.caddy = runCaddy(t, text)
			awaitMasters(t, r.caddy, len(r.servers)) // a quorum must be left when the first is restarted
			eventually(t, "a response is remembered", func() bool { return post(t, r.caddy.url+"/events/1").status == http.StatusOK })
			if n := bank.servedTotal(); n != 1 {
				t.Fatalf("%d events", n)
			}
			wait := b.hold(t, r.caddy.url+"/orders/1/pay")

			rotate(t, r)

			eventually(t, "the masters are asked with what is new", func() bool {
				a := post(t, r.caddy.url+"/orders/1/pay")
				if a.status != http.StatusConflict {
					requireStatus(t, a, http.StatusLocked)
				}
				return a.status == http.StatusLocked
			})
			requireStatus(t, post(t, r.caddy.url+"/events/1"), http.StatusOK)
			if n := bank.servedTotal(); n != 1 {
				t.Errorf("the response is forgotten: %d events", n)
			}
			release()
			requireStatus(t, wait()[0], http.StatusOK)
			if log := r.caddy.log.String(); strings.Contains(log, "lease lost") {
				t.Error("the lock was lost meanwhile")
			}
			requireSecrecy(t, r.caddy, formerPassword, nextPassword, operators)
		})
	}
}

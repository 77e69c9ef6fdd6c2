package redlock_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A private certificate authority, and a certificate that the master wants to see. In production the addresses are those of three or
// five independent servers, and the certificates come from files: x509.CertPool.AppendCertsFromPEM, tls.LoadX509KeyPair.
func ExampleNewMaster() {
	secure := &tls.Config{
		RootCAs:      x509.NewCertPool(),
		Certificates: []tls.Certificate{},
		ServerName:   "redis.internal", // if it is not the host in the address
	}
	client := redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379", Username: "redlock", Password: "password", TLSConfig: secure})
	defer func() { _ = client.Close() }() // a master has a connection of its own

	master, err := redlock.NewMaster(client)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(master)
	// Output: rediss://10.0.0.1:6379
}

// TestCertificateEnds: until when the certificate is valid that a master shows, also where that is renewed while the connection lasts.
func TestCertificateEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("certificates are looked at once a minute")
	}
	t.Parallel()
	authority := redistest.NewAuthority(t)
	authority.Life = 24 * time.Hour
	servers, urls := authority.Start(1)
	own, err := tls.LoadX509KeyPair(authority.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(urls[0], "rediss://"), TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true}})
	defer func() { _ = client.Close() }()
	l := lockerOn(t, []redlock.Master{wrap(t, client)})
	left := func() time.Duration {
		return time.Until(requireState(t, l, 0, redlock.MasterAvailable).CertificateUntil)
	}
	if left() > authority.Life || left() < authority.Life/2 {
		t.Errorf("it is valid for %v, want a day", left())
	}
	authority.Life *= 30
	certificate, key := authority.Issue("127.0.0.1")
	if err := servers[0].Client().Do(t.Context(), "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key).Err(); err != nil {
		t.Skip("this server can't exchange both files at once:", err)
	}
	eventually(t, 2*bound, "the renewed certificate is noticed", func() bool { return left() > authority.Life/2 })
}

// TestUselessCertificate: a certificate with which no connection can be made is told while the connection lasts, with what to do, and once.
func TestUselessCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("certificates are looked at once a minute")
	}
	t.Parallel()
	authority := redistest.NewAuthority(t)
	servers, urls := authority.Start(1)
	own, err := tls.LoadX509KeyPair(authority.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(urls[0], "rediss://"), TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: trusted, ServerName: "127.0.0.1"}})
	defer func() { _ = client.Close() }()
	var log logBook
	l := lockerOn(t, []redlock.Master{wrap(t, client)}, log.option())
	until := requireState(t, l, 0, redlock.MasterAvailable).CertificateUntil
	shows := func(a *redistest.Authority) {
		certificate, key := a.Issue("127.0.0.1")
		if err := servers[0].Client().Do(t.Context(), "CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key).Err(); err != nil {
			t.Skip("this server can't exchange both files at once:", err)
		}
	}
	shows(redistest.NewAuthority(t))
	const useless = "no connection can be made"
	log.expect(t, "level=WARN", useless, "unknown authority", "trust its certificate")
	lockUnlock(t, l, "key")
	if s := requireState(t, l, 0, redlock.MasterAvailable); !s.CertificateUntil.Equal(until) {
		t.Errorf("it is valid until %v, want %v", s.CertificateUntil, until)
	}
	shows(authority)
	log.expect(t, "level=INFO", "connections can be made")
	if lines := log.lines(useless); len(lines) != 1 {
		t.Errorf("%q", lines)
	}
}

// TestTLS: masters with a private certificate authority, another name and client certificates; and what is said if one of them is
// missing.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	servers, urls := authority.Start(1, "redis.internal")
	own, err := tls.LoadX509KeyPair(authority.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	text, err := os.ReadFile(authority.File)
	if err != nil || !trusted.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config *tls.Config
		fault  string
	}{
		"all":              {config: &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{own}, ServerName: "redis.internal"}},
		"unknown CA":       {&tls.Config{Certificates: []tls.Certificate{own}, ServerName: "redis.internal"}, "unknown authority"},
		"no certificate":   {&tls.Config{RootCAs: trusted, ServerName: "redis.internal"}, "certificate required"},
		"another server":   {&tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{own}, ServerName: "other.internal"}, "other.internal"},
		"none is verified": {config: &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true}},
	} {
		client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(urls[0], "rediss://"), TLSConfig: c.config})
		l := lockerOn(t, []redlock.Master{wrap(t, client)})
		if c.fault == "" {
			lockUnlock(t, l, name)
		} else {
			tells := func(err error) bool { return strings.Contains(err.Error(), c.fault) }
			eventually(t, bound, "the reason: "+name, func() bool { return tells(requireState(t, l, 0, redlock.MasterUnreachable).Err) })
			for range 5 { // attempts to connect: each tells the reason, unless it has taken too long
				if err := requireState(t, l, 0, redlock.MasterUnreachable).Err; !tells(err) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v, want %q", name, err, c.fault)
				}
				time.Sleep(300 * time.Millisecond)
			}
		}
		_ = l.Close()
		_ = client.Close()
	}
	redistest.RequireNoKeys(t, servers)
}

func TestPasswords(t *testing.T) {
	const right, wrong = "the-right-one", "the-wrong-one"
	servers := redistest.Start(t, 1)
	s := servers[0]
	if err := s.Client().ConfigSet(t.Context(), "requirepass", right).Err(); err != nil {
		t.Fatal(err)
	}
	with := func(password string) string { return strings.Replace(s.URL(), "//", "//:"+password+"@", 1) }
	var log logBook
	lockUnlock(t, newLocker(t, []string{with(right)}, log.option()), "key")

	l := newLocker(t, []string{with(wrong)}, log.option())
	_, err := l.TryLock(t.Context(), "key")
	if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), wrong) {
		t.Errorf("TryLock with a wrong password: %v, want WRONGPASS and no password", err)
	}
	log.expect(t, "WRONGPASS", s.URL())

	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: wrong})
	defer func() { _ = client.Close() }()
	if text := fmt.Sprint(wrap(t, client)); strings.Contains(text, wrong) {
		t.Errorf("master %q tells the password", text)
	}
	for _, password := range []string{right, wrong} {
		if lines := log.lines(password); len(lines) > 0 {
			t.Errorf("the log tells a password: %q", lines)
		}
	}
	redistest.RequireNoKeys(t, servers)
}

// TestWrongPasswordInStatus: a wrong password is logged once, with the master, and is in its status; neither shows the password.
func TestWrongPasswordInStatus(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	urls := asUser(t, servers, redistest.LeastRights(t))
	urls[1] = strings.Replace(urls[1], "secret", "wrong-secret", 1)
	var book logBook
	l := newLocker(t, urls, book.option())
	requireState(t, l, 1, redlock.MasterRefuses)
	status := l.Status().Masters[1]
	if text := fmt.Sprint(status.Err); !strings.Contains(text, "the user name or the password is wrong") || strings.Contains(text, "secret") {
		t.Errorf("status %s", text)
	}
	lockUnlock(t, l, "key")
	wrong := []string{"level=WARN", servers[1].URL(), "WRONGPASS", "the password is wrong"}
	book.expect(t, wrong...)
	if lines := book.lines(wrong...); len(lines) != 1 || len(book.lines("secret")) > 0 {
		t.Errorf("log:\n%s", book.lines(""))
	}
	command(t, servers[1], "ACL", "SETUSER", "locks", ">wrong-secret") // the wrong one becomes right
	requireState(t, l, 1, redlock.MasterAvailable)
}

// TestSentinelAnswers: the port of a Sentinel is recognized by what answers there.
func TestSentinelAnswers(t *testing.T) {
	t.Parallel()
	binary, err := redistest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	port := redistest.FreePort(t)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "port %d\nbind 127.0.0.1\n", port), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, file, "--sentinel")
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	l := newLocker(t, []string{fmt.Sprintf("redis://127.0.0.1:%d", port)})
	requireState(t, l, 0, redlock.MasterExcluded)
	if text := fmt.Sprint(l.Status().Masters[0].Err); !strings.Contains(text, "is a Sentinel, which keeps no keys: name the Redis servers themselves") {
		t.Error(text)
	}
}

package connect

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// parse reads a command line in an environment with these variables.
func parse(t *testing.T, env map[string]string, args ...string) *Settings {
	t.Helper()
	for _, name := range append(slices.Clone(names), "password") {
		variable := "REDLOCK_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		t.Setenv(variable, env[variable])
	}
	s, flags := new(Settings), pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := Environment(flags); err != nil {
		t.Fatal(err)
	}
	return s
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestMasters: the masters come from flags, variables and files, and credentials are added to those that have none.
func TestMasters(t *testing.T) {
	listed := file(t, "redis://a:1, redis://b # the second\nredis://own:secret@c\n")
	password := file(t, "p@ss\n")
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{nil, []string{"--masters", "redis://a redis://b,redis://c"}, "redis://a redis://b redis://c"},
		{nil, []string{"--masters", "redis://a", "--masters", "redis://b"}, "redis://a redis://b"},
		{map[string]string{"REDLOCK_MASTERS": "redis://a, redis://b"}, nil, "redis://a redis://b"},
		{map[string]string{"REDLOCK_MASTERS": "redis://a"}, []string{"--masters", "redis://b"}, "redis://b"},
		{map[string]string{"REDLOCK_MASTERS": "redis://a"}, []string{"--masters-file", listed}, "redis://a:1 redis://b redis://own:secret@c"},
		{map[string]string{"REDLOCK_MASTERS_FILE": listed, "REDLOCK_USERNAME": "u", "REDLOCK_PASSWORD": "x"}, nil, "redis://u:x@a:1 redis://u:x@b redis://own:secret@c"},
		{map[string]string{"REDLOCK_PASSWORD": "x\n"}, []string{"--masters", "redis://a"}, "redis://:x@a"},
		{map[string]string{"REDLOCK_PASSWORD": "x"}, []string{"--masters", "rediss-cluster://a?addr=b:1", "--tls-server-name", "a"}, "rediss-cluster://:x@a?addr=b:1"},
		{map[string]string{"REDLOCK_PASSWORD": "x"}, []string{"--masters", "redis://a", "--password-file", password}, "redis://:p%40ss@a"},
	} {
		s := parse(t, c.env, c.args...)
		urls, err := s.urls()
		if err = errors.Join(err, s.Renew()); err == nil {
			for i, text := range urls {
				urls[i] = WithUser(text, s.Username, s.access.Load().Password)
			}
		}
		if got := strings.Join(urls, " "); err != nil || got != c.want {
			t.Errorf("%q %q: %s, %v; want %s", c.env, c.args, got, err, c.want)
		}
	}
}

// TestWrongSettings: each error names the setting, and shows no URL, which may have a password.
func TestWrongSettings(t *testing.T) {
	const secret = "s3cret"
	for want, args := range map[string][]string{
		"no masters":                           nil,
		"masters: number 2 is memory://":       {"--masters", "redis://:" + secret + "@a memory://"},
		"--masters-file":                       {"--masters-file", "/does/not/exist"},
		"--password-file":                      {"--masters", "redis://a", "--password-file", file(t, "")},
		"want one line":                        {"--masters", "redis://a", "--password-file", file(t, secret+"\nb")},
		"--tls-ca":                             {"--masters", "rediss://a", "--tls-ca", file(t, "no PEM")},
		"--tls-cert":                           {"--masters", "rediss://a", "--tls-cert", "/does/not/exist", "--tls-key", "/x"},
		"needs both --tls-cert and":            {"--masters", "rediss://a", "--tls-cert", "/x"},
		"no master uses it":                    {"--masters", "redis://a", "--tls-server-name", "a"},
		"--restart-guard \"soon\"":             {"--masters", "redis://a", "--restart-guard", "soon"},
		"--restart-guard 1s: must be at least": {"--masters", "redis://a", "--restart-guard", "1s"},
		"--max-skew \"-1s\"":                   {"--masters", "redis://a", "--max-skew", "-1s"},
		"masters: ":                            {"--masters", "http://:" + secret + "@a"},
	} {
		locker, err := parse(t, nil, args...).Open()
		if err == nil {
			_ = locker.Close()
			t.Errorf("%q is no error, want %q", args, want)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// TestOpen locks on masters with TLS, a private authority and a client certificate.
func TestOpen(t *testing.T) {
	authority := redistest.NewAuthority(t)
	_, urls := authority.Start(3)
	certificate, key := authority.Issue("client")
	env := map[string]string{"REDLOCK_RESTART_GUARD": "off", "REDLOCK_MASTERS": strings.Join(urls, ","), "REDLOCK_TLS_CA": authority.File}
	locker, err := parse(t, env, "--tls-cert", certificate, "--tls-key", key, "--timeout", "2s", "--instance", "me").Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	lock, err := locker.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	if inside.Of(locker).Instance != "me" {
		t.Errorf("instance %q", inside.Of(locker).Instance)
	}
}

// TestRenew: new connections of a locker use what the files have at Renew. A file that is only half written changes nothing.
func TestRenew(t *testing.T) {
	authority := redistest.NewAuthority(t)
	_, urls := authority.Start(1)
	certificate, key := authority.Issue("client")
	right, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(redistest.NewAuthority(t).File)
	if err != nil {
		t.Fatal(err)
	}
	ca := file(t, string(wrong))
	s := parse(t, nil, "--masters", urls[0], "--restart-guard", "off", "--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key)
	locker, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	if _, err := locker.TryLock(t.Context(), "k"); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatalf("with another authority: %v", err)
	}
	former := s.access.Load()
	write := func(text []byte) {
		if err := os.WriteFile(ca, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(right[:len(right)/2])
	if err := s.Renew(); err == nil || !strings.Contains(err.Error(), "no certificate in PEM") || s.access.Load() != former {
		t.Errorf("half of a file: %v", err)
	}
	write(right)
	if err := s.Renew(); err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "k", redlock.WithMastersWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestLists: a flag or variable with several values.
func TestLists(t *testing.T) {
	var got []string
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	ListVar(flags, &got, "listen", "addresses", "")
	t.Setenv("REDLOCK_LISTEN", "unix:/run/a 127.0.0.1:70,127.0.0.1:71")
	if err := WholeEnvironment(flags); err != nil || strings.Join(got, " ") != "unix:/run/a 127.0.0.1:70 127.0.0.1:71" {
		t.Errorf("%q, %v", got, err)
	}
	if err := flags.Set("listen", " , "); err == nil || !strings.Contains(err.Error(), "want addresses") {
		t.Errorf("nothing: %v", err)
	}
}

// TestResolve: what the settings come to.
func TestResolve(t *testing.T) {
	masters, o, err := parse(t, nil, "--masters", "redis://a redis://b:7", "--max-ttl", "5s", "--restart-guard", "off").Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if len(masters) != 2 || masters[1].String() != "redis://b:7" || o.Guard != 0 || o.TTL() != 5*time.Second || o.MaxSkew != 2*time.Second {
		t.Errorf("%v, %+v", masters, o)
	}
}

// TestDurations: flags and variables read what a Caddyfile does.
func TestDurations(t *testing.T) {
	for _, s := range []*Settings{
		parse(t, nil, "--masters", "redis://a", "--max-ttl", "1d12h", "--restart-guard", "2d", "--max-skew", "1d", "--timeout", "1s"),
		parse(t, map[string]string{"REDLOCK_MAX_TTL": "1d12h", "REDLOCK_RESTART_GUARD": "2d", "REDLOCK_MAX_SKEW": "1d", "REDLOCK_TIMEOUT": "1s"}, "--masters", "redis://a"),
	} {
		const day = 24 * time.Hour
		if _, o, err := s.Resolve(); err != nil || o.MaxTTL != day*3/2 || o.Guard != 2*day || o.MaxSkew != day || o.Timeout != time.Second {
			t.Errorf("%+v, %v", o, err)
		}
	}
}

package redlock_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// alias is another URL of the same server.
func alias(s *redistest.Server) string {
	return strings.Replace(s.URL(), "127.0.0.1", "localhost", 1)
}

// dead is the URL of a port on which nobody listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return fmt.Sprint("redis://", l.Addr())
}

func TestOneServerUnderTwoNames(t *testing.T) {
	servers := redistest.Start(t, 2)
	var log logBook
	l := newLocker(t, append(redistest.URLs(servers), alias(servers[0])), log.option())
	lockUnlock(t, l, "key") // two servers are a quorum
	log.expect(t, "level=ERROR", servers[0].URL(), alias(servers[0]))

	l = newLocker(t, []string{servers[0].URL(), alias(servers[0]), dead(t)})
	for range 10 { // no order of connecting gives it two votes
		requireNoQuorumAtAll(t, l)
	}
	redistest.RequireNoKeys(t, servers)
}

func requireNoQuorumAtAll(t *testing.T, l *redlock.Locker) {
	t.Helper()
	if lock, err := l.TryLock(t.Context(), "key"); err == nil {
		t.Error("one server alone made a quorum of three masters")
		mustUnlock(t, lock)
	}
}

func TestReplicaHasNoVote(t *testing.T) {
	servers := redistest.Start(t, 2)
	master, replica := servers[0], servers[1]
	host, port, _ := strings.Cut(master.Addr(), ":")
	if err := replica.Client().ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	var log logBook
	l := newLocker(t, []string{master.URL(), replica.URL(), dead(t)}, log.option())
	requireNoQuorumAtAll(t, l)
	log.expect(t, "level=ERROR", replica.URL(), "replica")
	if lines := log.lines("level=ERROR", master.URL()+" "); len(lines) > 0 {
		t.Errorf("the log blames the master: %q", lines)
	}
	redistest.RequireNoKeys(t, servers[:1])
}

func TestEvictionIsWarnedAbout(t *testing.T) {
	servers := redistest.Start(t, 1, "--maxmemory-policy", "allkeys-lru")
	var log logBook
	lockUnlock(t, newLocker(t, redistest.URLs(servers), log.option()), "key")
	log.expect(t, "level=WARN", servers[0].URL(), "allkeys-lru", "noeviction")
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

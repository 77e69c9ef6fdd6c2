package doctor_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	goleak.VerifyTestMain(m)
}

// silent drops what go-redis would print for each failed connection.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// safe are the arguments of servers that forget nothing, so that none of them needs the restart guard.
var safe = []string{"--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "no"}

// settings are those under which a machine that is busy finds nothing, with the guard off.
func settings(urls ...string) doctor.Settings {
	return trusting(nil, urls...)
}

// trusting are such settings with these for TLS.
func trusting(secure *tls.Config, urls ...string) doctor.Settings {
	secure = secure.Clone() // tests change theirs while a Locker dials
	masters, err := inside.Dial(func() inside.Access { return inside.Access{TLS: secure} }, urls...)
	if err != nil {
		panic(err)
	}
	return doctor.Settings{
		Options: connect.Options{Timeout: 30 * time.Second, MaxSkew: 20 * time.Second, Prefix: "redlock"},
		Masters: masters.([]redlock.Master), LeastTTL: time.Hour, Patience: 30 * time.Second,
	}
}

// of returns the findings of one check.
func of(r doctor.Report, check doctor.Check) (found []doctor.Finding) {
	for _, f := range r.Findings {
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
}

// want is a finding that must be there: of this level and check, with these words in its text or advice.
type want struct {
	level doctor.Level
	check doctor.Check
	texts []string
	votes bool
}

// require fails the test if the first master doesn't have exactly one finding of the check, as wanted.
func (w want) require(t *testing.T, r doctor.Report) {
	t.Helper()
	t.Logf("%+v", r)
	requireAdvice(t, r)
	found := of(r, w.check)
	if len(found) != 1 {
		t.Fatalf("%d findings of %s: %+v", len(found), w.check, found)
	}
	f := found[0]
	if f.Level != w.level || f.Advice == "" || !strings.HasSuffix(f.Master, r.Masters[0].Name) && f.Master != "" {
		t.Errorf("%+v, want level %s of the first master", f, w.level)
	}
	for _, text := range w.texts {
		if !strings.Contains(f.Text+"\n"+f.Advice, text) {
			t.Errorf("%q is in neither %q nor %q", text, f.Text, f.Advice)
		}
	}
	if r.Masters[0].Votes != w.votes {
		t.Errorf("votes %v, want %v", r.Masters[0].Votes, w.votes)
	}
	if healthy := w.level == doctor.Note; r.Healthy() != healthy {
		t.Errorf("healthy %v with %+v", r.Healthy(), r.Findings)
	}
	if strings.Contains(fmt.Sprintf("%+v", r), secret) {
		t.Error("the report has a password")
	}
}

// requireAdvice fails the test if a finding has its advice in its text, too, or advises what a service refuses, and nothing else.
func requireAdvice(t *testing.T, r doctor.Report) {
	t.Helper()
	for _, f := range r.Findings {
		if strings.Contains(f.Text, strings.TrimSuffix(f.Advice[1:], ".")) {
			t.Errorf("the advice comes twice: %+v", f)
		}
		if strings.Contains(f.Advice, "CONFIG SET") && !strings.Contains(f.Advice, "service") {
			t.Errorf("a service refuses that: %+v", f)
		}
	}
}

// finding returns the advice of the finding of this check with these words in its text or advice, or nothing.
func finding(r doctor.Report, check doctor.Check, words ...string) (advice string) {
	for _, f := range of(r, check) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(f.Text+"\n"+f.Advice, w) }) {
			return f.Advice
		}
	}
	return ""
}

// advised returns what is advised for such a finding, as soon as it is there: a busy machine may be too late for a short patience.
func advised(t *testing.T, s doctor.Settings, check doctor.Check, words ...string) (advice string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a finding of %s with %q", check, words), func() bool {
		r := doctor.Examine(t.Context(), s)
		requireAdvice(t, r)
		advice = finding(r, check, words...)
		return advice != ""
	})
	return advice
}

// healed waits until there is no such finding any more, and all masters vote.
func healed(t *testing.T, s doctor.Settings, check doctor.Check, words ...string) {
	t.Helper()
	var r doctor.Report
	defer func() {
		if t.Failed() {
			t.Logf("%+v", r)
		}
	}()
	eventually(t, fmt.Sprintf("what is advised is done, and no finding of %s with %q", check, words), func() bool {
		r = doctor.Examine(t.Context(), s)
		return finding(r, check, words...) == "" && r.Voting == len(s.Masters)
	})
}

const secret = "s3cr3t-Zm9v"

func TestHealthy(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, safe...)
	for _, s := range servers { // none of what others have is touched, nor seen
		if err := errors.Join(s.Client().RPush(t.Context(), "redlock:{order:42}", "token").Err(), s.Client().ConfigResetStat(t.Context()).Err()); err != nil {
			t.Fatal(err)
		}
	}
	r := doctor.Examine(t.Context(), settings(redistest.URLs(servers)...))
	if !r.Healthy() || r.Voting != 3 || r.Quorum != 2 {
		t.Errorf("%+v", r)
	}
	if len(r.Findings) != 1 || r.Findings[0].Check != doctor.Independence || !strings.Contains(r.Findings[0].Text, "3 masters are at 127.0.0.1") {
		t.Errorf("findings %+v, want the note that all are on one machine", r.Findings)
	}
	for i, m := range r.Masters {
		if m.Version == "" || m.RoundTrip <= 0 || m.MaxmemoryPolicy != "noeviction" || m.Persistence != "aof always" || !m.Votes {
			t.Errorf("%+v", m)
		}
		s := servers[i]
		if keys := s.Keys(); !slices.Equal(keys, []string{"redlock:{order:42}"}) {
			t.Errorf("keys left: %q", keys)
		}
		for deadline := time.Now().Add(20 * time.Second); s.Connections() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a connection is left")
			}
		}
	}
}

func TestNumberOfMasters(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 4, safe...)
	for n, texts := range map[int][]string{
		1: {"one master", "three"},
		2: {"2 masters survive the loss of none, no more than 1", "Use 1 or 3"},
		4: {"4 masters survive the loss of 1, no more than 3", "Use 3 or 5"},
	} {
		level := doctor.Warning
		if n == 1 {
			level = doctor.Note
		}
		want{level, doctor.Number, texts, true}.require(t, doctor.Examine(t.Context(), settings(redistest.URLs(servers[:n])...)))
	}
	healed(t, settings(redistest.URLs(servers[:3])...), doctor.Number) // as all advise
	s := settings()
	s.Masters = []redlock.Master{inside.NewMemoryMaster("").(redlock.Master)}
	want{doctor.Note, doctor.Number, []string{"memory of the process", "List your Redis servers"}, true}.require(t, doctor.Examine(t.Context(), s))
}

// TestOneOfThree has one master that is ill, and two that are not looked at any less for it.
func TestOneOfThree(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fall, follow func(*redistest.Server)
		texts        []string
	}{
		"down": {(*redistest.Server).Kill, (*redistest.Server).Restart, []string{"connection refused", "Start the server"}},
		"hung": {(*redistest.Server).Pause, (*redistest.Server).Resume, []string{"does not answer within 5s", "Look whether the server hangs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3, safe...)
			test.fall(servers[0])
			s := settings(redistest.URLs(servers)...)
			s.Patience = 5 * time.Second
			r := doctor.Examine(t.Context(), s)
			want{doctor.Error, doctor.Reachability, test.texts, false}.require(t, r)
			if r.Voting != 2 || !r.Masters[1].Votes || !r.Masters[2].Votes || r.Masters[2].Version == "" {
				t.Errorf("%+v", r)
			}
			test.follow(servers[0])
			healed(t, s, doctor.Reachability)
		})
	}
}

// TestHungLater has a server that hangs after its first replies.
func TestHungLater(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, safe...)[0]
	forwarder := redistest.NewForwarder(t, server)
	s := settings("redis://" + forwarder.Addr())
	s.Patience = 2 * time.Second
	forwarder.Set(redistest.Weather{Delay: 10 * time.Millisecond}) // so that it is under way for a while
	done := make(chan doctor.Report, 1)
	go func() { done <- doctor.Examine(t.Context(), s) }()
	for server.Connections() == 0 && len(done) == 0 {
		time.Sleep(time.Millisecond)
	}
	forwarder.Set(redistest.Weather{Replies: true})
	r := <-done
	if found := of(r, doctor.Reachability); len(found) == 1 && !strings.Contains(found[0].Text, "does not answer") {
		t.Errorf("%+v", found) // it may have been done before the network stood still
	}
}

// TestCancel ends with its context, while a server hangs.
func TestCancel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	s := settings(server.URL())
	s.Patience = time.Hour
	if r := doctor.Examine(ctx, s); len(of(r, doctor.Reachability)) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	answers := func(text string) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(text))
				_ = conn.Close()
			}
		}()
		return listener.Addr().String()
	}
	server := redistest.Start(t, 1, safe...)[0]
	path := filepath.Join(t.TempDir(), "s") // a socket's path may not be long
	behind := redistest.Start(t, 1, safe...)[0]
	proxy := redistest.NewForwarder(t, behind)
	behind.Kill()
	for name, test := range map[string]struct {
		url    string
		texts  []string
		follow func() string // and return the master's URL
	}{
		"refused": {fmt.Sprintf("redis://127.0.0.1:%d", redistest.FreePort(t)), []string{"connection refused", "correct the port in masters"}, server.URL},
		"other bind": {strings.Replace(server.URL(), "127.0.0.1", "127.0.0.2", 1), []string{"connection refused", "let it listen on this address (bind in redis.conf)"}, func() string {
			if err := server.Client().ConfigSet(t.Context(), "bind", "127.0.0.1 127.0.0.2").Err(); err != nil {
				t.Skip("this server's bind needs a restart:", err)
			}
			return strings.Replace(server.URL(), "127.0.0.1", "127.0.0.2", 1)
		}},
		"no name": {"redis://redis.invalid:6379", []string{"its name"}, server.URL},
		"no socket": {"unix://" + path, []string{"no socket", "Start the server"}, func() string {
			redistest.Start(t, 1, append(slices.Clone(safe), "--unixsocket", path)...)
			return "unix://" + path
		}},
		"not Redis": {"redis://" + answers("HTTP/1.1 400 Bad Request\r\n\r\n"), []string{"not of Redis's protocol", "Correct the port"}, server.URL},
		"closes":    {"redis://" + answers(""), []string{"closes the connection", "Look whether a Redis server listens there"}, server.URL},
		"proxy": {"redis://" + proxy.Addr(), []string{"closes the connection", "a proxy that can't reach its server"}, func() string {
			behind.Restart()
			return "redis://" + proxy.Addr()
		}},
		"protected": {"redis://" + answers("-DENIED Redis is running in protected mode\r\n"), []string{"protected mode", "password"}, nil}, // TestRefusals follows these
		"loading":   {"redis://" + answers("-LOADING Redis is loading the dataset in memory\r\n"), []string{"loading its data"}, nil},
		"overrun":   {"redis://" + answers("-ERR max number of clients reached\r\n"), []string{"limit of connections", "maxclients"}, nil},
		"dropped":   {"redis://" + fullListener(t), []string{"no connection within 1s", "correct the address in masters"}, server.URL},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(test.url)
			if name == "dropped" {
				s.Patience = time.Second
			}
			want{doctor.Error, doctor.Reachability, test.texts, false}.require(t, doctor.Examine(t.Context(), s))
			if test.follow != nil {
				healed(t, settings(test.follow()), doctor.Reachability)
			}
		})
	}
}

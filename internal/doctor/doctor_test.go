package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
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
	s := doctor.Settings{Timeout: 30 * time.Second, LeastTTL: time.Hour, MaxSkew: 20 * time.Second, Prefix: "redlock", Patience: 30 * time.Second}
	for _, u := range urls {
		o, err := redis.ParseURL(u)
		if err != nil {
			panic(err)
		}
		name, _, _ := strings.Cut(u, "?")
		scheme, rest, _ := strings.Cut(name, "://")
		s.Masters = append(s.Masters, doctor.Master{Name: scheme + "://" + rest[strings.LastIndex(rest, "@")+1:], Options: o})
	}
	return s
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
	found := of(r, w.check)
	if len(found) != 1 {
		t.Fatalf("%d findings of %s: %+v", len(found), w.check, found)
	}
	f := found[0]
	if f.Level != w.level || f.Advice == "" || f.Master != "" && f.Master != r.Masters[0].Name {
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
	s := settings()
	s.Masters = []doctor.Master{{Name: "memory://"}}
	want{doctor.Note, doctor.Number, []string{"memory of the process"}, true}.require(t, doctor.Examine(t.Context(), s))
}

// TestOneOfThree has one master that is ill, and two that are not looked at any less for it.
func TestOneOfThree(t *testing.T) {
	t.Parallel()
	for name, fall := range map[string]func(*redistest.Server){"down": (*redistest.Server).Kill, "hung": (*redistest.Server).Pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3, safe...)
			fall(servers[0])
			s := settings(redistest.URLs(servers)...)
			s.Patience = 5 * time.Second
			r := doctor.Examine(t.Context(), s)
			text := map[string]string{"down": "connection refused", "hung": "does not answer within 5s"}[name]
			want{doctor.Error, doctor.Reachability, []string{text}, false}.require(t, r)
			if r.Voting != 2 || !r.Masters[1].Votes || !r.Masters[2].Votes || r.Masters[2].Version == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestHungLater has a server that hangs after its first answers.
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
	forwarder.Set(redistest.Weather{Answers: true})
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
	for name, test := range map[string]struct {
		url   string
		texts []string
	}{
		"refused":   {fmt.Sprintf("redis://127.0.0.1:%d", redistest.FreePort(t)), []string{"connection refused", "Start the server"}},
		"no name":   {"redis://redis.invalid:6379", []string{"its name"}},
		"no socket": {"unix://" + t.TempDir() + "/redis.sock", []string{"no socket", "unixsocket"}},
		"not Redis": {"redis://" + answers("HTTP/1.1 400 Bad Request\r\n\r\n"), []string{"not of Redis's protocol", "port"}},
		"closes":    {"redis://" + answers(""), []string{"closes the connection", "log"}},
		"protected": {"redis://" + answers("-DENIED Redis is running in protected mode\r\n"), []string{"protected mode", "password"}},
		"loading":   {"redis://" + answers("-LOADING Redis is loading the dataset in memory\r\n"), []string{"loading its data"}},
		"overrun":   {"redis://" + answers("-ERR max number of clients reached\r\n"), []string{"limit of connections", "maxclients"}},
		"dropped":   {"redis://" + fullListener(t), []string{"no connection within 1s", "firewall"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(test.url)
			if name == "dropped" {
				s.Patience = time.Second
			}
			want{doctor.Error, doctor.Reachability, test.texts, false}.require(t, doctor.Examine(t.Context(), s))
		})
	}
}

func TestUptime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	s := settings(server.URL())
	s.Guard = time.Hour
	want{doctor.Warning, doctor.Uptime, []string{"was started", "it votes in", "Wait"}, false}.require(t, doctor.Examine(t.Context(), s))
	awaitUptime(t, server)
	s.Guard = time.Second
	if r := doctor.Examine(t.Context(), s); !r.Healthy() || r.Voting != 1 {
		t.Errorf("%+v", r)
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args  []string
		guard time.Duration
		want  want
	}{
		"evicts":         {append(safe, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"), 0, want{doctor.Error, doctor.Eviction, []string{"deletes locks and remembered answers", "allkeys-lru", "noeviction"}, true}},
		"would evict":    {append(safe, "--maxmemory-policy", "volatile-ttl"), 0, want{doctor.Warning, doctor.Eviction, []string{"volatile-ttl", "noeviction"}, true}},
		"full":           {append(safe, "--maxmemory", "100kb"), 0, want{doctor.Error, doctor.Rights, []string{"memory is full", "Raise maxmemory"}, false}},
		"lonely":         {append(safe, "--min-replicas-to-write", "1"), 0, want{doctor.Error, doctor.Rights, []string{"min-replicas-to-write"}, false}},
		"renamed":        {append(safe, "--rename-command", "LSET", ""), 0, want{doctor.Error, doctor.Rights, []string{"does not know", "LSET"}, false}},
		"forgets":        {nil, 0, want{doctor.Error, doctor.Persistence, []string{"appendonly no", "restart_guard off"}, true}},
		"forgets a bit":  {append(safe, "--appendfsync", "everysec"), 0, want{doctor.Error, doctor.Persistence, []string{"appendfsync everysec"}, true}},
		"when it writes": {append(safe, "--no-appendfsync-on-rewrite", "yes"), 0, want{doctor.Error, doctor.Persistence, []string{"no-appendfsync-on-rewrite yes"}, true}},
		"saves":          {[]string{"--save", "3600 1"}, time.Second, want{doctor.Note, doctor.Persistence, []string{"snapshots", `CONFIG SET save ""`}, true}},
		"cluster":        {append(safe, "--cluster-enabled", "yes"), 0, want{doctor.Error, doctor.Mode, []string{"a node of a Redis Cluster", "independent"}, false}},
		"password":       {append(safe, "--requirepass", secret), 0, want{doctor.Error, doctor.Reachability, []string{"needs a password"}, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, 1, test.args...)[0]
			s := settings(server.URL())
			if s.Guard = test.guard; s.Guard > 0 {
				awaitUptime(t, server)
			}
			test.want.require(t, doctor.Examine(t.Context(), s))
		})
	}
}

// TestNearlyFull has a server whose maxmemory is a little above what it uses.
func TestNearlyFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, safe...)[0]
	if err := server.Client().SetRange(t.Context(), "large", 20<<20, "x").Err(); err != nil { // so that a few connections make no difference
		t.Fatal(err)
	}
	memory, err := server.Client().Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	for line := range strings.Lines(memory) {
		_, _ = fmt.Sscanf(line, "used_memory:%d", &used)
	}
	if err := server.Client().ConfigSet(t.Context(), "maxmemory", fmt.Sprint(used*100/82)).Err(); err != nil {
		t.Fatal(err)
	}
	want{doctor.Warning, doctor.Eviction, []string{"% of its maxmemory are used", "Raise maxmemory"}, true}.require(t, doctor.Examine(t.Context(), settings(server.URL())))
}

// TestAnswersOnDisk: what is remembered outlasts a restart only on the disk, which locks don't need.
func TestAnswersOnDisk(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--save", "3600 1"}, {"--appendonly", "yes"}} {
		server := redistest.Start(t, 1, args...)[0]
		s := settings(server.URL())
		s.Guard, s.Remember = time.Second, true
		awaitUptime(t, server)
		report := doctor.Examine(t.Context(), s)
		if len(args) > 0 && args[0] == "--appendonly" {
			if found := of(report, doctor.Persistence); len(found) > 0 {
				t.Errorf("%q: %+v", args, found)
			}
			continue
		}
		want{doctor.Note, doctor.Persistence, []string{"with its copies of remembered answers", "appendonly yes"}, true}.require(t, report)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	want{doctor.Error, doctor.Mode, []string{"a Sentinel", "independent"}, false}.require(t, doctor.Examine(t.Context(), settings("redis://"+sentinel(t))))
}

func TestTogether(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, safe...)
	first := func(addr string) doctor.Settings { // the first of three masters is another
		s := settings("redis://"+addr, servers[1].URL(), servers[2].URL())
		return s
	}
	t.Run("twice", func(t *testing.T) {
		s := settings(servers[1].URL(), servers[2].URL(), "redis://"+redistest.NewForwarder(t, servers[1]).Addr())
		r := doctor.Examine(t.Context(), s)
		found := of(r, doctor.Independence)
		if len(found) != 2 || !strings.Contains(found[1].Text, "the same server as "+servers[1].URL()) || found[1].Master != s.Masters[2].Name || r.Voting != 2 || r.Healthy() {
			t.Errorf("%+v", r)
		}
	})
	t.Run("replica", func(t *testing.T) {
		host, port, _ := strings.Cut(servers[1].Addr(), ":")
		replica := redistest.Start(t, 1, append(safe, "--replicaof", host, port)...)[0]
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			r := doctor.Examine(t.Context(), first(replica.Addr()))
			if len(of(r, doctor.Reachability)) > 0 && time.Now().Before(deadline) { // MASTERDOWN, LOADING
				continue
			}
			found := of(r, doctor.Independence)
			if len(found) != 2 || !strings.Contains(found[1].Text, "a replica of "+servers[1].URL()) || !strings.Contains(found[1].Advice, "REPLICAOF NO ONE") || r.Voting != 2 {
				t.Errorf("%+v", r)
			}
			if len(of(r, doctor.Rights)) > 0 {
				t.Errorf("that it takes no writes goes without saying: %+v", of(r, doctor.Rights))
			}
			break
		}
	})
	t.Run("behind a load balancer", func(t *testing.T) {
		s := settings("redis://127.0.0.1:1")
		turn := 0
		s.Masters[0].Options.Dialer = func(context.Context, string, string) (net.Conn, error) {
			turn++
			return net.Dial("tcp", servers[turn%2].Addr())
		}
		want{doctor.Error, doctor.Independence, []string{"reached two servers", "load balancer"}, true}.require(t, doctor.Examine(t.Context(), s))
	})
	t.Run("far away", func(t *testing.T) {
		forwarder := redistest.NewForwarder(t, servers[0])
		forwarder.Set(redistest.Weather{Delay: 20 * time.Millisecond}) // in each direction
		s := settings("redis://" + forwarder.Addr())
		s.Timeout = 9 * time.Millisecond
		want{doctor.Error, doctor.Latency, []string{"no answer comes in time", "timeout"}, false}.require(t, doctor.Examine(t.Context(), s))
		s.Timeout = 39 * time.Millisecond
		if found := of(doctor.Examine(t.Context(), s), doctor.Latency); len(found) != 1 || !strings.Contains(found[0].Text, "the timeout is 39ms") {
			t.Errorf("%+v", found) // on a busy machine it is an error, not a warning
		}
		s.Timeout, s.LeastTTL = 30*time.Second, 799*time.Millisecond
		want{doctor.Warning, doctor.Latency, []string{"shortest ttl is 799ms", "Raise the ttl"}, true}.require(t, doctor.Examine(t.Context(), s))
	})
	t.Run("clock", func(t *testing.T) {
		clock := redistest.NewClock(t)
		late := redistest.StartWith(t, clock.Env(), safe...)
		for _, test := range []struct {
			ahead time.Duration
			want
		}{
			{time.Hour, want{doctor.Error, doctor.Clock, []string{"1h0m0s ahead of the median", "NTP"}, false}},
			{-time.Hour, want{doctor.Error, doctor.Clock, []string{"1h0m0s behind the median"}, false}},
		} {
			clock.Set(test.ahead, 0)
			test.require(t, doctor.Examine(t.Context(), first(late.Addr())))
		}
		clock.Set(40*time.Second, 0)
		s := first(late.Addr())
		s.MaxSkew = 100 * time.Second // a busy machine may be seconds off
		want{doctor.Warning, doctor.Clock, []string{"ahead of the median", "max_skew allows 50s"}, true}.require(t, doctor.Examine(t.Context(), s))
		awaitUptime(t, late)
		s.MaxSkew, s.Guard = 0, time.Second
		want{doctor.Error, doctor.Clock, []string{"clocks are 40", "max_skew is off"}, true}.require(t, doctor.Examine(t.Context(), s))
		clock.Set(-time.Since(time.Unix(0, 0)), 0) // a machine without a battery starts in 1970
		late.Kill()
		late.Restart()
		clock.Set(0, 0)
		s = settings(late.URL())
		s.Guard, s.Patience = time.Hour, 5*time.Second
		r := doctor.Examine(t.Context(), s)
		for deadline := time.Now().Add(time.Minute); len(of(r, doctor.Reachability)) > 0 && time.Now().Before(deadline); {
			r = doctor.Examine(t.Context(), s) // it has been seen to hang after such a jump of its clock
		}
		if found := of(r, doctor.Uptime); len(found) != 1 || !strings.Contains(found[0].Text, "can't be right") || r.Voting != 0 {
			t.Errorf("%+v", r)
		}
	})
}

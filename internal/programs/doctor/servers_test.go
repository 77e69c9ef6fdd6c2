package doctor_test

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestUptime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	s := settings(server.URL())
	s.Guard = time.Hour
	want{doctor.Warning, doctor.Uptime, []string{"was started", "it votes in", "Wait", "restart_guard off"}, false}.require(t, doctor.Examine(t.Context(), s))
	s.Guard = 3 * time.Second
	healed(t, s, doctor.Uptime) // after a wait
	s.Guard = time.Hour
	advised(t, s, doctor.Uptime, "restart_guard off")
	s.Guard = 0
	healed(t, s, doctor.Uptime)
}

// TestLostData: as a process that starts would, doctor learns from the running ones that a master has lost its data.
func TestLostData(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	l, err := redlock.Open([]string{server.URL()}, redlock.WithTimeout(time.Second), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.Do(t.Context(), "key", func(context.Context, *redlock.Lock) error { return nil }); err != nil {
		t.Fatal(err)
	}
	s := settings(server.URL())
	s.MaxTTL = time.Hour
	if found := of(doctor.Examine(t.Context(), s), doctor.Uptime); len(found) > 0 {
		t.Errorf("before the loss: %+v", found)
	}
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss is known", func() bool { return len(of(doctor.Examine(t.Context(), s), doctor.Uptime)) > 0 })
	s.MaxTTL = time.Nanosecond
	healed(t, s, doctor.Uptime) // after a wait
	s.MaxTTL = redlock.DefaultMaxTTL
	s.Guard = time.Hour
	report := doctor.Examine(t.Context(), s)
	if found := of(report, doctor.Uptime); !slices.ContainsFunc(found, func(f doctor.Finding) bool {
		return strings.HasPrefix(f.Text, "it lost its data ") && strings.HasPrefix(f.Advice, "Wait, ")
	}) || report.Voting != 0 {
		t.Errorf("%+v", report)
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args  []string
		guard time.Duration
		want  want
	}{
		"evicts":         {append(safe, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"), 0, want{doctor.Error, doctor.Eviction, []string{"deletes locks and remembered responses", "allkeys-lru", "noeviction"}, true}},
		"would evict":    {append(safe, "--maxmemory-policy", "volatile-ttl"), 0, want{doctor.Warning, doctor.Eviction, []string{"volatile-ttl", "noeviction"}, true}},
		"full":           {append(safe, "--maxmemory", "100kb"), 0, want{doctor.Error, doctor.Rights, []string{"memory is full", "Raise maxmemory"}, false}},
		"lonely":         {append(safe, "--min-replicas-to-write", "1"), 0, want{doctor.Error, doctor.Rights, []string{"min-replicas-to-write"}, false}},
		"renamed":        {append(safe, "--rename-command", "LSET", ""), 0, want{doctor.Error, doctor.Rights, []string{"does not know", "LSET"}, false}},
		"forgets":        {nil, 0, want{doctor.Error, doctor.Persistence, []string{"appendonly no", "restart_guard off"}, true}},
		"forgets a bit":  {append(safe, "--appendfsync", "everysec"), 0, want{doctor.Error, doctor.Persistence, []string{"appendfsync everysec"}, true}},
		"when it writes": {append(safe, "--no-appendfsync-on-rewrite", "yes"), 0, want{doctor.Error, doctor.Persistence, []string{"no-appendfsync-on-rewrite yes"}, true}},
		"saves":          {[]string{"--save", "3600 1"}, time.Second, want{doctor.Note, doctor.Persistence, []string{"snapshots", `Set save ""`}, true}},
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
			report := doctor.Examine(t.Context(), s)
			test.want.require(t, report)
			advice := of(report, test.want.check)[0].Advice
			if strings.Contains(advice, "Remove restart_guard off") {
				guarded := s
				guarded.Guard = time.Second
				healed(t, guarded, test.want.check)
			}
			switch name {
			case "password":
				s.Masters = settings(strings.Replace(server.URL(), "//", "//:"+secret+"@", 1)).Masters
			case "renamed", "cluster": // a server without that is to be named
				s.Masters = settings(redistest.Start(t, 1, safe...)[0].URL()).Masters
			default:
				server.Follow(advice)
			}
			healed(t, s, test.want.check)
		})
	}
}

// TestCluster: each node of a Redis Cluster is looked at, under its name; and what keeps it from being one is said.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0, safe...)
	url := redistest.ClusterURL(nodes)
	report := doctor.Examine(t.Context(), settings(url))
	want{doctor.Note, doctor.Mode, []string{"a replica that is promoted may lack the last locks", "three independent servers"}, true}.require(t, report)
	if !report.Healthy() {
		t.Errorf("%+v", report.Findings)
	}
	if err := nodes[2].Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	evicting := of(doctor.Examine(t.Context(), settings(url)), doctor.Eviction)
	if len(evicting) != 1 || !strings.HasPrefix(evicting[0].Master, nodes[2].Addr()+" of redis-cluster://") {
		t.Errorf("one node evicts: %+v", evicting)
	}
	for _, s := range nodes {
		if err := s.Client().Do(t.Context(), "acl", "setuser", "locks", "on", ">"+secret, "~redlock:*", "&redlock:wake:*", "+@all", "-cluster").Err(); err != nil {
			t.Fatal(err)
		}
	}
	locks := strings.Replace(url, "//", "//locks:"+secret+"@", 1)
	want{doctor.Error, doctor.Rights, []string{"ACL SETUSER locks +cluster|slots"}, false}.require(t, doctor.Examine(t.Context(), settings(locks)))
	nodes[1].Follow("ACL SETUSER locks +cluster|slots")
	for _, s := range nodes {
		s.Kill()
	}
	want{doctor.Error, doctor.Reachability, []string{"connection refused"}, false}.require(t, doctor.Examine(t.Context(), settings(url)))
	plain := strings.Replace(redistest.Start(t, 1, safe...)[0].URL(), "redis:", "redis-cluster:", 1)
	want{doctor.Error, doctor.Mode, []string{"no node of a Redis Cluster", "Write redis://"}, false}.require(t, doctor.Examine(t.Context(), settings(plain)))
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
	s := settings(server.URL())
	want{doctor.Warning, doctor.Eviction, []string{"% of its maxmemory are used", "Raise maxmemory"}, true}.require(t, doctor.Examine(t.Context(), s))
	server.Follow("Raise maxmemory")
	healed(t, s, doctor.Eviction)
	if err := server.Client().ConfigSet(t.Context(), "maxmemory", fmt.Sprint(used*100/82)).Err(); err != nil {
		t.Fatal(err)
	}
	advised(t, s, doctor.Eviction, "shorten remember, or lower its size")
	if err := server.Client().Del(t.Context(), "large").Err(); err != nil { // it was remembered for less time, or with a smaller size
		t.Fatal(err)
	}
	healed(t, s, doctor.Eviction)
}

// TestResponsesOnDisk: what is remembered outlasts a restart only on the disk, which locks don't need.
func TestResponsesOnDisk(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--save", "3600 1"}} {
		server := redistest.Start(t, 1, args...)[0]
		s := settings(server.URL())
		s.Guard, s.Remember = time.Second, true
		awaitUptime(t, server)
		r := doctor.Examine(t.Context(), s)
		want{doctor.Note, doctor.Persistence, []string{"with its copies of remembered responses", "appendonly yes"}, true}.require(t, r)
		server.Follow(of(r, doctor.Persistence)[0].Advice)
		healed(t, s, doctor.Persistence)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	want{doctor.Error, doctor.Mode, []string{"a Sentinel", "Name independent Redis servers"}, false}.require(t, doctor.Examine(t.Context(), settings("redis://"+sentinel(t))))
	healed(t, settings(redistest.Start(t, 1, safe...)[0].URL()), doctor.Mode)
}

// atLeast is a setting in an advice.
var atLeast = regexp.MustCompile(`(timeout|ttl) to at least (\S+),`)

// followed sets what is advised about a round trip, as often as that is needed: a busy machine may be slower than when it was measured.
func followed(t *testing.T, s doctor.Settings) {
	t.Helper()
	eventually(t, "no finding of latency", func() bool {
		advice := finding(doctor.Examine(t.Context(), s), doctor.Latency)
		named := atLeast.FindStringSubmatch(advice)
		if named == nil {
			return advice == ""
		}
		d, err := time.ParseDuration(named[2])
		if err != nil {
			t.Fatal(err)
		}
		if named[1] == "ttl" {
			s.LeastTTL = d
		} else {
			s.Timeout = d
		}
		return false
	})
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
		if len(found) != 2 || !strings.Contains(found[1].Text, "the same server as "+servers[1].URL()) || found[1].Master != s.Masters[2].String() || r.Voting != 2 || r.Healthy() {
			t.Errorf("%+v", r)
		}
		if found[1].Advice != "List each server once." {
			t.Errorf("%+v", found[1])
		}
		healed(t, settings(servers[1].URL(), servers[2].URL()), doctor.Independence, "the same server")
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
			healed(t, first(servers[0].Addr()), doctor.Independence, "a replica of") // an independent server instead
			replica.Follow(found[1].Advice)
			healed(t, first(replica.Addr()), doctor.Independence, "a replica of")
			break
		}
	})
	t.Run("behind a load balancer", func(t *testing.T) {
		turn := 0
		client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
			turn++
			return net.Dial("tcp", servers[turn%2].Addr())
		}})
		defer func() { _ = client.Close() }()
		balanced, err := redlock.NewMaster(client)
		if err != nil {
			t.Fatal(err)
		}
		s := settings()
		s.Masters = []redlock.Master{balanced}
		want{doctor.Error, doctor.Independence, []string{"reached two servers", "Name the servers themselves"}, true}.require(t, doctor.Examine(t.Context(), s))
		healed(t, first(servers[0].Addr()), doctor.Independence, "reached two servers")
	})
	t.Run("far away", func(t *testing.T) {
		forwarder := redistest.NewForwarder(t, servers[0])
		forwarder.Set(redistest.Weather{Delay: 20 * time.Millisecond}) // in each direction
		s := settings("redis://" + forwarder.Addr())
		s.Timeout = 9 * time.Millisecond
		want{doctor.Error, doctor.Latency, []string{"no reply comes in time", "timeout"}, false}.require(t, doctor.Examine(t.Context(), s))
		s.Timeout = 39 * time.Millisecond
		if found := of(doctor.Examine(t.Context(), s), doctor.Latency); len(found) != 1 || !strings.Contains(found[0].Text, "the timeout is 39ms") {
			t.Errorf("%+v", found) // on a busy machine it is an error, not a warning
		}
		followed(t, s)
		s.Timeout, s.LeastTTL = 30*time.Second, 799*time.Millisecond
		want{doctor.Warning, doctor.Latency, []string{"shortest ttl is 799ms", "Raise the ttl"}, true}.require(t, doctor.Examine(t.Context(), s))
		followed(t, s)
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
			clock.Set(0, 0) // it is synchronized
			healed(t, first(late.Addr()), doctor.Clock)
		}
		clock.Set(40*time.Second, 0)
		s := first(late.Addr())
		s.MaxSkew = 100 * time.Second // a busy machine may be seconds off
		want{doctor.Warning, doctor.Clock, []string{"ahead of the median", "max_skew allows 50s", "Synchronize its clock"}, true}.require(t, doctor.Examine(t.Context(), s))
		awaitUptime(t, late)
		s.MaxSkew, s.Guard = 0, time.Second
		want{doctor.Error, doctor.Clock, []string{"clocks are 40", "max_skew is off", "Synchronize the clocks (NTP), and remove max_skew off"}, true}.require(t, doctor.Examine(t.Context(), s))
		clock.Set(0, 0)
		s.MaxSkew = 20 * time.Second
		healed(t, s, doctor.Clock)
		s = settings(late.URL())
		s.Guard, s.Patience = time.Hour, 5*time.Second
		var r doctor.Report
		for range 10 { // servers have been seen to hang for minutes after such a jump of their clocks
			clock.Set(-time.Since(time.Unix(0, 0)), 0) // a machine without a battery starts in 1970
			late.Kill()
			late.Restart()
			clock.Set(0, 0)
			if r = doctor.Examine(t.Context(), s); len(of(r, doctor.Reachability)) == 0 {
				break
			}
		}
		if found := of(r, doctor.Uptime); len(found) != 1 || !strings.Contains(found[0].Text, "can't be right") || !strings.HasPrefix(found[0].Advice, "Restart it") || r.Voting != 0 {
			t.Errorf("%+v", r)
		}
		late.Kill()
		late.Restart()
		s.Guard = time.Second
		healed(t, s, doctor.Uptime)
	})
}

package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// dial returns the master at a URL, closed with the test.
func dial(t *testing.T, url string) *Master { return dialFrom(t, "", url) }

// dialFrom returns the master at a URL, which is connected from an address of this machine.
func dialFrom(t *testing.T, address, url string) *Master {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	if address != "" {
		o.Dialer = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	}
	m := New(*o)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// acquireOnce asks a master for a key, and gives it back.
func acquireOnce(m *Master) error {
	cmd := &protocol.Command{Op: protocol.OpAcquire, Key: "redlock:{key}", Token: "1.1000.token", TTL: time.Minute, Process: "redlock:wake:test", Ticket: protocol.TryTicket}
	m.Do([]*protocol.Command{cmd})
	m.Do([]*protocol.Command{{Op: protocol.OpRelease, Key: cmd.Key, Token: cmd.Token, Process: cmd.Process, Ticket: cmd.Ticket}})
	return cmd.Reply.Err
}

// await waits for something that a server soon does.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not yet: ", what)
		}
	}
}

// cantSave makes a server fail to save what it has, as something is in the way.
func cantSave(t *testing.T, p *patient) {
	obstacle := filepath.Join(p.Client().ConfigGet(t.Context(), "dir").Val()["dir"], "dump.rdb")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	runs(t, p.Server, "CONFIG|SET|save|3600 1", "SET|a|b", "BGSAVE")
	await(t, "the server doesn't save", func() bool {
		return strings.Contains(p.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
	p.end = func() {
		if err := os.Remove(obstacle); err != nil {
			t.Error(err)
		}
		runs(t, p.Server, "BGSAVE")
	}
}

// cantAppend makes a server fail to write its append-only file.
func cantAppend(t *testing.T, p *patient) {
	p.end = p.Fill()
	await(t, "the server can't write its file", func() bool { return redis.HasErrorPrefix(p.Client().Set(t.Context(), "a", "b", 0).Err(), "MISCONF") })
}

// busy makes a server run a script for as long as the test.
func busy(t *testing.T, p *patient) {
	runs(t, p.Server, "CONFIG|SET|lua-time-limit|1")
	client := redis.NewClient(&redis.Options{Addr: p.Addr(), ReadTimeout: -1, MaxRetries: -1})
	ended := make(chan struct{})
	go func() {
		_ = client.Eval(context.Background(), "while true do end", nil).Err()
		close(ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		<-ended
		_ = client.Close()
	})
	await(t, "the server is busy", func() bool { return redis.HasErrorPrefix(p.Client().Get(t.Context(), "a").Err(), "BUSY") })
}

// loads has a server start anew with much to load.
func loads(t *testing.T, p *patient) {
	runs(t, p.Server, "EVAL|for i = 1, 20000 do redis.call('SET', i, i) end return 1|0", "SAVE")
	p.Kill()
	p.Restart()
	p.end = func() { runs(t, p.Server, "CONFIG|SET|key-load-delay|0") } // who waits has more time than a test
}

// isReplica makes a server the replica of another one.
func isReplica(t *testing.T, p *patient) {
	host, port, _ := strings.Cut(redistest.Start(t, 1, "--repl-diskless-sync-delay", "0")[0].Addr(), ":")
	runs(t, p.Server, "REPLICAOF|"+host+"|"+port)
	await(t, "it has what its master has", func() bool {
		return strings.Contains(p.Client().Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// toMaster has the replica's master be named in its place.
func toMaster(t *testing.T, p *patient) {
	info := p.Client().InfoMap(t.Context(), "replication").Val()["Replication"]
	p.url = "redis://" + info["master_host"] + ":" + info["master_port"]
}

// joins gives a server a replica.
func joins(t *testing.T, p *patient) {
	host, port, _ := strings.Cut(p.Addr(), ":")
	redistest.Start(t, 1, "--replicaof", host, port)
}

// slots gives all slots to a node, if its cluster lacks them.
func slots(t *testing.T, p *patient) {
	if info := p.Client().ClusterInfo(t.Context()).Val(); !strings.Contains(info, "cluster_slots_assigned:0") {
		t.Errorf("it lacks none: %s", info)
	}
	if err := p.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Error(err)
	}
}

// crowded lets a server have no connections more than those of the test, of which all but one can be closed.
func crowded(t *testing.T, p *patient) {
	const others = 4
	var kills []string
	for range others {
		other, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = other.Close() })
		await(t, "the server has the connection", func() bool {
			return strings.Contains(p.Client().ClientList(t.Context()).Val(), other.LocalAddr().String())
		})
		kills = append(kills, "CLIENT|KILL|"+other.LocalAddr().String())
	}
	runs(t, p.Server, fmt.Sprint("CONFIG|SET|maxclients|", others+1))
	p.end = func() { runs(t, p.Server, kills...) }
}

// runs has a server run commands, each with its arguments between bars.
func runs(t *testing.T, s *redistest.Server, commands ...string) {
	t.Helper()
	for _, command := range commands {
		var args []any
		for arg := range strings.SplitSeq(command, "|") {
			args = append(args, arg)
		}
		if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
}

// patient is a server that refuses locks.
type patient struct {
	*redistest.Server
	url string
	end func() // ends what makes it refuse
}

// becomes has another server be named in its place.
func (p *patient) becomes(other *redistest.Server) {
	p.url = strings.Replace(p.url, p.Addr(), other.Addr(), 1)
}

// TestRefusals: what a server itself refuses comes with a mark, and what to do about it, which doctor says in the same words. Each thing
// that is advised is done, and brings the master back.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const locks, password = "redis://locks:secret@", "CONFIG|SET|requirepass|secret"
	const often = "loading-process-events-interval-bytes"
	rights := "ACL|SETUSER|locks|" + strings.Join(redistest.LeastRights(t), "|")
	do := func(commands ...string) func(*testing.T, *patient) {
		return func(t *testing.T, p *patient) { runs(t, p.Server, commands...) }
	}
	right := func(t *testing.T, p *patient) { p.url = "redis://default:secret@" + p.Addr() }
	ends := func(_ *testing.T, p *patient) { p.end() }
	another := func(settings ...string) func(*testing.T, *patient) {
		return func(t *testing.T, p *patient) { p.becomes(redistest.Start(t, 1, settings...)[0]) }
	}
	aof := []string{"--appendonly", "yes", "--appendfsync", "everysec"}
	cases := map[string]struct {
		needs    string // a setting that not all servers have
		settings []string
		start    func(*testing.T) *redistest.Server // in place of a server with these settings
		url      string                             // before the address
		database string
		from     string   // the address of this machine that it is connected from
		make     []string // commands that make the server refuse
		provoke  func(*testing.T, *patient)
		begins   string                     // the refusal in the list
		does     string                     // the words of the advice that are followed
		follow   func(*testing.T, *patient) // nil for the commands and settings that the advice names
	}{
		"memory is full":               {make: []string{"CONFIG|SET|maxmemory|1"}, begins: "OOM ", does: "raise maxmemory"},
		"memory is filled":             {make: []string{"SETRANGE|large|20000000|x", "CONFIG|SET|maxmemory|15mb"}, begins: "OOM ", does: "delete what fills it", follow: do("DEL|large")},
		"too few replicas":             {make: []string{"CONFIG|SET|min-replicas-to-write|1"}, begins: "NOREPLICAS ", does: "set min-replicas-to-write 0"},
		"a replica is lost":            {settings: []string{"--repl-diskless-sync-delay", "0"}, make: []string{"CONFIG|SET|min-replicas-to-write|1"}, begins: "NOREPLICAS ", does: "bring them back", follow: joins},
		"replica":                      {provoke: isReplica, begins: "READONLY ", does: "name its master", follow: toMaster},
		"replica, one of others":       {provoke: isReplica, begins: "READONLY ", does: "an independent server", follow: another()},
		"replica without link":         {make: []string{"REPLICAOF|127.0.0.1|1", "CONFIG|SET|replica-serve-stale-data|no"}, begins: "MASTERDOWN ", does: "an independent server", follow: another()},
		"can't save":                   {provoke: cantSave, begins: "MISCONF ", does: "set stop-writes-on-bgsave-error no"},
		"can't save, as its log says":  {provoke: cantSave, begins: "MISCONF ", does: "see its log", follow: ends},
		"full disk":                    {settings: aof, provoke: cantAppend, begins: "MISCONF Errors writing to the AOF", does: "set appendonly no"},
		"full disk, freed":             {settings: aof, provoke: cantAppend, begins: "MISCONF Errors writing to the AOF", does: "free space on its disk", follow: ends},
		"busy":                         {provoke: busy, begins: "BUSY ", does: "SCRIPT KILL"},
		"loading":                      {needs: often, settings: []string{"--key-load-delay", "1000", "--" + often, "1024"}, provoke: loads, begins: "LOADING ", does: "wait", follow: ends},
		"no password":                  {make: []string{password}, begins: "NOAUTH ", does: "redis://user:password@ before its address", follow: right},
		"wrong password":               {url: "redis://default:another@", make: []string{password}, begins: "WRONGPASS ", does: "correct them", follow: right},
		"user is off":                  {url: locks, make: []string{"ACL|SETUSER|locks|off|>secret|~redlock:*|+@all"}, begins: "WRONGPASS ", does: "look at the user with ACL GETUSER", follow: do("ACL|GETUSER|locks", "ACL|SETUSER|locks|on")},
		"no EVAL":                      {url: locks, make: []string{"ACL|SETUSER|locks|on|>secret|~redlock:*|+@all|-eval"}, begins: "NOPERM ", does: grantRights, follow: do(rights)},
		"no RPUSH":                     {url: locks, make: []string{"ACL|SETUSER|locks|on|>secret|~redlock:*|+@all|-rpush"}, begins: "ERR The user executing the script can't run", does: grantRights, follow: do(rights)},
		"no SELECT":                    {url: locks, database: "/1", make: []string{"ACL|SETUSER|locks|on|>secret|~redlock:*|+@all|-select"}, begins: "NOPERM ", does: grantRights, follow: do(rights, "ACL|SETUSER|locks|+select")},
		"other keys":                   {url: locks, make: []string{"ACL|SETUSER|locks|on|>secret|~other:*|+@all"}, begins: "NOPERM ", does: grantRights, follow: do(rights)},
		"no such database":             {database: "/99", begins: "ERR DB index is out of range", does: "leave the database out of its URL", follow: func(_ *testing.T, p *patient) { p.url = p.URL() }},
		"more databases":               {database: "/99", begins: "ERR DB index is out of range", does: "raise its databases", follow: another("--databases", "100")},
		"cluster, no slots":            {settings: []string{"--cluster-enabled", "yes"}, begins: "CLUSTERDOWN ", does: "see CLUSTER INFO", follow: slots},
		"cluster, other slots":         {start: func(t *testing.T) *redistest.Server { return redistest.StartCluster(t, 2, 0)[0] }, begins: "MOVED ", does: "name independent servers", follow: another()},
		"too many clients":             {make: []string{"CONFIG|SET|maxclients|1"}, begins: "ERR max number of clients reached", does: "raise its maxclients", follow: do("CONFIG|SET|maxclients|100")},
		"too many clients, closed":     {provoke: crowded, begins: "ERR max number of clients reached", does: "close other connections", follow: ends},
		"protected mode":               {from: "127.0.0.2", begins: "DENIED ", does: "set a password on its default user", follow: func(t *testing.T, p *patient) { runs(t, p.Server, password); right(t, p) }},
		"protected mode, turned off":   {from: "127.0.0.2", begins: "DENIED ", does: "set protected-mode no"},
		"renamed command":              {settings: []string{"--rename-command", "EVALSHA", ""}, begins: "ERR unknown command", does: "without renamed commands", follow: another()},
		"renamed command, in a script": {settings: []string{"--rename-command", "RPUSH", ""}, begins: "ERR Unknown Redis command called from", does: "without renamed commands", follow: another()},
	}
	for _, r := range remedies {
		tried := false
		for _, c := range cases {
			tried = tried || remedyOf(c.begins) != nil && remedyOf(c.begins).advice == r.advice
		}
		if !tried {
			t.Errorf("nothing tries what is advised about %q: %s", r.begins, r.advice)
		}
		if strings.Contains(r.advice, "CONFIG SET") {
			t.Errorf("a service refuses what is advised about %q: %s", r.begins, r.advice)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := remedyOf(c.begins)
			if r == nil || !strings.Contains(r.advice, c.does) {
				t.Fatalf("%q is not advised: %+v", c.does, r)
			}
			if c.needs != "" && redistest.Start(t, 1)[0].Client().ConfigGet(t.Context(), c.needs).Val()[c.needs] == "" {
				t.Skip("this server has no " + c.needs)
			}
			if c.start == nil {
				c.start = func(t *testing.T) *redistest.Server { return redistest.Start(t, 1, c.settings...)[0] }
			}
			p := &patient{Server: c.start(t)}
			p.url = cmp.Or(c.url, "redis://") + p.Addr() + c.database
			runs(t, p.Server, c.make...)
			if c.provoke != nil {
				c.provoke(t, p)
			}
			m := dialFrom(t, c.from, p.url)
			err := acquireOnce(m)
			if c.from != "" && err == nil {
				t.Skip("this server takes all of 127.0.0.0/8 for local")
			}
			said := fmt.Sprintf("(%s: %s)", r.why, r.advice)
			// A server that closes a connection at once may not be heard at the first try.
			for deadline := time.Now().Add(10 * time.Second); !strings.Contains(fmt.Sprint(err), said) && time.Now().Before(deadline); err = acquireOnce(m) {
				time.Sleep(time.Millisecond)
			}
			if !strings.Contains(fmt.Sprint(err), said) || !errors.Is(err, protocol.ErrUnusable) || strings.Contains(fmt.Sprint(err), "secret") {
				t.Fatalf("%v, want it marked, with %q, and without the password", err, said)
			}
			doctors := r.advice != grantRights && !strings.Contains(r.why, "Redis Cluster") // it says more about those
			if doctors {
				await(t, "doctor says: "+r.why, func() bool { return advised(t, m, r) })
			}
			if c.follow == nil {
				p.Follow(err.Error())
			} else {
				c.follow(t, p)
			}
			m = dialFrom(t, c.from, p.url)
			err = acquireOnce(m)
			for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); err = acquireOnce(m) {
				time.Sleep(time.Millisecond)
			}
			if err != nil {
				t.Fatalf("%q is done, and yet: %v", c.does, err)
			}
			if doctors {
				await(t, "doctor says no more: "+r.why, func() bool { return !advised(t, m, r) })
			}
		})
	}
}

// advised reports whether doctor's look at a server gives this remedy.
func advised(t *testing.T, m *Master, r *remedy) bool {
	x := m.Examine(t.Context(), "redlock", 10*time.Second)
	said := x.Refusals
	if x.Refused != nil {
		said = append(said, *x.Refused)
	}
	return slices.ContainsFunc(said, func(s inside.Refusal) bool { return s.Why == r.why && s.Advice == r.advice })
}

// TestAdviceOnce: what is said of an error of TLS has the reason without the advice, whether peerTrouble has added the advice to the error or not.
func TestAdviceOnce(t *testing.T) {
	alert := func(text string) error { return &net.OpError{Op: "remote error", Err: errors.New("tls: " + text)} }
	for _, err := range []error{
		tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		x509.UnknownAuthorityError{},
		x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"redis.example.com"}}, Host: "localhost"},
		x509.CertificateInvalidError{Reason: x509.Expired},
		x509.CertificateInvalidError{Reason: x509.IncompatibleUsage},
		alert("certificate required"),
		alert("bad certificate"),
		alert("error decrypting message"),
		alert("protocol version not supported"),
	} {
		for _, err := range []error{err, peerTrouble(err, nil, true)} {
			x := &inside.Examination{Err: err}
			explain(x)
			if x.WhyTLS == "" || x.AdviceTLS == "" || strings.Contains(x.WhyTLS, x.AdviceTLS) || strings.Contains(x.AdviceTLS, "CONFIG SET") {
				t.Errorf("%v: %q, and the advice %q", err, x.WhyTLS, x.AdviceTLS)
			}
		}
	}
}

// TestOneKeyIsRefused: a server that refuses one key is of use for others.
func TestOneKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	runs(t, s, "SET|redlock:{key}|text")
	if err := acquireOnce(dial(t, s.URL())); !strings.Contains(fmt.Sprint(err), "WRONGTYPE ") || errors.Is(err, protocol.ErrUnusable) || !errors.Is(err, protocol.ErrRefused) {
		t.Errorf("%v, want WRONGTYPE, marked as refused and not as unusable", err)
	}
}

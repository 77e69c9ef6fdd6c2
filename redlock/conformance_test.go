package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// kinds are the kinds of masters, which must all behave the same. The client looks into the server;
// the memory master has none.
var kinds = []struct {
	name string
	open func(t *testing.T) (redlock.Master, *redis.Client)
}{
	{"memory", func(t *testing.T) (redlock.Master, *redis.Client) { return dialOne(t, "memory://"), nil }},
	{"redis", func(t *testing.T) (redlock.Master, *redis.Client) {
		s := redistest.Start(t, 1)[0]
		return dialOne(t, s.URL()), s.Client()
	}},
	{"unix", func(t *testing.T) (redlock.Master, *redis.Client) {
		dir, err := os.MkdirTemp("", "redlock") // t.TempDir is too long for a socket's path
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := filepath.Join(dir, "redis.sock")
		s := redistest.Start(t, 1, "--unixsocket", socket)[0]
		return dialOne(t, "unix://"+socket), s.Client()
	}},
	{"client", func(t *testing.T) (redlock.Master, *redis.Client) {
		s := redistest.Start(t, 1)[0]
		return wrap(t, s.Client()), s.Client()
	}},
	{"cluster", func(t *testing.T) (redlock.Master, *redis.Client) {
		s := redistest.Start(t, 1, "--cluster-enabled", "yes")[0]
		ctx := context.Background()
		slots := make([]int, 16384) // ADDSLOTSRANGE is not in Redis 6.2
		for i := range slots {
			slots[i] = i
		}
		if err := s.Client().ClusterAddSlots(ctx, slots...).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, bound, "cluster_state:ok", func() bool {
			return strings.Contains(s.Client().ClusterInfo(ctx).Val(), "cluster_state:ok")
		})
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
		t.Cleanup(func() { _ = client.Close() })
		return wrap(t, client), s.Client()
	}},
}

func dialOne(t *testing.T, url string) redlock.Master {
	t.Helper()
	masters, err := dial(url)
	if err != nil {
		t.Fatal(err)
	}
	return masters[0]
}

func wrap(t *testing.T, client redis.UniversalClient) redlock.Master {
	t.Helper()
	m, err := redlock.NewMaster(client)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestConformance runs each test of single commands against each kind of master.
func TestConformance(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		run  func(t *testing.T, m redlock.Stepwise, client *redis.Client)
	}{
		{"commands", testCommands},
		{"forced", testForced},
		{"results of spellings", testSpellings},
		{"results together", testResultsTogether},
		{"expiry", testExpiry},
		{"batch", testBatch},
		{"release sent twice", testReleaseSentTwice},
		{"script flush", testScriptFlush},
		{"foreign key", testForeignKey},
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			master, client := kind.open(t)
			m := redlock.Streamed(master)
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) { test.run(t, m, client) })
			}
		})
	}
}

const testTTL = time.Minute

// testKey is each test's own, because they share a master.
func testKey(t *testing.T) string { return protocol.Key("redlock", t.Name()) }

func acquire(t *testing.T, token string) *protocol.Command {
	return &protocol.Command{Op: protocol.OpAcquire, Key: testKey(t), Token: token, TTL: testTTL}
}

func release(t *testing.T, token string) *protocol.Command {
	return &protocol.Command{Op: protocol.OpRelease, Key: testKey(t), Token: token}
}

// expect runs one command and checks its reply.
func expect(t *testing.T, m redlock.Stepwise, cmd *protocol.Command, want protocol.Status) {
	t.Helper()
	m.Do([]*protocol.Command{cmd})
	checkReply(t, cmd, want)
}

func checkReply(t *testing.T, cmd *protocol.Command, want protocol.Status) {
	t.Helper()
	if cmd.Reply.Err != nil || cmd.Reply.Status != want {
		t.Errorf("op %d with token %q: status %d, error %v, want status %d", cmd.Op, cmd.Token, cmd.Reply.Status, cmd.Reply.Err, want)
	}
}

func testCommands(t *testing.T, m redlock.Stepwise, _ *redis.Client) {
	expect(t, m, &protocol.Command{Op: protocol.OpPing}, protocol.StatusNone)
	expect(t, m, release(t, "a"), protocol.StatusExpired)
	expect(t, m, acquire(t, "a"), protocol.StatusGranted)
	expect(t, m, acquire(t, "a"), protocol.StatusGranted) // the command came twice
	other := acquire(t, "b")
	expect(t, m, other, protocol.StatusHeld)
	if r := other.Reply; r.Holder != "a" || r.TTL <= 0 || r.TTL > testTTL {
		t.Errorf("holder %q for %v, want a for at most %v", r.Holder, r.TTL, testTTL)
	}
	expect(t, m, release(t, "b"), protocol.StatusNotOwner)
	expect(t, m, acquire(t, "b"), protocol.StatusHeld) // the key has stayed
	expect(t, m, release(t, "a"), protocol.StatusReleased)
	expect(t, m, release(t, "a"), protocol.StatusExpired)
	expect(t, m, acquire(t, "b"), protocol.StatusGranted)
}

// testForced: an acquire that a master reads late, after an operator has released its lock by force, doesn't bring the lock back.
func testForced(t *testing.T, m redlock.Stepwise, _ *redis.Client) {
	command := func(op protocol.Op, ask protocol.Ask) *protocol.Command {
		return &protocol.Command{Op: op, Key: testKey(t), Token: "a", TTL: testTTL, Ask: ask}
	}
	expect(t, m, acquire(t, "a"), protocol.StatusGranted)
	expect(t, m, command(protocol.OpExtend, nil), protocol.StatusGranted)
	expect(t, m, command(protocol.OpForce, &protocol.Force{By: "an operator"}), protocol.StatusReleased)
	expect(t, m, acquire(t, "a"), protocol.StatusGranted)
	extend := command(protocol.OpExtend, nil)
	expect(t, m, extend, protocol.StatusForced)
	if force, ok := extend.Reply.Answer.(*protocol.Force); !ok || force.By != "an operator" {
		t.Errorf("released by %+v", extend.Reply.Answer)
	}
}

// testSpellings: the spellings of a key share a lock, and each has a result of its own beside it, also in a Redis Cluster.
func testSpellings(t *testing.T, m redlock.Stepwise, _ *redis.Client) {
	given := []string{"", t.Name() + "A", t.Name() + "B}"}
	for i, key := range given {
		expect(t, m, acquire(t, "a"), protocol.StatusGranted)
		store := release(t, "a")
		store.Given, store.Ask = key, &protocol.Store{Result: &protocol.Result{Data: "of " + key, Keep: testTTL, Fence: int64(i + 1)}}
		expect(t, m, store, protocol.StatusReleased)
	}
	for i, key := range given {
		recall := &protocol.Command{Op: protocol.OpRecall, Key: testKey(t), Given: key}
		expect(t, m, recall, protocol.StatusDone)
		if result, ok := recall.Reply.Answer.(*protocol.Result); !ok || result.Data != "of "+key {
			t.Errorf("%q: %+v", key, recall.Reply.Answer)
		}
		again := acquire(t, "a")
		again.Given, again.Recall = key, true
		if expect(t, m, again, protocol.StatusDone); again.Reply.Fence != int64(i+1) {
			t.Errorf("%q is refused for the result of fence %d, want %d", key, again.Reply.Fence, i+1)
		}
		seen := &protocol.Command{Op: protocol.OpInspect, Key: testKey(t), Given: key}
		expect(t, m, seen, protocol.StatusNone)
		if has, ok := seen.Reply.Answer.(*protocol.Inspected); !ok || has.Result == nil || has.Result.Fence != int64(i+1) {
			t.Errorf("%q is seen as %+v", key, seen.Reply.Answer)
		}
	}
	other := acquire(t, "a")
	other.Given, other.Recall = t.Name()+"C", true
	expect(t, m, other, protocol.StatusGranted)
	expect(t, m, release(t, "a"), protocol.StatusReleased)
}

// testResultsTogether has several keys taken and freed with results in a batch. None of them depends on another, and a server whose memory is full
// stores the results.
func testResultsTogether(t *testing.T, m redlock.Stepwise, client *redis.Client) {
	const free = 4 // and two more keys, of which a string is in the way
	results := [free]string{"", "paid", strings.Repeat("x", protocol.ShortResult), strings.Repeat("x", protocol.ShortResult+1)}
	batch := func(make func(i int) *protocol.Command) []*protocol.Command {
		var cmds []*protocol.Command
		for i := range free + 2 {
			key, given := protocol.Key("redlock", fmt.Sprint("together", i)), []string{"", "Together"}[i%2]
			cmd := make(i)
			cmd.Key, cmd.Given, cmd.TTL, cmd.Fast = key, given, testTTL, true
			cmds = append(cmds, cmd)
		}
		if client != nil {
			client.Set(t.Context(), cmds[free].Key+":result", "not a result", 0)
			client.Set(t.Context(), cmds[free+1].Key, "not a lock", 0)
		} else {
			cmds = cmds[:free]
		}
		m.Do(cmds)
		for _, cmd := range cmds[free:] {
			if cmd.Op == protocol.OpAcquire && !errors.Is(cmd.Reply.Err, protocol.ErrRefused) {
				t.Errorf("op %d on a string: %+v", cmd.Op, cmd.Reply)
			}
		}
		return cmds[:free]
	}
	take := func(token string, want protocol.Status) []*protocol.Command {
		cmds := batch(func(int) *protocol.Command {
			return &protocol.Command{Op: protocol.OpAcquire, Token: token, Recall: true}
		})
		for _, cmd := range cmds {
			checkReply(t, cmd, want)
		}
		return cmds
	}
	leave := func(token string, want protocol.Status) {
		for _, cmd := range batch(func(i int) *protocol.Command {
			return &protocol.Command{Op: protocol.OpRelease, Token: token, Ask: &protocol.Store{Result: &protocol.Result{Data: results[i%free], Keep: testTTL, Fence: int64(i + 1)}}}
		}) {
			checkReply(t, cmd, want)
		}
	}
	take("a", protocol.StatusGranted)
	leave("b", protocol.StatusNotOwner)
	full := client != nil && client.ConfigSet(t.Context(), "maxmemory", "1").Err() == nil
	leave("a", protocol.StatusReleased)
	if full {
		client.ConfigSet(t.Context(), "maxmemory", "0")
	}
	leave("b", protocol.StatusExpired)
	for i, cmd := range take("c", protocol.StatusDone) {
		got, brought := cmd.Reply.Answer.(*protocol.Result)
		if brought != (i < free-1) || brought && (got.Data != results[i] || got.Fence != int64(i+1) || got.Keep <= 0) || cmd.Reply.Fence != int64(i+1) {
			t.Errorf("%d: %+v, %+v", i, cmd.Reply, got)
		}
	}
}

func testExpiry(t *testing.T, m redlock.Stepwise, client *redis.Client) {
	const ttl = 100 * time.Millisecond
	start := time.Now()
	short := acquire(t, "a")
	short.TTL = ttl
	expect(t, m, short, protocol.StatusGranted)
	if client != nil {
		if left := client.PTTL(context.Background(), testKey(t)).Val(); left > ttl || left == -1 {
			t.Errorf("key lives for %v, want at most %v", left, ttl)
		}
	}
	eventually(t, bound, "the key is free again", func() bool {
		other := acquire(t, "b")
		m.Do([]*protocol.Command{other})
		return other.Reply.Status == protocol.StatusGranted
	})
	if took := time.Since(start); took < ttl {
		t.Errorf("the key was free after %v, want not before %v", took, ttl)
	}
	expect(t, m, release(t, "a"), protocol.StatusNotOwner)
}

func testBatch(t *testing.T, m redlock.Stepwise, _ *redis.Client) {
	var batch []*protocol.Command
	var want []protocol.Status
	for i := 0; len(batch) < 256; i++ {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		for _, step := range []struct {
			cmd  *protocol.Command
			want protocol.Status
		}{
			{acquire(t, a), protocol.StatusGranted},
			{acquire(t, b), protocol.StatusHeld},
			{&protocol.Command{Op: protocol.OpPing}, protocol.StatusNone},
			{release(t, b), protocol.StatusNotOwner},
			{acquire(t, a), protocol.StatusGranted},
			{release(t, a), protocol.StatusReleased},
			{release(t, a), protocol.StatusExpired},
			{&protocol.Command{Op: protocol.OpPing}, protocol.StatusNone},
		} {
			batch, want = append(batch, step.cmd), append(want, step.want)
		}
	}
	// For a server that doesn't know the scripts yet see stream.repeat; this test is about the order.
	expect(t, m, acquire(t, "warm"), protocol.StatusGranted)
	expect(t, m, release(t, "warm"), protocol.StatusReleased)
	m.Do(batch)
	for i, cmd := range batch {
		checkReply(t, cmd, want[i])
		if i%8 == 1 && cmd.Reply.Holder != batch[i-1].Token {
			t.Errorf("command %d names holder %q, want %q", i, cmd.Reply.Holder, batch[i-1].Token)
		}
	}
}

// testReleaseSentTwice has releases that have no effect when they are sent first: the plain one, as another
// waits, and one whose script is not known. The acquire behind them comes after them still.
func testReleaseSentTwice(t *testing.T, m redlock.Stepwise, client *redis.Client) {
	for _, alone := range []bool{true, false} {
		if !alone && client != nil {
			if err := client.ScriptFlush(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, m, acquire(t, "a"), protocol.StatusGranted)
		waiter := acquire(t, "b")
		waiter.Process, waiter.Ticket, waiter.Queue = "later", 2, true
		expect(t, m, waiter, protocol.StatusHeld)
		freed, next := release(t, "a"), acquire(t, "c")
		freed.Alone, next.Process, next.Ticket = alone, "earlier", 1
		m.Do([]*protocol.Command{freed, next})
		checkReply(t, freed, protocol.StatusReleased)
		checkReply(t, next, protocol.StatusGranted)
		last := release(t, "c")
		last.Process, last.Ticket = "later", 2
		expect(t, m, last, protocol.StatusReleased)
	}
}

func testScriptFlush(t *testing.T, m redlock.Stepwise, client *redis.Client) {
	if client == nil {
		return // it has no scripts
	}
	for _, step := range []struct {
		cmd  *protocol.Command
		want protocol.Status
	}{
		{acquire(t, "a"), protocol.StatusGranted},
		{acquire(t, "b"), protocol.StatusHeld},
		{release(t, "a"), protocol.StatusReleased},
	} {
		expect(t, m, step.cmd, step.want)
		if err := client.ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, m, release(t, "a"), protocol.StatusExpired)
}

func testForeignKey(t *testing.T, m redlock.Stepwise, client *redis.Client) {
	if client == nil {
		return // nobody else can write there
	}
	ctx := context.Background()
	if err := client.Set(ctx, testKey(t), "not a lock", 0).Err(); err != nil {
		t.Fatal(err)
	}
	free := acquire(t, "a")
	free.Key = "redlock:{free}"
	freed := release(t, "a")
	freed.Key = free.Key
	expect(t, m, &protocol.Command{Op: protocol.OpPing}, protocol.StatusNone)
	expect(t, m, free, protocol.StatusGranted)
	batch := []*protocol.Command{acquire(t, "a"), release(t, "a"), freed}
	m.Do(batch)
	for _, cmd := range batch[:2] {
		if cmd.Reply.Err == nil || !strings.Contains(cmd.Reply.Err.Error(), "WRONGTYPE") || cmd.Reply.Status != protocol.StatusNone {
			t.Errorf("op %d on a string: status %d, error %v, want WRONGTYPE", cmd.Op, cmd.Reply.Status, cmd.Reply.Err)
		}
	}
	checkReply(t, freed, protocol.StatusReleased)
	if kind := client.Type(ctx, testKey(t)).Val(); kind != "string" {
		t.Errorf("the foreign key is a %s now", kind)
	}
}

func TestKeyFormat(t *testing.T) {
	l, servers := onServers(t, 1, redlock.WithPrefix("shop"))
	lock := mustLock(t, l, "order:42")
	if keys := servers[0].Keys(); len(keys) != 1 || keys[0] != "shop:{order:42}" {
		t.Errorf("keys %q, want shop:{order:42}", keys)
	}
	mustUnlock(t, lock)
	redistest.RequireNoKeys(t, servers)
}

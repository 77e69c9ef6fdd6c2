package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	wire "github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// troubled is a server behind an address: a real one, or one of simnet.
type troubled struct {
	protocol.Master
	address interface{ Cut() }

	kill, restart, hang, resume, flush, fill, demote, promote, denyChannels, denyInfo func()

	keepBack    func(requests, replies bool)
	loseClients func()
	del         func(slot int)
	leads       func() bool
	asked       func() any // what names the connection
}

// TestConformanceOfSimnet: what simnet says of Redis, and redistest of a network, is so.
func TestConformanceOfSimnet(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, "--slowlog-log-slower-than", "0")[0]
	for name, row := range map[string]func(t *testing.T, s *troubled){
		"greeting": testGreeting, "killed": testKilled, "hangs": testHangs, "flushed": testFlushed, "full": testFull, "demoted": testDemoted,
		"denied channels": testDeniedChannels, "denied INFO": testDeniedInfo, "kept back": testKeptBack, "loses clients": testLosesClients,
		"asked": testAsked, "slots": testSlots,
	} {
		t.Run(name, func(t *testing.T) {
			// one after the other: a parallel row would wait for all of the package's tests
			t.Run("redis", func(t *testing.T) { row(t, ofRedis(t, server)) })
			t.Run("simnet", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { row(t, ofSimnet(t, simnet.New(t, 1))) })
			})
		})
	}
}

func ofSimnet(t *testing.T, net *simnet.Net) *troubled {
	s, a := net.Servers[0], net.Addresses[0]
	return &troubled{
		Master: a, address: a, kill: s.Kill, restart: s.Restart, hang: s.Hang, resume: s.Resume, flush: s.Flush, fill: s.Fill, demote: s.Demote, promote: s.Promote,
		denyChannels: func() { a.Deny(true) },
		denyInfo:     func() { s.SetInfo(func(info *simnet.Info) { *info = simnet.Info{} }) },
		keepBack:     func(requests, replies bool) { a.Set(simnet.Weather{Requests: requests, Replies: replies}) },
		loseClients:  a.LoseClients,
		del:          func(slot int) { s.Delete(t.Name(), slot) },
		leads:        func() bool { return s.Leads(t.Name()) },
		asked:        s.Asked,
	}
}

// ofRedis is a real server, which is well again after the test.
func ofRedis(t *testing.T, s *redistest.Server) *troubled {
	f := redistest.NewForwarder(t, s)
	m := wire.New(redis.Options{Addr: f.Addr()})
	t.Cleanup(func() { _ = m.Close() })
	do := func(command ...any) *redis.Cmd {
		cmd := s.Client().Do(context.WithoutCancel(t.Context()), command...)
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Fatalf("%v: %v", command, err)
		}
		return cmd
	}
	until := func(undo ...any) { t.Cleanup(func() { do(undo...) }) }
	return &troubled{
		Master: m, address: f, kill: s.Kill, restart: s.Restart, hang: s.Pause, resume: s.Resume,
		flush: func() { do("FLUSHALL") },
		fill: func() {
			until("CONFIG", "SET", "maxmemory", 0)
			do("CONFIG", "SET", "maxmemory", 1)
		},
		demote: func() {
			host, port, _ := strings.Cut(redistest.Start(t, 1, "--repl-diskless-sync-delay", "0")[0].Addr(), ":")
			do("REPLICAOF", host, port)
			eventually(t, bound, "it has what its master has", func() bool {
				return strings.Contains(s.Client().Info(t.Context(), "replication").Val(), "master_link_status:up")
			})
		},
		promote: func() { do("REPLICAOF", "NO", "ONE") },
		denyChannels: func() {
			until("ACL", "SETUSER", "default", "allchannels")
			do("ACL", "SETUSER", "default", "resetchannels")
		},
		denyInfo: func() {
			until("ACL", "SETUSER", "default", "+info")
			do("ACL", "SETUSER", "default", "-info")
		},
		keepBack:    func(requests, replies bool) { f.Set(redistest.Weather{Requests: requests, Replies: replies}) },
		loseClients: f.LoseClients,
		del:         func(slot int) { do("DEL", protocol.SlotKey(testKey(t), slot)) },
		leads:       func() bool { return do("EXISTS", testKey(t)+":slots").Val() == int64(1) },
		asked: func() any {
			for _, asked := range s.Client().SlowLogGet(t.Context(), -1).Val() {
				if slices.Contains(asked.Args, testKey(t)) {
					return asked.ClientAddr
				}
			}
			return nil
		},
	}
}

// guest is an Admission of all, and keeps what they say.
type guest struct{ protocol.Server }

func (*guest) KeyOfBeats() string { return "redlock:processes:{processes}" }

func (g *guest) Admit(s protocol.Server) error { g.Server = s; return nil }

// connect makes a connection, and returns what the server says of itself.
func (s *troubled) connect(t *testing.T) (protocol.Conn, protocol.Server) {
	t.Helper()
	var g guest
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	c, err := s.Connect(ctx, &g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, g.Server
}

// run sends a command, and waits for its reply.
func run(t *testing.T, c protocol.Conn, cmd *protocol.Command) protocol.Reply {
	t.Helper()
	for { // again, if the server doesn't know the script yet
		send(t, c, cmd)
		if err := replyTo(c, cmd); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(cmd.Reply.Err, protocol.ErrNotExecuted) {
			return cmd.Reply
		}
	}
}

func send(t *testing.T, c protocol.Conn, cmd *protocol.Command) {
	t.Helper()
	if _, err := c.Send([]*protocol.Command{cmd}); err != nil {
		t.Fatal(err)
	}
}

func replyTo(c protocol.Conn, cmd *protocol.Command) error {
	if err := c.Wait(); err != nil {
		return err
	}
	return c.Receive([]*protocol.Command{cmd})
}

func extend(t *testing.T, token string) *protocol.Command {
	return &protocol.Command{Op: protocol.OpExtend, Key: testKey(t), Token: token, TTL: testTTL}
}

// takes locks the key, with a token.
func takes(t *testing.T, c protocol.Conn, token string) {
	t.Helper()
	if r := run(t, c, acquire(t, token)); r.Err != nil || r.Status != protocol.StatusGranted {
		t.Errorf("%s: status %d, error %v, want that it gets the key", token, r.Status, r.Err)
	}
}

func testGreeting(t *testing.T, s *troubled) {
	_, first := s.connect(t)
	_, second := s.connect(t)
	if first.RunID == "" || first.RunID != second.RunID || first.Role != "master" || first.Mode != "standalone" || !first.HasUptime || first.Memory.Policy != "noeviction" || first.Memory.Used == 0 {
		t.Errorf("it says of itself %+v, and then %+v", first, second)
	}
	if at := time.UnixMicro(first.Time); at.Before(first.Sent.Add(-time.Second)) || at.After(first.Received.Add(time.Second)) {
		t.Errorf("its clock shows %v between %v and %v", at, first.Sent, first.Received)
	}
}

func testKilled(t *testing.T, s *troubled) {
	c, before := s.connect(t)
	takes(t, c, "a")
	s.kill()
	if err := c.Wait(); err == nil {
		t.Error("its connections stay")
	}
	if _, err := s.Connect(t.Context(), new(guest)); !errors.Is(err, protocol.ErrUnreachable) {
		t.Errorf("a connection to nobody: %v", err)
	}
	s.restart()
	c, after := s.connect(t)
	if after.RunID == before.RunID || after.Uptime > bound {
		t.Errorf("after a restart it is %+v", after)
	}
	takes(t, c, "b")
}

// testHangs: it reads later what was sent.
func testHangs(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	run(t, c, &protocol.Command{Op: protocol.OpPing})
	takes(t, c, "a")
	s.hang()
	freed := release(t, "a")
	send(t, c, freed)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Connect(ctx, new(guest)); err == nil {
		t.Error("it greets")
	}
	s.resume()
	if err := replyTo(c, freed); err != nil {
		t.Fatal(err)
	}
	takes(t, c, "b")
}

// testFlushed: all is forgotten, and connections and subscriptions stay.
func testFlushed(t *testing.T, s *troubled) {
	c, before := s.connect(t)
	ready, heard := make(chan struct{}), make(chan protocol.WakeUp, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- s.Listen(ctx, "later", bound, func() { close(ready) }, func(w protocol.WakeUp) { heard <- w })
	}()
	<-ready
	takes(t, c, "a")
	s.flush()
	takes(t, c, "b")
	waiter := acquire(t, "c")
	waiter.Process, waiter.Ticket, waiter.Queue = "later", 2, true
	if r := run(t, c, waiter); r.Status != protocol.StatusHeld {
		t.Errorf("status %d of who waits", r.Status)
	}
	run(t, c, release(t, "b"))
	if w := within(t, heard); w.Key != testKey(t) || w.Ticket != 2 {
		t.Errorf("woken by %+v", w)
	}
	cancel()
	<-ended
	if _, after := s.connect(t); after.RunID != before.RunID {
		t.Error("it is another run")
	}
}

// testFull: a server whose memory is full refuses what may need more, and renews and releases.
func testFull(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	takes(t, c, "a")
	result := &protocol.Store{Result: &protocol.Result{Data: "done", Keep: testTTL, Fence: 1}}
	beat := func(number int64) *protocol.Command {
		return &protocol.Command{Op: protocol.OpBeat, Key: "redlock:processes:{processes}", Ask: &protocol.Beat{ID: "process", Kind: "kind", Life: testTTL, Number: number}}
	}
	run(t, c, extend(t, "a"))
	run(t, c, beat(1))
	s.fill()
	var refused []protocol.Op
	for _, cmd := range []*protocol.Command{
		{Op: protocol.OpPing}, extend(t, "a"),
		{Op: protocol.OpInspect, Key: testKey(t)}, {Op: protocol.OpNames, Key: "redlock:processes:{processes}", Ask: new(protocol.Names)}, {Op: protocol.OpMemory},
		{Op: protocol.OpRecall, Key: testKey(t)}, {Op: protocol.OpStore, Key: testKey(t), Token: "a", Ask: result},
		beat(2), {Op: protocol.OpForce, Key: testKey(t) + "x", Token: "x", TTL: testTTL, Ask: &protocol.Force{By: "x"}},
		release(t, "a"), acquire(t, "b"),
	} {
		if r := run(t, c, cmd); r.Err != nil {
			refused = append(refused, cmd.Op)
			if !errors.Is(r.Err, protocol.ErrRefused) || !errors.Is(r.Err, protocol.ErrUnusable) || !strings.Contains(r.Err.Error(), "OOM ") {
				t.Errorf("op %d: %v", cmd.Op, r.Err)
			}
		} else if memory, ok := r.Answer.(*protocol.Memory); ok && (memory.Max != 1 || memory.Policy != "noeviction" || memory.Used == 0) {
			t.Errorf("of its memory it says %+v", memory)
		}
	}
	if got, want := fmt.Sprint(refused), fmt.Sprint([]protocol.Op{protocol.OpStore, protocol.OpBeat, protocol.OpForce, protocol.OpAcquire}); got != want {
		t.Errorf("operations %s are refused, want %s", got, want)
	}
}

// testDemoted: a replica keeps its run and its connections, and has what its master has.
func testDemoted(t *testing.T, s *troubled) {
	c, before := s.connect(t)
	takes(t, c, "a")
	run(t, c, extend(t, "a"))
	s.demote()
	if _, now := s.connect(t); now.RunID != before.RunID || now.Role != "slave" {
		t.Errorf("a replica is %+v, after %+v", now, before)
	}
	if r := run(t, c, &protocol.Command{Op: protocol.OpPing}); r.Err != nil || r.Time == 0 {
		t.Errorf("a ping: %+v", r)
	}
	for _, cmd := range []*protocol.Command{acquire(t, "b"), release(t, "a")} {
		if r := run(t, c, cmd); cmd.Op == protocol.OpAcquire && !errors.Is(r.Err, protocol.ErrReplica) {
			t.Errorf("op %d: status %d, error %v", cmd.Op, r.Status, r.Err)
		}
	}
	s.promote()
	if _, now := s.connect(t); now.RunID != before.RunID || now.Role != "master" {
		t.Errorf("promoted it is %+v, after %+v", now, before)
	}
	takes(t, c, "b")
}

// testDeniedChannels: who has no channels can't subscribe, and wakes nobody: who waits keeps its place.
func testDeniedChannels(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	takes(t, c, "a")
	waits := acquire(t, "b")
	waits.Process, waits.Ticket, waits.Queue = "earlier", 2, true
	if r := run(t, c, waits); r.Status != protocol.StatusHeld {
		t.Errorf("status %d of who waits", r.Status)
	}
	s.denyChannels()
	err := s.Listen(t.Context(), "later", bound, func() { t.Error("it has subscribed") }, func(protocol.WakeUp) {})
	if !errors.Is(err, protocol.ErrRefused) {
		t.Errorf("a subscription: %v", err)
	}
	if r := run(t, c, release(t, "a")); r.Status != protocol.StatusReleased {
		t.Errorf("a release: status %d, error %v", r.Status, r.Err)
	}
	later := acquire(t, "c")
	later.Process, later.Ticket = "later", 3
	if r := run(t, c, later); r.Status != protocol.StatusHeld {
		t.Errorf("status %d of who comes later", r.Status)
	}
}

// testDeniedInfo: a server says nothing of itself to who may not ask, but the time.
func testDeniedInfo(t *testing.T, s *troubled) {
	s.denyInfo()
	if _, told := s.connect(t); told.Time == 0 || told.HasUptime || told.RunID+told.Version+told.Mode+told.Role+told.Memory.Policy != "" {
		t.Errorf("it says of itself %+v", told)
	}
}

// testKeptBack: what is kept back takes effect when it comes, and its reply too. What is cut off has none.
func testKeptBack(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	other, _ := s.connect(t)
	takes(t, c, "a")
	run(t, c, extend(t, "a"))
	s.keepBack(false, true)
	freed := release(t, "a")
	send(t, c, freed)
	s.keepBack(false, false)
	if err := replyTo(c, freed); err != nil || freed.Reply.Status != protocol.StatusReleased {
		t.Errorf("a reply that was kept back: %v, status %d", err, freed.Reply.Status)
	}
	takes(t, other, "b")
	s.keepBack(true, false)
	send(t, other, release(t, "b"))
	s.address.Cut()
	if err := other.Wait(); err == nil {
		t.Error("a reply on a connection that is cut")
	}
	s.keepBack(false, false)
}

// testLosesClients: what they have sent arrives.
func testLosesClients(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	takes(t, c, "a")
	run(t, c, release(t, "a")) // the script is known
	takes(t, c, "b")
	s.keepBack(true, false)
	send(t, c, release(t, "b"))
	time.Sleep(10 * time.Millisecond) // it is on its way
	s.loseClients()
	if err := c.Wait(); err == nil {
		t.Error("a reply on a connection that is lost")
	}
	s.keepBack(false, false)
	c, _ = s.connect(t)
	eventually(t, bound, "what was sent has arrived", func() bool { return run(t, c, acquire(t, "c")).Status == protocol.StatusGranted })
}

// testAsked: of two connections, it is the one on which the last lock was asked for.
func testAsked(t *testing.T, s *troubled) {
	one, _ := s.connect(t)
	other, _ := s.connect(t)
	takes(t, one, "a")
	first := s.asked()
	if r := run(t, other, acquire(t, "b")); r.Status != protocol.StatusHeld {
		t.Errorf("b: status %d", r.Status)
	}
	second := s.asked()
	run(t, one, &protocol.Command{Op: protocol.OpPing})
	if still := s.asked(); first == nil || second == first || still != second {
		t.Errorf("asked on %v, then on %v, and after a ping on %v", first, second, still)
	}
	if run(t, one, acquire(t, "c")); s.asked() != first {
		t.Errorf("asked on %v, want the first: %v", s.asked(), first)
	}
}

// testSlots: a server leads from when somebody who may have any slot finds one taken. DEL takes a token away, and the fence that is with it.
func testSlots(t *testing.T, s *troubled) {
	c, _ := s.connect(t)
	ask := func(slot int, token string) *protocol.Command {
		cmd := acquire(t, token)
		cmd.Key, cmd.Slots, cmd.Leads, cmd.Process, cmd.Ticket = protocol.SlotKey(testKey(t), slot), 2, true, protocol.CallName("process", 1), 2
		return cmd
	}
	for slot, ahead := range []time.Duration{0, 2 * testTTL} { // a fence that outlives the lease is beside it
		own := ask(slot, "a")
		r := run(t, c, own)
		if r.Status != protocol.StatusGranted || s.leads() != (slot > 0) {
			t.Errorf("slot %d: status %d, it leads: %v", slot, r.Status, s.leads())
		}
		if r := run(t, c, ask(slot, "b")); r.Status != protocol.StatusHeld || !s.leads() {
			t.Errorf("slot %d, taken: status %d, it leads: %v", slot, r.Status, s.leads())
		}
		own.Op, own.Fence = protocol.OpExtend, r.Fence+ahead.Microseconds()
		run(t, c, own)
		s.del(slot)
		seen, _ := run(t, c, &protocol.Command{Op: protocol.OpInspect, Key: own.Key}).Answer.(*protocol.Inspected)
		if seen == nil || seen.Holder != "" || (seen.Fence == 0) != (ahead == 0) {
			t.Errorf("slot %d, deleted, is %+v", slot, seen)
		}
	}
}

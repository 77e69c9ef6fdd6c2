package redis

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// monologue is a connection to a server that says this, whatever it is asked, and then hangs up.
type monologue struct {
	net.Conn
	text *bytes.Reader
}

func (m monologue) Read(b []byte) (int, error)       { return m.text.Read(b) }
func (m monologue) Write(b []byte) (int, error)      { return len(b), nil }
func (m monologue) Close() error                     { return nil }
func (m monologue) SetDeadline(time.Time) error      { return nil }
func (m monologue) SetReadDeadline(time.Time) error  { return nil }
func (m monologue) SetWriteDeadline(time.Time) error { return nil }
func (m monologue) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (m monologue) LocalAddr() net.Addr              { return &net.TCPAddr{} }

// admitted takes every server, and checks what it says of itself.
type admitted struct{ t *testing.T }

func (admitted) KeyOfBeats() string { return "processes" }

func (a admitted) Admit(s protocol.Server) error {
	if most := protocol.MaxTime; s.Time < 0 || s.Time > most.Microseconds() || s.Uptime.Abs() > most || s.Memory.Used < 0 || s.Memory.Max < 0 || s.Past.Born < 0 || s.Past.Born > most.Microseconds() || !s.Past.Known && s.Past != (protocol.Past{}) {
		a.t.Errorf("a server says %+v", s)
	}
	return nil
}

// asked are commands of all kinds, the Fast ones last.
func asked() (cmds []*protocol.Command) {
	for op := range protocol.Ops {
		asks := map[protocol.Op]protocol.Ask{
			protocol.OpBeat: &protocol.Beat{}, protocol.OpForce: &protocol.Force{}, protocol.OpTrial: &protocol.Trial{}, protocol.OpNames: &protocol.Names{}, protocol.OpStore: &protocol.Store{Result: &protocol.Result{}},
		}
		cmds = append(cmds, &protocol.Command{Op: op, Key: "redlock:{key}", Token: "token", Slots: 2, Ask: asks[op]})
	}
	for range 3 {
		cmds = append(cmds, &protocol.Command{Op: protocol.OpAcquire, Key: "redlock:{key}", Token: "token", Fast: true})
	}
	for range 3 {
		cmds = append(cmds, &protocol.Command{Op: protocol.OpAcquire, Key: "redlock:{key}", Token: "token", Fast: true, Recall: true})
	}
	for range 3 {
		cmds = append(cmds, &protocol.Command{Op: protocol.OpRelease, Key: "redlock:{key}", Token: "token", Fast: true, Ask: &protocol.Store{Result: &protocol.Result{}}})
	}
	for range 3 {
		cmds = append(cmds, &protocol.Command{Op: protocol.OpExtend, Key: "redlock:{key}", Token: "token", Fast: true})
	}
	return cmds
}

// requireWithin fails if a reply has what breaks the limits.
func requireWithin(t *testing.T, r protocol.Reply) {
	t.Helper()
	within := func(n int64) bool { return 0 <= n && n <= protocol.MaxTime.Microseconds() }
	withinResult := func(r *protocol.Result) bool {
		return r == nil || within(r.Fence) && within(r.Keep.Microseconds()) && 0 <= r.Size && r.Size <= math.MaxInt32
	}
	answer := r.Status != protocol.StatusForced
	switch a := r.Answer.(type) {
	case *protocol.Beats:
		answer = within(a.Mark) && within(a.Born)
	case *protocol.Force:
		answer = r.Status == protocol.StatusForced && len(a.By) <= maxName
	case *protocol.Inspected:
		answer = within(a.TTL.Microseconds()) && within(a.Fence) && len(a.Holder) <= maxName && withinResult(a.Result)
	case *protocol.Memory:
		answer = a.Used >= 0 && a.Max >= 0
	case *protocol.Result:
		answer = withinResult(a)
	}
	if !answer || !within(r.TTL.Microseconds()) || !within(r.Fence) || !within(r.Time) || r.Offer > protocol.MaxSlots || r.Elsewhere > protocol.MaxSlots || len(r.Holder) > maxName {
		t.Errorf("a reply says %+v, %+v", r, r.Answer)
	}
}

const (
	helloSaid   = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
	timeSaid    = "*2\r\n$10\r\n1764000000\r\n$6\r\n123456\r\n"
	infoSaid    = "$70\r\nrun_id:0123456789\r\nuptime_in_seconds:100\r\nrole:master\r\nused_memory:1\r\n\r\n"
	granted     = "*3\r\n:1764000000000000\r\n:1764000000000000\r\n:2\r\n"
	heldSaid    = "*6\r\n:1500\r\n$5\r\ntoken\r\n:1764000000000000\r\n:2\r\n:1\r\n:2\r\n"
	othersSaid  = "*2\r\n:1\r\n:1764000000000000\r\n:1\r\n*5\r\n:1764000000000000\r\n:0\r\n:1\r\n$1\r\na\r\n$0\r\n\r\n*8\r\n:1764000000000000\r\n$1\r\na\r\n:9\r\n:5\r\n$0\r\n\r\n:5\r\n:6\r\n:-2\r\n:1\r\n:1\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n*4\r\n:5\r\n:6\r\n:7\r\n$1\r\nx\r\n:1\r\n" + infoSaid + "*3\r\n:1764000000000000\r\n:2\r\n:0\r\n*7\r\n:1764000000000000\r\n:3\r\n:-5\r\n:6\r\n$1\r\nx\r\n:1\r\n:0\r\n*2\r\n:0\r\n:3\r\n*2\r\n:1764000000000000\r\n:3\r\n"
	subscribed  = "*3\r\n$9\r\nsubscribe\r\n$7\r\nprocess\r\n:1\r\n"
	published   = "*3\r\n$7\r\nmessage\r\n$7\r\nprocess\r\n$16\r\n12 redlock:{key}\r\n"
	clusterSaid = "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:6379\r\n$2\r\nid\r\n*0\r\n$22\r\ncluster_current_epoch:1\r\n"
)

// FuzzConversation: a server says anything, from the greeting on, on a connection for locks, on a subscription, and as a node that is
// asked for its cluster. Nothing panics, and nothing that breaks the limits of replies gets through.
func FuzzConversation(f *testing.F) {
	greeted := helloSaid + timeSaid + strings.Repeat(infoSaid, 3) + strings.Repeat("$16\r\n1764000000000000\r\n", 2)
	for _, said := range []string{
		greeted + timeSaid + granted, greeted + timeSaid + heldSaid, greeted + timeSaid + granted + othersSaid, greeted + timeSaid + "-NOSCRIPT no\r\n",
		helloSaid + subscribed + published + "-ERR no\r\n", helloSaid + clusterSaid,
		"-ERR unknown command\r\n" + timeSaid, "$9223372036854775806\r\n", "*1073741824\r\n", strings.Repeat("*1\r\n", 100),
	} {
		f.Add([]byte(said))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		dials := func(context.Context, string, string) (net.Conn, error) {
			return monologue{text: bytes.NewReader(said)}, nil
		}
		m := New(redis.Options{Addr: "server:6379", Dialer: dials})
		if made, err := m.Connect(t.Context(), admitted{t}); err == nil {
			c := made.(*conn)
			cmds := asked()
			if c.Await(); c.Receive(cmds) != nil {
				_ = c.Wait()
			}
			for _, cmd := range cmds {
				requireWithin(t, cmd.Reply)
			}
			c.Close()
		}
		_ = m.Listen(t.Context(), "process", time.Minute, func() {}, func(w protocol.WakeUp) {
			_, slot := protocol.SlotOf(w.Key)
			if w.Ticket < 0 || slot < 0 || slot >= protocol.MaxSlots {
				t.Errorf("a wake-up says %+v", w)
			}
		})
		topology, _ := NewCluster(redis.ClusterOptions{Dialer: dials}).Ask(t.Context(), "server:6379")
		for _, slots := range topology.Owners {
			for _, s := range slots {
				if s.First < 0 || s.First > s.Last || s.Last >= Slots {
					t.Errorf("a node says %+v", s)
				}
			}
		}
	})
}

// FuzzReply is FuzzConversation behind the greeting, which the fuzzer seldom gets right.
func FuzzReply(f *testing.F) {
	for _, said := range []string{timeSaid, granted, heldSaid, othersSaid, "-MOVED 1 :1\r\n", ":1\r\n", "$9223372036854775806\r\n", "*9223372036854775806\r\n"} {
		for op := range protocol.Ops + 1 {
			f.Add(uint8(op), []byte(said))
		}
	}
	f.Fuzz(func(t *testing.T, op uint8, said []byte) {
		cmds := asked()
		if op < uint8(protocol.Ops) {
			cmds = cmds[op : op+1]
		} else {
			cmds = cmds[protocol.Ops:]
		}
		c := &conn{in: bufio.NewReader(bytes.NewReader(said))}
		err := c.Receive(cmds)
		if whole := isWhole(said); err == nil && !whole {
			t.Errorf("%q is read, and not taken as whole", said)
		}
		for _, cmd := range cmds {
			if requireWithin(t, cmd.Reply); err == nil && cmd.Reply.Err == nil && cmd.Reply.Status == protocol.StatusNone && cmd.Op == protocol.OpAcquire {
				t.Errorf("%q is a reply that says nothing", said)
			}
		}
	})
}

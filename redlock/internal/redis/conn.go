package redis

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// conn is a connection to a Redis server, on which go-redis has authenticated and greeted.
type conn struct {
	client  *redis.Client // owns the connection
	session *redis.Conn
	raw     net.Conn

	mu     sync.Mutex // guards raw and closed, until the connection is made
	closed bool

	scripts *scriptSet
	known   [scripts]atomic.Bool // the server has the script
	out     []byte               // the batch that is being sent; kept for its capacity
	in      *bufio.Reader
	value   value
}

// Connect makes a connection. It gives up when ctx ends.
func (m *Master) Connect(ctx context.Context, admits protocol.Admission) (protocol.Conn, error) {
	c, err := m.connect(ctx, func(ctx context.Context, c *conn, ready *time.Time) error {
		return greet(ctx, c, ready, admits)
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect makes a connection and calls greet for it. go-redis authenticates before the first command of greet. ready is set after that.
func (m *Master) connect(ctx context.Context, greet func(ctx context.Context, c *conn, ready *time.Time) error) (*conn, error) {
	c := &conn{scripts: m.scripts}
	var ready time.Time
	o := m.options
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return bounded(c.raw, c.in), nil }
	o.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		if m.options.OnConnect != nil {
			if err := m.options.OnConnect(ctx, cn); err != nil {
				return err
			}
		}
		ready = time.Now()
		return nil
	}
	c.client = redis.NewClient(&o)
	c.session = c.client.Conn()
	over := context.AfterFunc(ctx, c.abandon) // go-redis ignores the context while it reads
	raw, err := m.open(ctx)
	if err == nil {
		err = c.opened(raw)
	}
	if err == nil {
		err = greet(ctx, c, &ready)
	}
	if !over() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, protocol.Unreachable(classify(peerTrouble(err, ctx.Err(), m.options.TLSConfig != nil)))
	}
	_ = c.raw.SetDeadline(time.Time{})
	return c, nil
}

// opened keeps the network connection, unless abandon was called earlier.
func (c *conn) opened(raw net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = raw.Close()
		return protocol.ErrBroken
	}
	c.raw, c.in = raw, bufio.NewReader(raw)
	return nil
}

func (c *conn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.raw != nil {
		_ = c.raw.Close()
	}
}

func (c *conn) Close() {
	c.abandon() // first, so that nobody reads from the connection any more
	_ = c.session.Close()
	_ = c.client.Close()
}

// isPrompt reports whether the connection is a socket. Once all earlier bytes were answered, a socket has room for new bytes. Connections of other
// dialers, such as tunnels, may have no room at all.
func (c *conn) isPrompt() bool {
	raw := c.raw
	if secure, ok := raw.(*tls.Conn); ok {
		raw = secure.NetConn()
	}
	switch raw.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

func (c *conn) Capabilities() protocol.ConnCapabilities {
	return protocol.ConnCapabilities{Window: protocol.MaxWindow, Prompt: c.isPrompt(), Direct: c}
}

func (c *conn) Send(cmds []*protocol.Command) (answered bool, err error) {
	c.out = c.out[:0]
	for len(cmds) > 0 {
		n := together(cmds)
		switch {
		case n == 1:
			c.out = c.append(c.out, cmds[0])
		case cmds[0].Op == protocol.OpAcquire && cmds[0].Recall:
			c.out = c.appendTogether(c.out, fast, cmds[:n], "", ":fence", ":queue", ofResult)
		case cmds[0].Op == protocol.OpAcquire:
			c.out = c.appendTogether(c.out, fast, cmds[:n], "", ":fence", ":queue")
		case cmds[0].Op == protocol.OpRelease:
			c.out = c.appendKeep(c.out, cmds[:n])
		default:
			c.out = c.appendTogether(c.out, renew, cmds[:n], "", forced)
		}
		cmds = cmds[n:]
	}
	_, err = c.raw.Write(c.out)
	if cap(c.out) > 1<<16 {
		c.out = nil
	}
	return false, err
}

func (c *conn) append(b []byte, cmd *protocol.Command) []byte {
	switch {
	case cmd.Op == protocol.OpPing:
		return appendBulk(appendArray(b, 1), "TIME")
	case cmd.Op == protocol.OpMemory:
		return appendBulk(appendBulk(appendArray(b, 2), "INFO"), "memory")
	case cmd.Alone:
		b = appendBulk(appendArray(b, 4), "LREM")
		b = appendBulk(b, cmd.Key)
		b = appendBulk(b, "1")
		return appendBulk(b, cmd.Token)
	}
	switch ask := cmd.Ask.(type) {
	case *protocol.Beat:
		return c.appendBeat(b, cmd.Key, ask)
	case *protocol.Names:
		b = c.appendScript(appendArray(b, 3+4+2), cmd.Op)
		return appendBulk(appendBulk(c.appendProcesses(b, cmd.Key), strings.Join(ask.IDs, " ")), ask.Hash)
	}
	keys, more := 4, 0
	line, _ := protocol.SlotOf(cmd.Key)
	result := cmd.Result()
	if cmd.Recall || result != nil || cmd.Op == protocol.OpRecall || cmd.Op == protocol.OpInspect {
		keys = 5
	}
	switch {
	case cmd.Op == protocol.OpAcquire:
		more = 3
	case result != nil:
		more = 4
	case cmd.Op == protocol.OpExtend:
		more = 2
	case cmd.Ask != nil, cmd.Op == protocol.OpRelease && cmd.Slots > 1:
		more = 1
	}
	b = appendArray(b, 3+keys+5+more)
	b = c.appendScript(b, cmd.Op)
	b = appendNumber(b, int64(keys))
	b = appendBulk(b, cmd.Key)
	b = appendBulk(b, cmd.Key, ":fence")
	b = appendBulk(b, line, ":queue")
	b = appendBulk(b, line, ":leases")
	if keys == 5 {
		b = appendBulk(b, cmd.ResultOf(), ofResult)
	}
	b = appendBulk(b, cmd.Token)
	b = appendBulk(b, cmd.Process)
	b = appendNumber(b, cmd.Ticket)
	b = appendNumber(b, cmd.TTL.Milliseconds())
	b = appendNumber(b, waitFlags(cmd))
	switch ask := cmd.Ask.(type) {
	case *protocol.Store:
		b = appendNumber(b, ask.Keep.Milliseconds())
		b = appendNumber(b, ask.Fence)
		b = appendBulk(b, ask.Data)
		return appendNumber(b, flag(ask.Anyway))
	case *protocol.Force:
		return appendBulk(b, ask.By)
	case *protocol.Trial:
		return appendBulk(b, ask.Channel)
	}
	switch {
	case cmd.Op == protocol.OpAcquire:
		b = appendNumber(b, cmd.Fence)
		b = appendNumber(b, max(int64(cmd.Slots), 1))
		b = appendBulk(b, cmd.Former)
	case cmd.Op == protocol.OpRelease && cmd.Slots > 1:
		b = appendNumber(b, int64(cmd.Slots))
	case cmd.Op == protocol.OpExtend:
		b = appendNumber(b, cmd.Fence)
		b = appendNumber(b, cmd.RefillUntil)
	}
	return b
}

func (c *conn) appendBeat(b []byte, key string, beat *protocol.Beat) []byte {
	b = appendArray(b, 3+4+10)
	b = c.appendScript(b, protocol.OpBeat)
	b = c.appendProcesses(b, key)
	b = appendBulk(b, beat.ID)
	b = appendNumber(b, beat.Number)
	b = appendNumber(b, beat.Life.Milliseconds())
	b = appendBulk(b, beat.Kind)
	b = appendNumber(b, beat.Since)
	b = appendBulk(b, beat.About)
	b = appendBulk(b, beat.Turns)
	b = appendNumber(b, beat.Shown)
	b = appendBulk(b, strings.Join(beat.Asks, " "))
	return appendNumber(b, beat.Knew)
}

func (c *conn) appendProcesses(b []byte, key string) []byte {
	b = appendNumber(b, 4)
	for _, suffix := range []string{"", ":turns", ":ends", ":kinds"} {
		b = appendBulk(b, key, suffix)
	}
	return b
}

// appendScript appends a call of a script. The first call on a connection has the script's source (EVAL). The server keeps the source, so later calls
// have only its hash (EVALSHA).
func (c *conn) appendScript(b []byte, script protocol.Op) []byte {
	if c.known[script].Swap(true) {
		return appendBulk(appendBulk(b, "EVALSHA"), c.scripts[script].hash)
	}
	return appendBulk(appendBulk(b, "EVAL"), c.scripts[script].source)
}

// together returns how many commands at the head of a batch are sent as one script call: Fast commands with the same operation, Recall and TTL.
func together(cmds []*protocol.Command) (n int) {
	for n < len(cmds) && cmds[n].Fast && cmds[n].Op == cmds[0].Op && cmds[n].Recall == cmds[0].Recall && cmds[n].TTL == cmds[0].TTL {
		n++
	}
	return max(n, 1)
}

// forced is in the name of the key with which OpForce marks a token, and ofResult ends the name of the key with a result.
const forced, ofResult = ":forced:", ":result"

// appendTogether appends commands for several locks as one script call. Each lock has one key for each of the given ends.
func (c *conn) appendTogether(b []byte, script protocol.Op, cmds []*protocol.Command, ends ...string) []byte {
	b = appendArray(b, 4+(len(ends)+2)*len(cmds))
	b = appendKeys(c.appendScript(b, script), cmds, ends...)
	b = appendNumber(b, cmds[0].TTL.Milliseconds())
	for _, cmd := range cmds {
		b = appendBulk(b, cmd.Token)
		b = appendNumber(b, cmd.Fence)
	}
	return b
}

// appendKeys appends the keys of several locks, and first their number: one key of each lock for each of the given ends.
func appendKeys(b []byte, cmds []*protocol.Command, ends ...string) []byte {
	b = appendNumber(b, int64(len(ends)*len(cmds)))
	for _, end := range ends {
		for _, cmd := range cmds {
			switch end {
			case forced:
				b = appendBulk(b, cmd.Key, end, cmd.Token)
			case ofResult:
				b = appendBulk(b, cmd.ResultOf(), end)
			default:
				b = appendBulk(b, cmd.Key, end)
			}
		}
	}
	return b
}

// appendKeep appends releases that leave results as one script call.
func (c *conn) appendKeep(b []byte, cmds []*protocol.Command) []byte {
	b = appendArray(b, 3+6*len(cmds))
	b = appendKeys(c.appendScript(b, keep), cmds, "", ofResult)
	for _, cmd := range cmds {
		result := cmd.Result()
		b = appendBulk(b, cmd.Token)
		b = appendNumber(b, result.Fence)
		b = appendBulk(b, result.Data)
		b = appendNumber(b, result.Keep.Milliseconds())
	}
	return b
}

func (c *conn) Wait() error {
	_, err := c.in.Peek(1)
	return err
}

func (c *conn) Receive(cmds []*protocol.Command) error {
	for len(cmds) > 0 {
		n, script := together(cmds), cmds[0].Op
		err := c.value.read(c.in)
		switch {
		case err != nil:
		case n > 1 && script == protocol.OpAcquire:
			script = fast
			err = c.value.replyFast(cmds[:n])
		case n > 1 && script == protocol.OpRelease:
			script = keep
			err = c.value.replyTogether(cmds[:n], protocol.StatusReleased)
		case n > 1:
			script = renew
			err = c.value.replyTogether(cmds[:n], protocol.StatusGranted)
		default:
			cmds[0].Reply, err = c.value.reply(cmds[0])
		}
		if err != nil {
			for _, cmd := range cmds {
				cmd.Reply = protocol.Reply{Err: err}
			}
			return err
		}
		if c.value.kind == '-' && strings.HasPrefix(c.value.text, "NOSCRIPT") {
			c.known[script].Store(false)
		}
		cmds = cmds[n:]
	}
	return nil
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// waitFlags encodes Queue, Leads and Offered for the scripts.
func waitFlags(cmd *protocol.Command) (flags int64) {
	if cmd.Queue {
		flags = 1
	}
	if cmd.Leads {
		flags += 2
	}
	if cmd.Offered {
		flags += 4
	}
	return flags
}

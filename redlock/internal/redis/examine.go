package redis

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// explain adds what a Locker's errors say about the reason why the server can't be examined.
func explain(x *inside.Examination) {
	x.Closed = isClosed(x.Err)
	var refused redis.Error
	if errors.As(x.Err, &refused) {
		refusal := refusalOf("", refused.Error())
		x.Refused = &refusal
	}
	switch {
	case x.SpeaksPlain:
		x.WhyTLS, x.AdviceTLS = speaksPlain, withoutTLS
	case x.SpeaksTLS:
		x.WhyTLS, x.AdviceTLS = "it closes a connection without TLS, and speaks TLS", "write rediss:// instead of redis:// in masters, or use the server's port without TLS"
	default:
		x.WhyTLS, x.AdviceTLS = remedyOfTLS(x.Err)
	}
}

func refusalOf(command, text string) inside.Refusal {
	if known := remedyOf(text); known != nil {
		return inside.Refusal{Command: command, Text: text, Why: known.why, Advice: known.advice}
	}
	return inside.Refusal{Command: command, Text: text}
}

type examiner struct {
	*Master
	*inside.Examination
	prefix   string
	probe    string // a lock key on which commands are tried; for a node of a Redis Cluster, a key that this node has
	patience time.Duration
}

// Examine examines the server. patience is how long it waits for each reply. On the server it writes one key, with a name that
// nobody else uses, and removes it.
func (m *Master) Examine(ctx context.Context, prefix string, patience time.Duration) *inside.Examination {
	return m.examine(ctx, prefix, newProbe(), patience, false)
}

// Examine examines all nodes of the cluster that have keys. If no node reports the topology, it examines the node that was configured first.
func (c *Cluster) Examine(ctx context.Context, prefix string, patience time.Duration) *inside.Examination {
	var t Topology
	var failed error
	for _, addr := range c.Addrs() {
		asked, cancel := context.WithTimeout(ctx, patience)
		told, err := c.Ask(asked, addr)
		cancel()
		if err == nil {
			t, failed = told, nil
			break
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		x := c.Node(c.Addrs()[0]).examine(ctx, prefix, newProbe(), patience, true)
		refused := redis.Error(nil)
		switch {
		case x.Err != nil:
		case errors.As(failed, &refused):
			x.Refusals = append(x.Refusals, refusalOf("cluster|slots", refused.Error()), refusalOf("cluster|info", refused.Error()))
		case x.Mode == "cluster":
			x.Err = lastWords(failed.Error())
			explain(x)
		}
		return x
	}
	found := make(chan *inside.Examination)
	for addr, has := range t.Owners {
		go func() { found <- c.Node(addr).examine(ctx, prefix, probeIn(prefix, has), patience, true) }()
	}
	var all []*inside.Examination
	for range t.Owners {
		all = append(all, <-found)
	}
	slices.SortFunc(all, func(a, b *inside.Examination) int {
		return cmp.Or(cmp.Compare(b.RoundTrip, a.RoundTrip), cmp.Compare(a.Name, b.Name))
	})
	all[0].Others = all[1:]
	return all[0]
}

// newProbe returns a random key that nobody else uses.
func newProbe() string { return "doctor:" + strings.ToLower(rand.Text()) }

// probeIn returns a random key in one of these hash slots.
func probeIn(prefix string, has []SlotRange) string {
	base := newProbe()
	for i := 0; ; i++ {
		probe := base + strconv.Itoa(i)
		slot := HashSlot(protocol.Key(prefix, probe))
		if slices.ContainsFunc(has, func(r SlotRange) bool { return r.First <= slot && slot <= r.Last }) {
			return probe
		}
	}
}

func (m *Master) examine(ctx context.Context, prefix, probe string, patience time.Duration, asNode bool) *inside.Examination {
	x := &examiner{&Master{}, &inside.Examination{Name: m.name, Cluster: asNode, User: m.options.Username, Addr: m.options.Addr}, prefix, probe, patience}
	*x.Master = Master{name: m.name, options: m.options, scripts: m.scripts}
	x.options.ReadTimeout, x.options.WriteTimeout = patience, patience
	defer explain(x.Examination)
	c, err := x.connect(ctx)
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"): // the user may not call SELECT or CLIENT SETNAME, which go-redis needs to connect
		_ = x.note("info", err)
		return x.Examination
	case err != nil:
		x.Err = err
		x.lookCloser(ctx)
		return x.Examination
	}
	defer c.Close()
	defer context.AfterFunc(ctx, c.abandon)()
	steps := []func(context.Context, *redis.Conn) error{x.readInfo, x.measure, x.readConfig, x.readProcesses, x.tryCommands, x.trySubscribe}
	switch x.Mode {
	case "sentinel": // a sentinel has no keys
		steps = nil
	case "cluster":
		if !asNode { // a node need not have the key
			steps = steps[:4]
		}
	}
	for _, step := range steps {
		if x.Err = step(ctx, c.session); x.Err != nil {
			break
		}
	}
	return x.Examination
}

// connect makes a connection as a Locker does.
func (x *examiner) connect(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, x.patience)
	defer cancel()
	raw, err := x.dialWith(ctx, x.options.TLSConfig)
	if err != nil {
		return nil, err
	}
	x.dial = func(context.Context, string, string) (net.Conn, error) { return raw, nil }
	c, err := x.Connect(ctx, x)
	if err == nil {
		return c.(*conn), nil
	}
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, err
}

// KeyOfBeats is empty, because the greeting need not ask for the server's memory of processes.
func (*examiner) KeyOfBeats() string { return "" }

// Admit notes the server that the first connection has reached, and whether a later connection has reached a different one.
func (x *examiner) Admit(reached protocol.Server) error {
	if x.Info == nil {
		x.RunID, x.Version, x.Mode, x.TooOld, x.Role = reached.RunID, reached.Version, reached.Mode, reached.TooOld(), reached.Role
		x.Uptime, x.HasUptime, x.Memory, x.CertificateUntil = reached.Uptime, reached.HasUptime, reached.Memory, reached.CertificateUntil
	} else if reached.RunID != x.RunID {
		x.OtherRun = reached.RunID
	}
	return nil
}

// dialWith connects with this TLS configuration, or without TLS if it is nil.
func (x *examiner) dialWith(ctx context.Context, secure *tls.Config) (net.Conn, error) {
	dial := x.options.Dialer
	if dial == nil || x.options.TLSConfig != nil { // with a TLSConfig, the dialer of the options includes TLS
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, cmp.Or(x.options.Network, "tcp"), x.options.Addr)
	if err != nil {
		return nil, err
	}
	x.Reached = "unix"
	if raw.RemoteAddr().Network() == "tcp" {
		x.Reached = raw.RemoteAddr().String()
	}
	if secure == nil {
		return raw, nil
	}
	conn := tls.Client(raw, secure)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// lookCloser finds out why a server has closed the connection, or has not answered over TLS.
func (x *examiner) lookCloser(ctx context.Context) {
	secure := x.options.TLSConfig
	if errors.Is(x.Err, context.DeadlineExceeded) && secure != nil {
		said, _ := x.ask(ctx, nil)
		x.SpeaksPlain = said != ""
	}
	if !isClosed(x.Err) {
		return
	}
	said, err := x.ask(ctx, secure)
	if text, refused := strings.CutPrefix(said, "-"); refused {
		x.Err = lastWords(text)
	} else if err != nil && !isClosed(err) {
		x.Err = err // for example an alert of TLS
	} else if secure == nil {
		ctx, cancel := context.WithTimeout(ctx, x.patience)
		defer cancel()
		conn, err := x.dialWith(ctx, &tls.Config{InsecureSkipVerify: true}) // nothing is sent over it
		if x.SpeaksTLS = err == nil; x.SpeaksTLS {
			_ = conn.Close()
		}
	}
}

// ask sends one word, and returns the first line of the server's answer.
func (x *examiner) ask(ctx context.Context, secure *tls.Config) (line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.patience)
	defer cancel()
	conn, err := x.dialWith(ctx, secure)
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "PING\r\n") // some servers write without being asked, and close
	line, err = bufio.NewReader(io.LimitReader(conn, 1000)).ReadString('\n')
	return strings.TrimSpace(line), err
}

// isClosed reports whether the server, or a proxy before it, has closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// lastWords is the text that a server has sent before it closed the connection.
type lastWords string

func (w lastWords) Error() string { return string(w) }

// RedisError makes lastWords implement go-redis's redis.Error.
func (lastWords) RedisError() {}

// note notes a server's refusal of a command, and returns nil then. It returns any other error.
func (x *examiner) note(command string, err error) error {
	var refused redis.Error
	elsewhere := x.Cluster && IsMoved(err) // another node has the key, for example the key of the beats
	if err != redis.Nil && errors.As(err, &refused) && !elsewhere {
		x.Refusals = append(x.Refusals, refusalOf(command, refused.Error()))
	}
	return unlessRefused(err)
}

func unlessRefused(err error) error {
	var refused redis.Error // redis.Nil is one too
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// readInfo asks for all fields of INFO. It gets none if the user has no right to INFO.
func (x *examiner) readInfo(ctx context.Context, cn *redis.Conn) error {
	reply, err := cn.Info(ctx).Result()
	x.Info = maps.Collect(infoFields(reply))
	return x.note("info", err)
}

const samples = 5

func (x *examiner) measure(ctx context.Context, cn *redis.Conn) error {
	var took []time.Duration
	for range samples {
		sent := time.Now()
		now, err := cn.Time(ctx).Result()
		elapsed := time.Since(sent)
		if err != nil {
			return x.note("time", err)
		}
		if !x.HasClock || elapsed < 2*x.Accuracy {
			x.HasClock, x.Accuracy = true, elapsed/2
			x.Offset = now.Sub(sent.Add(elapsed / 2))
		}
		took = append(took, elapsed)
	}
	slices.Sort(took)
	x.RoundTrip = took[samples/2]
	return nil
}

// readConfig asks for settings that INFO doesn't have. Many users have no right to CONFIG, in particular on hosted servers.
func (x *examiner) readConfig(ctx context.Context, cn *redis.Conn) error {
	x.Config = make(map[string]string)
	for _, name := range []string{"appendfsync", "no-appendfsync-on-rewrite", "save", "stop-writes-on-bgsave-error"} {
		values, err := cn.ConfigGet(ctx, name).Result()
		if err != nil {
			return unlessRefused(err)
		}
		maps.Copy(x.Config, values)
	}
	return nil
}

// readProcesses asks for the processes that use the server, and for a loss of its data that they have noticed. It gets nothing if the user has no right
// to read that key.
func (x *examiner) readProcesses(ctx context.Context, cn *redis.Conn) error {
	key, at := protocol.Processes(x.prefix), time.Now().Add(x.Offset)
	born := cn.HGet(ctx, key, "born").Val()
	if began, valid := protocol.ParseNumber(born, protocol.MaxTime.Microseconds()); valid && born == cn.HGet(ctx, key, "lost").Val() {
		x.LostAgo = at.Sub(time.UnixMicro(began))
	}
	now := strconv.FormatInt(at.UnixMilli(), 10)
	known, err := cn.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key + ":ends", Start: now, Stop: "+inf", ByScore: true, Count: protocol.MaxProcesses}).Result()
	x.Processes = make(map[string]string)
	for _, id := range known {
		if x.Processes[id], err = cn.HGet(ctx, key, id).Result(); err != nil {
			break
		}
	}
	return unlessRefused(err)
}

// tried are the commands that locks need, with arguments with which they do nothing to a missing key. A server checks ACLs first, so the reply shows
// whether the user has the right. The commands to ask for rights, ACL DRYRUN and ACL GETUSER, are for administrators, and older servers lack them.
// Each command is tried separately, and not in the script of OpTrial. So all missing rights are found at once, whether or not the user may run
// scripts.
var tried = []string{
	"exists", "get", "lindex 0", "lpop", "ltrim 0 0", "lset 0 x", "lrem 1 x", "pttl", "pexpire 1000", "zrange 0 0", "zscore x", "zrem x",
	"hget x", "hstrlen x", "hdel x",
}

// makers are the commands that would create a key. They are tried on a string that lasts for a second at most. Because the key is no list, sorted set
// or hash, they fail without an effect.
var makers = []string{"rpush x", "zadd 1 x", "hset x x"}

const makeString, remove = "set x PX 1000", "del"

// tryCommands tries each command of the scripts. INFO and TIME were tried by earlier steps.
func (x *examiner) tryCommands(ctx context.Context, cn *redis.Conn) error {
	key := fmt.Sprintf("%s:{%s}", x.prefix, x.probe)
	pipe := cn.Pipeline()
	try := func(command string) *redis.Cmd {
		var args []any
		for i, word := range strings.Fields(command) {
			if args = append(args, word); i == 0 {
				args = append(args, key)
			}
		}
		return pipe.Do(ctx, args...)
	}
	for _, command := range tried {
		try(command)
	}
	pipe.Exists(ctx, x.prefix+":processes:{processes}")
	pipe.Eval(ctx, "return 1", []string{key})
	pipe.EvalSha(ctx, strings.Repeat("0", 40), []string{key})
	pipe.Publish(ctx, x.channel(), "")
	del, set := try(remove), try(makeString)
	if err := x.exec(ctx, pipe); err != nil {
		return err
	}
	// A user without the right to the key can't create it.
	deletes := !redis.HasErrorPrefix(del.Err(), "NOPERM") || strings.Contains(del.Err().Error(), " to access ")
	for _, command := range makers {
		if set.Err() == nil {
			try(makeString) // again, because the string may have expired
		} else if !deletes {
			x.NotTried = append(x.NotTried, strings.Fields(command)[0]) // no key may be left behind
			continue
		}
		try(command)
		if deletes {
			try(remove)
		}
	}
	return x.exec(ctx, pipe)
}

func (x *examiner) exec(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		_ = x.note(cmd.Name(), cmd.Err())
	}
	return unlessRefused(err)
}

func (x *examiner) channel() string { return x.prefix + ":wake:" + x.probe }

// trySubscribe subscribes on a second connection, as a process does while its calls wait. The connection also shows whether the address always leads
// to the same server.
func (x *examiner) trySubscribe(ctx context.Context, _ *redis.Conn) error {
	c, err := x.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, c.abandon)()
	return x.note("subscribe", c.session.Do(ctx, "subscribe", x.channel()).Err())
}

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

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Examination is the result of a look at a server, for package doctor to judge. Unknown facts are zero.
type Examination struct {
	protocol.Server                   // what it says of itself, in the greeting
	Info            map[string]string // all that it says
	Config          map[string]string // settings that INFO doesn't have; empty if CONFIG may not be used
	Unexaminable    bool              // it is in the memory of the process

	Name    string         // of the server
	Cluster bool           // it was looked at as a node of a Redis Cluster
	Others  []*Examination // the other nodes that have keys; this is the one that is farthest away

	User        string // that asks
	Addr        string // as configured
	Reached     string // the address that was connected to, or "unix"; empty if there was no connection
	Err         error  // why it can't be looked at, or not completely: a redis.Error in the server's own words
	SpeaksTLS   bool   // it has closed a connection without TLS, and speaks TLS
	SpeaksPlain bool   // it doesn't answer to TLS, but without

	RoundTrip time.Duration // the median of some
	HasClock  bool
	Offset    time.Duration // of its clock from ours
	Accuracy  time.Duration // of the offset

	Refusals  []Refusal
	NotTried  []string          // commands that would have left a key behind
	OtherRun  string            // the run ID on a second connection, if that is another one
	Processes map[string]string // what the processes that lock there have told, by their IDs: see beat.lua
}

// Refused returns the server's refusal, with Err, or nil if it hasn't answered.
func (x *Examination) Refused() *Refusal {
	var refused redis.Error
	if !errors.As(x.Err, &refused) {
		return nil
	}
	return &Refusal{Text: refused.Error()}
}

// RemedyTLS returns why TLS fails or is needed, and what to do about it, in a Locker's words; nothing if the reason is a different one.
func (x *Examination) RemedyTLS() (why, advice string) {
	switch {
	case x.SpeaksPlain:
		return speaksPlain, withoutTLS
	case x.SpeaksTLS:
		return "it closes a connection without TLS, and speaks TLS", "write rediss:// instead of redis:// in masters, or use the server's port without TLS"
	}
	return remedyOfTLS(x.Err)
}

// Closed reports whether the server, or something before it, has closed the connection.
func (x *Examination) Closed() bool { return isClosed(x.Err) }

// Refusal is the server's refusal of a command that locks need.
type Refusal struct{ Command, Text string }

// Remedy returns why the server takes no locks, and what to do about it, in a Locker's words; nothing if a Locker has none.
func (r Refusal) Remedy() (why, advice string) {
	if known := remedyOf(r.Text); known != nil {
		return known.why, known.advice
	}
	return "", ""
}

// examiner looks at a server.
type examiner struct {
	*Master
	*Examination
	prefix   string
	probe    string // the key to try commands on, as rules name keys; of a node of a Redis Cluster, one that it has
	patience time.Duration
}

// Examine looks at the server: it waits for each reply for as long as it has patience. On the server it writes one key, of a name that
// nobody else uses, and removes it.
func (m *Master) Examine(ctx context.Context, prefix string, patience time.Duration) *Examination {
	return m.examine(ctx, prefix, newProbe(), patience, false)
}

// Examine looks at all nodes of the cluster that have keys. If no node tells which these are, it looks at the one that was named first.
func (c *Cluster) Examine(ctx context.Context, prefix string, patience time.Duration) *Examination {
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
			x.Refusals = append(x.Refusals, Refusal{"cluster|slots", refused.Error()}, Refusal{"cluster|info", refused.Error()})
		case x.Mode == "cluster":
			x.Err = lastWords(failed.Error())
		}
		return x
	}
	found := make(chan *Examination)
	for addr, has := range t.Owners {
		go func() { found <- c.Node(addr).examine(ctx, prefix, probeIn(prefix, has), patience, true) }()
	}
	var all []*Examination
	for range t.Owners {
		all = append(all, <-found)
	}
	slices.SortFunc(all, func(a, b *Examination) int {
		return cmp.Or(cmp.Compare(b.RoundTrip, a.RoundTrip), cmp.Compare(a.Name, b.Name))
	})
	all[0].Others = all[1:]
	return all[0]
}

// newProbe returns a key like a rule's, which nobody else uses.
func newProbe() string { return "doctor:" + strings.ToLower(rand.Text()) }

// probeIn returns such a key in these slots of a Redis Cluster.
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

func (m *Master) examine(ctx context.Context, prefix, probe string, patience time.Duration, asNode bool) *Examination {
	x := &examiner{&Master{}, &Examination{Name: m.name, Cluster: asNode, User: m.options.Username, Addr: m.options.Addr}, prefix, probe, patience}
	*x.Master = Master{name: m.name, options: m.options, scripts: m.scripts}
	x.options.ReadTimeout, x.options.WriteTimeout = patience, patience
	c, err := x.connect(ctx)
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"): // SELECT or CLIENT SETNAME, without which there is no connection
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
	case "sentinel": // has no keys
		steps = nil
	case "cluster":
		if !asNode { // it need not have the key
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

// KeyOfBeats is empty: it isn't asked what the server remembers.
func (*examiner) KeyOfBeats() string { return "" }

// Admit notes which server was reached: that of the first connection, or another one.
func (x *examiner) Admit(reached protocol.Server) error {
	if x.Info == nil {
		x.Server = reached
	} else if reached.RunID != x.RunID {
		x.OtherRun = reached.RunID
	}
	return nil
}

// dialWith connects with this TLS, or without any.
func (x *examiner) dialWith(ctx context.Context, secure *tls.Config) (net.Conn, error) {
	dial := x.options.Dialer
	if dial == nil || x.options.TLSConfig != nil { // which its dialer includes
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

// lookCloser finds out why a server has closed the connection, or doesn't answer over TLS.
func (x *examiner) lookCloser(ctx context.Context) {
	secure := x.options.TLSConfig
	if errors.Is(x.Err, context.DeadlineExceeded) && secure != nil {
		said, _ := x.ask(ctx, nil)
		x.SpeaksPlain = said != ""
	}
	if !x.Closed() {
		return
	}
	said, err := x.ask(ctx, secure)
	if text, refused := strings.CutPrefix(said, "-"); refused {
		x.Err = lastWords(text)
	} else if err != nil && !isClosed(err) {
		x.Err = err // such as TLS's reason
	} else if secure == nil {
		ctx, cancel := context.WithTimeout(ctx, x.patience)
		defer cancel()
		conn, err := x.dialWith(ctx, &tls.Config{InsecureSkipVerify: true}) // nothing is sent over it
		if x.SpeaksTLS = err == nil; x.SpeaksTLS {
			_ = conn.Close()
		}
	}
}

// ask sends one word, and returns the first line that the server says.
func (x *examiner) ask(ctx context.Context, secure *tls.Config) (line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.patience)
	defer cancel()
	conn, err := x.dialWith(ctx, secure)
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "PING\r\n") // some speak without being asked, and close
	line, err = bufio.NewReader(io.LimitReader(conn, 1000)).ReadString('\n')
	return strings.TrimSpace(line), err
}

// isClosed reports whether the server, or something before it, has closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// lastWords are a server's words before it closed the connection.
type lastWords string

func (w lastWords) Error() string { return string(w) }

// RedisError makes it an error of Redis.
func (lastWords) RedisError() {}

// note notes a server's refusal of a command. It returns any other error.
func (x *examiner) note(command string, err error) error {
	var refused redis.Error
	elsewhere := x.Cluster && IsMoved(err) // such as the key with the processes
	if err != redis.Nil && errors.As(err, &refused) && !elsewhere {
		x.Refusals = append(x.Refusals, Refusal{command, refused.Error()})
	}
	return unlessRefused(err)
}

func unlessRefused(err error) error {
	var refused redis.Error // as redis.Nil is, too
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// readInfo asks for all that the server says of itself. A user without the right to INFO is told nothing.
func (x *examiner) readInfo(ctx context.Context, cn *redis.Conn) error {
	reply, err := cn.Info(ctx).Result()
	x.Info = maps.Collect(infoFields(reply))
	return x.note("info", err)
}

// samples is how often the round trip is measured.
const samples = 5

// measure learns the round trip, and how far the server's clock is ahead of ours.
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

// readConfig asks for settings that INFO does not have. Many users, and those of hosted servers, may not.
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

// readProcesses asks which processes take locks there. A user who may not is told nothing about them.
func (x *examiner) readProcesses(ctx context.Context, cn *redis.Conn) error {
	key := x.prefix + ":processes:{processes}"
	now := strconv.FormatInt(time.Now().Add(x.Offset).UnixMilli(), 10)
	known, err := cn.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key + ":ends", Start: now, Stop: "+inf", ByScore: true, Count: protocol.MaxProcesses}).Result()
	x.Processes = make(map[string]string)
	for _, id := range known {
		if x.Processes[id], err = cn.HGet(ctx, key, id).Result(); err != nil {
			break
		}
	}
	return unlessRefused(err)
}

// tried are the commands that locks need, with arguments by which they do nothing to a missing key. A server checks ACLs first, so the reply shows
// whether the user has the right. Rights are tried rather than asked for: ACL DRYRUN and ACL GETUSER are for administrators, and unknown to older
// servers. Each command is tried by itself, and not in the script of OpTrial, so that all missing rights show at once, whether or not the user may
// run scripts.
var tried = []string{
	"exists", "get", "lindex 0", "lpop", "ltrim 0 0", "lset 0 x", "lrem 1 x", "pttl", "pexpire 1000", "zrange 0 0", "zscore x", "zrem x",
	"hget x", "hdel x",
}

// makers are the commands that would make a key. They are tried on a string, which lasts for a second at most: as it is no list,
// sorted set or hash, they fail and do nothing.
var makers = []string{"rpush x", "zadd 1 x", "hset x x"}

const makeString, remove = "set x PX 1000", "del"

// tryCommands tries each command of the scripts. INFO and TIME were used before.
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
	// A user who may not access the key makes none.
	deletes := !redis.HasErrorPrefix(del.Err(), "NOPERM") || strings.Contains(del.Err().Error(), " to access ")
	for _, command := range makers {
		if set.Err() == nil {
			try(makeString) // in case the other one is over
		} else if !deletes {
			x.NotTried = append(x.NotTried, strings.Fields(command)[0]) // nothing must be left
			continue
		}
		try(command)
		if deletes {
			try(remove)
		}
	}
	return x.exec(ctx, pipe)
}

// exec sends the commands to try, and notes refusals.
func (x *examiner) exec(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		_ = x.note(cmd.Name(), cmd.Err())
	}
	return unlessRefused(err)
}

func (x *examiner) channel() string { return x.prefix + ":wake:" + x.probe }

// trySubscribe subscribes on a second connection, as a process does while its calls wait. It also shows whether that connection reaches the same
// server.
func (x *examiner) trySubscribe(ctx context.Context, _ *redis.Conn) error {
	c, err := x.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, c.abandon)()
	return x.note("subscribe", c.session.Do(ctx, "subscribe", x.channel()).Err())
}

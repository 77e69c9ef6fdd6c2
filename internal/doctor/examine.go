package doctor

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// samples is how often the round trip is measured.
const samples = 5

// examination is what is learned of one master. Nothing is judged before all is known.
type examination struct {
	Settings
	name    string
	options *redis.Options
	probe   string // the key to try commands on, as rules name keys

	address     string // that was connected to, host:port; or unix
	unreachable error  // why it can't be looked at
	speaksTLS   bool   // it has closed a connection without TLS, and speaks TLS
	speaksPlain bool   // it doesn't answer to TLS, but without

	info       map[string]string
	config     map[string]string // empty if CONFIG may not be used
	roundTrips []time.Duration   // sorted
	offset     time.Duration     // of its clock from ours
	accuracy   time.Duration     // of the offset
	hasClock   bool
	rights     rights
	otherRun   string             // the run ID on a second connection, if that is another one
	processes  map[string]process // by their IDs
}

// run learns all that can be learned. It ends with the context, or when a reply takes too long.
func (x *examination) run(ctx context.Context) {
	cn, hangUp, err := x.connect(ctx)
	if err != nil {
		x.unreachable = err
		if errors.Is(err, context.DeadlineExceeded) && x.options.TLSConfig != nil {
			said, _ := x.ask(ctx, nil)
			x.speaksPlain = said != ""
		}
		return
	}
	defer hangUp()
	x.info = make(map[string]string)
	if err := x.greet(ctx, cn); err != nil {
		x.unreachable = err
		if isClosed(err) {
			x.lookCloser(ctx)
		}
		return
	}
	if x.is("sentinel") || x.rights.lacksOthers("+info") { // such as SELECT, without which there is no connection
		return
	}
	steps := []func(context.Context, *redis.Conn) error{x.measure, x.readConfig, x.readProcesses}
	if !x.is("cluster") {
		steps = append(steps, x.tryCommands, x.trySubscribe)
	}
	for _, step := range steps {
		if err := step(ctx, cn); err != nil {
			x.unreachable = err
			return
		}
	}
}

// is reports whether the server runs in a mode.
func (x *examination) is(mode string) bool {
	return cmp.Or(x.info["redis_mode"], x.info["server_mode"]) == mode // Redis, Valkey
}

// connect makes a connection, which ends with the context, or before it when hangUp is called.
func (x *examination) connect(ctx context.Context) (cn *redis.Conn, hangUp func(), err error) {
	dialing, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	raw, err := x.dial(dialing, x.options.TLSConfig)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // go-redis ignores the context while it reads
	o := *x.options
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return raw, nil }
	o.TLSConfig = nil // the connection has it
	o.MaxRetries, o.DialerRetries, o.PoolSize, o.MinIdleConns = -1, 1, 1, 0
	o.Protocol = 2 // in which the reply to SUBSCRIBE is one as to other commands
	o.DisableIdentity = true
	o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = x.Patience, x.Patience, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClient(&o)
	cn = client.Conn()
	return cn, func() {
		stop()
		_ = cn.Close()
		_ = client.Close()
		_ = raw.Close()
	}, nil
}

// dial connects with this TLS, or without any.
func (x *examination) dial(ctx context.Context, secure *tls.Config) (net.Conn, error) {
	dial := x.options.Dialer
	if dial == nil || x.options.TLSConfig != nil { // which its dialer includes
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, cmp.Or(x.options.Network, "tcp"), x.options.Addr)
	if err != nil {
		return nil, err
	}
	x.address = "unix"
	if raw.RemoteAddr().Network() == "tcp" {
		x.address = raw.RemoteAddr().String()
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

// ask sends one word, and returns the first line that the server says.
func (x *examination) ask(ctx context.Context, secure *tls.Config) (line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	conn, err := x.dial(ctx, secure)
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "PING\r\n") // some speak without being asked, and close
	line, err = bufio.NewReader(io.LimitReader(conn, 1000)).ReadString('\n')
	return strings.TrimSpace(line), err
}

// lookCloser finds out why a server has closed the connection.
func (x *examination) lookCloser(ctx context.Context) {
	said, err := x.ask(ctx, x.options.TLSConfig)
	if text, refused := strings.CutPrefix(said, "-"); refused {
		x.unreachable = refusal(text)
	} else if err != nil && !isClosed(err) {
		x.unreachable = err // such as TLS's reason
	} else if x.options.TLSConfig == nil {
		ctx, cancel := context.WithTimeout(ctx, x.Patience)
		defer cancel()
		conn, err := x.dial(ctx, &tls.Config{InsecureSkipVerify: true}) // nothing is sent over it
		if x.speaksTLS = err == nil; x.speaksTLS {
			_ = conn.Close()
		}
	}
}

// greet makes the connection ready, and asks the server what it is. A user without the right to INFO is told nothing.
func (x *examination) greet(ctx context.Context, cn *redis.Conn) error {
	reply, err := cn.Info(ctx).Result()
	if x.rights.note("+info", err) {
		err = nil
	}
	maps.Insert(x.info, infoFields(reply))
	return err
}

// infoFields reads the "name:value" lines of Redis's INFO.
func infoFields(text string) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for line := range strings.Lines(text) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
			if ok && !yield(name, value) {
				return
			}
		}
	}
}

// measure learns the round trip, and how far the server's clock is ahead of ours.
func (x *examination) measure(ctx context.Context, cn *redis.Conn) error {
	for range samples {
		sent := time.Now()
		now, err := cn.Time(ctx).Result()
		took := time.Since(sent)
		if x.rights.note("+time", err) {
			return nil
		}
		if isRefusal(err) {
			continue // the commands that are tried next show why
		} else if err != nil {
			return err
		}
		if !x.hasClock || took < 2*x.accuracy {
			x.hasClock, x.accuracy = true, took/2
			x.offset = now.Sub(sent.Add(took / 2))
		}
		x.roundTrips = append(x.roundTrips, took)
	}
	slices.Sort(x.roundTrips)
	return nil
}

// readConfig asks for settings that INFO does not have. Many users, and those of hosted servers, may not.
func (x *examination) readConfig(ctx context.Context, cn *redis.Conn) error {
	x.config = make(map[string]string)
	for _, name := range []string{"appendfsync", "no-appendfsync-on-rewrite", "save", "stop-writes-on-bgsave-error"} {
		values, err := cn.ConfigGet(ctx, name).Result()
		if isRefusal(err) {
			return nil
		} else if err != nil {
			return err
		}
		maps.Copy(x.config, values)
	}
	return nil
}

// roundTrip returns the median.
func (x *examination) roundTrip() time.Duration {
	if len(x.roundTrips) == 0 {
		return 0
	}
	return x.roundTrips[len(x.roundTrips)/2]
}

// uptime returns for how long the server has been running, if it says so.
func (x *examination) uptime() (uptime time.Duration, known bool) {
	seconds, err := strconv.Atoi(x.info["uptime_in_seconds"])
	return time.Duration(seconds) * time.Second, err == nil
}

// summary is what the table shows.
func (x *examination) summary() MasterReport {
	uptime, _ := x.uptime()
	return MasterReport{
		Name:            x.name,
		Version:         x.version(),
		RoundTrip:       x.roundTrip().Seconds(),
		ClockOffset:     x.offset.Round(time.Microsecond).Seconds(),
		Uptime:          int64(uptime.Seconds()),
		MaxmemoryPolicy: x.info["maxmemory_policy"],
		Persistence:     x.persistence(),
	}
}

// version returns that of the server, with its name if it isn't Redis.
func (x *examination) version() string {
	if v := x.info["valkey_version"]; v != "" {
		return "Valkey " + v
	}
	return x.info["redis_version"]
}

// persistence says in a few words what the server keeps on its disk.
func (x *examination) persistence() string {
	switch {
	case x.info["aof_enabled"] == "1" && x.config["appendfsync"] != "":
		return "aof " + x.config["appendfsync"]
	case x.info["aof_enabled"] == "1":
		return "aof"
	case x.config["save"] != "":
		return "rdb"
	case x.info["aof_enabled"] == "" || len(x.config) == 0:
		return ""
	}
	return "none"
}

package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// greet asks a server for its description, and then lets admits decide whether the server may vote. It runs on each new connection, before any other
// command.
func greet(ctx context.Context, c *conn, ready *time.Time, admits protocol.Admission) error {
	pipe := c.session.Pipeline()
	clock := pipe.Do(ctx, "time")
	sections := []*redis.StringCmd{pipe.Info(ctx, "server"), pipe.Info(ctx, "replication"), pipe.Info(ctx, "memory")}
	past := askPast(ctx, pipe, admits)
	_, err := pipe.Exec(ctx) // Exec authenticates first
	remembers, withheld := past()
	if withheld && cmp.Or(clock.Err(), sections[0].Err(), sections[1].Err(), sections[2].Err()) == nil {
		err = nil
	}
	received := time.Now()
	var refused redis.Error
	switch {
	case ready.IsZero():
		return err
	case err == nil, redis.HasErrorPrefix(err, "NOPERM"): // the server may vote even if INFO is denied
	case strings.Contains(sections[0].Val(), "_mode:sentinel"): // redis_mode or, in Valkey, server_mode; a sentinel has no TIME
	case errors.As(err, &refused):
		return &connectError{err.Error(), err}
	default:
		return err
	}
	if admits == nil {
		return nil
	}
	info := make(map[string]string)
	for _, section := range sections {
		maps.Insert(info, infoFields(section.Val()))
	}
	up, errUp := strconv.ParseInt(info["uptime_in_seconds"], 10, 64) // negative if the server's clock was set back since it started
	uptime, most := time.Duration(0), int64(protocol.MaxTime/time.Second)
	hasUptime := errUp == nil && -most <= up && up <= most
	if hasUptime {
		uptime = time.Duration(up) * time.Second
	}
	at, err := timeOf(clock)
	if err != nil {
		return err
	}
	if remembers.Known && remembers.Born == 0 { // begin the server's memory now, so that it ages even if this process leaves before the server has a vote
		if err := unlessRefused(c.session.Eval(ctx, serverScripts[begin].source, []string{admits.KeyOfBeats()}).Err()); err != nil {
			return err
		}
	}
	return admits.Admit(protocol.Server{
		RunID:     info["run_id"],
		Version:   info["redis_version"],
		Mode:      cmp.Or(info["redis_mode"], info["server_mode"]), // the names in Redis and in Valkey
		Uptime:    uptime,
		HasUptime: hasUptime,
		Role:      info["role"],
		Memory:    memoryOf(info),
		Time:      at,
		Sent:      *ready,
		Received:  received,

		CertificateUntil: certifiedUntil(c.raw),
		Past:             remembers,
	})
}

// askPast queues two questions: since when the server remembers processes, and whether it has lost its data. The returned function reads the replies,
// after the pipeline was sent. withheld reports whether the server has refused one of the questions.
func askPast(ctx context.Context, pipe redis.Pipeliner, admits protocol.Admission) func() (past protocol.Past, withheld bool) {
	if admits == nil || admits.KeyOfBeats() == "" {
		return func() (past protocol.Past, withheld bool) { return past, false }
	}
	born, lost := pipe.HGet(ctx, admits.KeyOfBeats(), "born"), pipe.HGet(ctx, admits.KeyOfBeats(), "lost")
	return func() (past protocol.Past, withheld bool) {
		past.Known = born.Err() == nil || born.Err() == redis.Nil
		if past.Born, _ = protocol.ParseNumber(born.Val(), protocol.MaxTime.Microseconds()); past.Born != 0 {
			past.Lost = lost.Val() == born.Val()
		}
		var refused redis.Error
		return past, errors.As(cmp.Or(born.Err(), lost.Err()), &refused)
	}
}

// certifiedUntil returns the time until which the server's certificate, and the certificates that have signed it, are valid; zero without TLS.
func certifiedUntil(raw net.Conn) (until time.Time) {
	secure, ok := raw.(*tls.Conn)
	if !ok {
		return until
	}
	state := secure.ConnectionState()
	chains := state.VerifiedChains
	if len(chains) == 0 && len(state.PeerCertificates) > 0 { // the client doesn't verify certificates
		chains = [][]*x509.Certificate{state.PeerCertificates[:1]}
	}
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(until) {
			until = first.NotAfter
		}
	}
	return until
}

// certificate makes a connection to get the server's certificate, and returns the time until which it is valid.
func (m *Master) certificate(ctx context.Context) (until time.Time, err error) {
	raw, err := m.open(ctx)
	if err != nil {
		return until, peerTrouble(err, ctx.Err(), true)
	}
	defer func() { _ = raw.Close() }()
	return certifiedUntil(raw), nil
}

func memoryOf(info map[string]string) protocol.Memory {
	number := func(name string) int64 {
		n, _ := protocol.ParseNumber(info[name], math.MaxInt64) // 0 if it is missing
		return n
	}
	return protocol.Memory{Used: number("used_memory"), Max: number("maxmemory"), Policy: info["maxmemory_policy"]}
}

// timeOf reads the reply to TIME. The time is 0 if the user lacks the right to TIME.
func timeOf(clock *redis.Cmd) (us int64, err error) {
	if clock.Err() != nil {
		return 0, nil
	}
	if fields, _ := clock.Val().([]any); len(fields) == 2 {
		if us, ok := serverTime(fmt.Sprint(fields[0]), fmt.Sprint(fields[1])); ok {
			return us, nil
		}
	}
	return 0, fmt.Errorf("%w (its time is none)", protocol.ErrMalformed)
}

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

// connectError is the reason why there is no connection. It has no Unwrap, because go-redis would return only the wrapped error if one occurs while
// it connects, and the text would be lost.
type connectError struct {
	text  string
	cause error
}

func (e *connectError) Error() string { return e.text }

func (e *connectError) Is(target error) bool {
	return target == protocol.ErrUnreachable || errors.Is(e.cause, target)
}

func (e *connectError) As(target any) bool { return errors.As(e.cause, target) }

// peerTrouble adds a guess about the peer to the error of a failed greeting. A Redis server gives its reason itself, so such an error gets no guess.
// late is the context's error.
func peerTrouble(err, late error, secure bool) error {
	var dial *net.OpError
	_, advice := remedyOfTLS(err)
	switch {
	case advice != "":
		return fmt.Errorf("%w (%s)", err, advice)
	case errors.As(err, &dial) && dial.Op == "dial":
		return err
	case errors.Is(late, context.DeadlineExceeded) && secure:
		return errors.New("no reply to the TLS handshake or the greeting: if the server does not speak TLS on this port, " + withoutTLS)
	case errors.Is(late, context.DeadlineExceeded):
		return errors.New("no reply to the greeting: the server hangs, or it is no Redis server")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, protocol.ErrMalformed), strings.HasPrefix(err.Error(), "redis: "):
		return fmt.Errorf("%w at the greeting: this is no Redis server, or it speaks TLS on this port (write rediss://), or it is a proxy such as twemproxy, which can't be used, or its maxclients are reached", err)
	}
	return err
}

// remedy is the explanation of a server's errors that begin with a text: why the server takes no locks at all, and what an operator can do.
type remedy struct {
	begins, why, advice string
	mark                error // ErrUnusable, unless a new connection must be made and greeted
}

const (
	grantRights = "grant this user the rights that docs/masters.md lists"
	asItIs      = "use Redis 6.2 or newer, or Valkey, without renamed commands, and without a proxy before it"
)

// remedies has all advice about refusals. A Locker's errors and redlock doctor have it.
var remedies = []remedy{
	{begins: "NOAUTH ", why: "it needs a password", advice: "write redis://user:password@ before its address, or set username and password"},
	{begins: "WRONGPASS ", why: "the user name or the password is wrong, or the user is off", advice: "correct them, or look at the user with ACL GETUSER"},
	{begins: "NOPERM ", why: "a right is missing", advice: grantRights},
	{begins: "ERR The user executing the script can't run", why: "a right is missing", advice: grantRights}, // Redis 7.0
	{begins: "ERR ACL failure in script", why: "a right is missing", advice: grantRights},                   // Redis 7.2
	{begins: "OOM ", why: "its memory is full", advice: "raise maxmemory or delete what fills it, with maxmemory-policy noeviction"},
	{begins: "READONLY ", why: "it is a replica", advice: "name its master or an independent server instead", mark: protocol.ErrReplica},
	{begins: "MASTERDOWN ", why: "it is a replica that has lost its master", advice: "name the master or an independent server instead", mark: protocol.ErrReplica},
	{begins: "MISCONF Errors writing to the AOF", why: "it can't write its append-only file", advice: "free space on its disk or, if nothing need be saved, set appendonly no"},
	{begins: "MISCONF ", why: "it can't save to disk", advice: "see its log or, if nothing need be saved, set stop-writes-on-bgsave-error no"},
	{begins: "NOREPLICAS ", why: "it has fewer replicas than min-replicas-to-write", advice: "bring them back, or set min-replicas-to-write 0, as locks need no replicas"},
	{begins: "LOADING ", why: "it is loading its data from disk", advice: "wait, as it takes locks again after that", mark: protocol.ErrLoading},
	{begins: "BUSY ", why: "a script has been running on it for too long", advice: "end the script with SCRIPT KILL"},
	{begins: "CLUSTERDOWN ", why: "its Redis Cluster lacks nodes or slots", advice: "see CLUSTER INFO and CLUSTER NODES; better name independent servers"},
	{begins: "MOVED ", why: "it is a node of a Redis Cluster, which has only some of the keys", advice: "name independent servers, or the whole cluster as redis-cluster://host:port"},
	{begins: "ERR max number of clients reached", why: "it has reached its limit of connections", advice: "raise its maxclients, or close other connections to it (CLIENT LIST)"},
	{begins: "ERR DB index is out of range", why: "it has no database of this number", advice: "leave the database out of its URL, or raise its databases"},
	{begins: "DENIED ", why: "it is in protected mode", advice: "set a password on its default user (requirepass) or, if only your own machines reach it, set protected-mode no"},
	{begins: "ERR unknown command", why: "it lacks a command", advice: asItIs},
	{begins: "ERR Unknown Redis command called from", why: "it lacks a command", advice: asItIs}, // the command of a script
}

const (
	speaksPlain = "it does not speak TLS"
	withoutTLS  = "write redis:// instead of rediss:// in masters, or use the server's TLS port (tls-port in redis.conf)"
)

// remedyOfTLS returns why TLS fails, and what an operator can do. Both are empty for other errors.
func remedyOfTLS(err error) (why, advice string) {
	var noTLS tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &noTLS):
		return speaksPlain, withoutTLS
	case errors.As(err, &authority):
		return "its certificate is signed by an authority that is unknown here",
			"if this authority is yours, trust its certificate (trust_pool in Caddy, --tls-ca, RootCAs in Go); if not, give the server one of an authority that is trusted (docs/operations.md, Rotation)"
	case errors.As(err, &host):
		return strings.TrimPrefix(host.Error(), "x509: "),
			"write a name of the certificate in masters, or set that name (server_name in Caddy, --tls-server-name, ServerName in Go), or issue a certificate for this name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate, or one that vouches for it, has expired or is not valid yet: " + strings.TrimPrefix(invalid.Error(), "x509: "),
			"renew it (docs/operations.md, Rotation), or correct the clock of this machine"
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + strings.TrimPrefix(invalid.Error(), "x509: "), "issue another certificate for the server"
	}
	_, alert, found := strings.Cut(err.Error(), "remote error: tls: ")
	alert, _, _ = strings.Cut(alert, " (") // the advice, if peerTrouble has added it
	switch {
	case !found:
		return "", ""
	case strings.Contains(alert, "certificate"), strings.Contains(alert, "decrypting"): // the signature of a certificate is wrong
		return "it refuses our certificate, or needs one: " + alert,
			"show a certificate that the server's authority has signed (client_auth in Caddy, --tls-cert and --tls-key, Certificates in Go), or set tls-auth-clients no"
	}
	return "TLS fails: " + alert, "compare the versions and ciphers of TLS on both sides (tls-protocols in redis.conf)"
}

func remedyOf(text string) *remedy {
	i := slices.IndexFunc(remedies, func(r remedy) bool { return strings.HasPrefix(text, r.begins) })
	if i < 0 {
		return nil
	}
	return &remedies[i]
}

// explained adds the remedy to a server's error, and marks the error if the server takes no locks now.
func explained(err error) error {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	text := refused.Error()
	if _, inner, found := strings.Cut(text, "@user_script: "); found && strings.HasPrefix(text, "ERR Error running script") {
		_, inner, _ = strings.Cut(inner, ": ") // before Redis 7.0, the line number precedes the error of the command
		text = "ERR " + inner
		if code, isCode := strings.CutPrefix(inner, "-"); isCode {
			text = code
		}
	}
	if r := remedyOf(text); r != nil {
		return protocol.Mark(fmt.Errorf("%w (%s: %s)", err, r.why, r.advice), cmp.Or(r.mark, protocol.ErrUnusable))
	}
	if strings.HasPrefix(text, "ASK ") || strings.HasPrefix(text, "TRYAGAIN ") {
		return fmt.Errorf("%w (the slot of this key is being moved to another node of the cluster: the key can be locked, renewed and released again once it is there)", err)
	}
	return err
}

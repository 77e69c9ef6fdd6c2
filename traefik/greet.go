package traefik

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"
)

// address is the configured address of a master.
type address struct {
	name           string // without credentials
	network, addr  string
	secure         bool
	user, password string
	db             string
}

// server is what a Redis server reports about itself when a connection is made.
type server struct {
	runID, version, mode, role, policy string

	uptime         time.Duration // by its wall clock, in whole seconds, up to one too high
	tellsUptime    bool
	time           int64     // its clock, in microseconds since 1970; 0 if unknown
	sent, received time.Time // the round trip of the greeting, between which the clock was read
}

// connectTime is how long making a connection may take.
const connectTime = time.Second

// connect dials a master, and asks what server it is.
func connect(a *address) (net.Conn, *bufio.Reader, *server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	dialer := &net.Dialer{}
	conn, err := dialer.DialContext(ctx, a.network, a.addr)
	if err != nil {
		return nil, nil, nil, err
	}
	if a.secure {
		host, _, _ := net.SplitHostPort(a.addr)
		secured := tls.Client(conn, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
		err = secured.HandshakeContext(ctx)
		if err != nil {
			_ = conn.Close()
			return nil, nil, nil, err
		}
		conn = secured
	}
	_ = conn.SetDeadline(time.Now().Add(connectTime))
	r := bufio.NewReader(conn)
	srv, err := greet(conn, r, a)
	if err != nil {
		_ = conn.Close()
		return nil, nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, r, srv, nil
}

func greet(conn net.Conn, r *bufio.Reader, a *address) (*server, error) {
	entry := ""
	entries := 0
	if a.password != "" {
		entries++
		if a.user != "" {
			entry += plainCommand("AUTH", a.user, a.password)
		} else {
			entry += plainCommand("AUTH", a.password)
		}
	}
	if a.db != "" {
		entries++
		entry += plainCommand("SELECT", a.db)
	}
	if entries > 0 {
		_, _ = conn.Write([]byte(entry)) // reading tells why it fails: a server says after the handshake that it wants a certificate
	}
	for i := 0; i < entries; i++ {
		ans, err := readAnswer(r)
		if err != nil {
			return nil, err
		}
		if ans.kind == '-' {
			return nil, errors.New(ans.text)
		}
	}
	srv := &server{sent: time.Now()}
	_, _ = conn.Write([]byte(plainCommand("TIME") + plainCommand("INFO", "server") + plainCommand("INFO", "replication") + plainCommand("INFO", "memory")))
	for i := 0; i < 4; i++ {
		ans, err := readAnswer(r)
		if err != nil {
			return nil, err
		}
		if ans.kind == '-' && !strings.HasPrefix(ans.text, "NOPERM") && !strings.HasPrefix(ans.text, "ERR unknown") { // it may vote without INFO
			return nil, errors.New(ans.text)
		}
		if i == 0 {
			srv.received = time.Now()
			srv.time = serverTime(ans)
		} else {
			srv.read(ans.text)
		}
	}
	return srv, nil
}

// read parses the lines of INFO.
func (srv *server) read(text string) {
	for _, line := range strings.Split(text, "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			srv.runID = value
		case "redis_version":
			srv.version = value
		case "redis_mode", "server_mode": // Redis, Valkey
			if srv.mode == "" {
				srv.mode = value
			}
		case "role":
			srv.role = value
		case "maxmemory_policy":
			srv.policy = value
		case "uptime_in_seconds":
			seconds, err := strconv.ParseInt(value, 10, 64)
			srv.uptime = time.Duration(seconds) * time.Second
			srv.tellsUptime = err == nil
		}
	}
}

// tooOld reports whether a version of Redis lacks what the scripts need.
func tooOld(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	return errMajor == nil && errMinor == nil && (major < 6 || major == 6 && minor < 2)
}

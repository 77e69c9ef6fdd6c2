package redis

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// patience is how long a connection may take to be made.
const patience = 3 * time.Second

// piped returns a master whose connections lead to serve, through a pipe: in a bubble, real ones would let no time pass.
func piped(secure *tls.Config, serve func(net.Conn)) *Master {
	m := New(redis.Options{Addr: "127.0.0.1:6379", TLSConfig: secure})
	m.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { serve(theirs); _ = theirs.Close() }()
		if secure == nil {
			return ours, nil
		}
		c := tls.Client(ours, secure)
		err := c.HandshakeContext(ctx)
		if err != nil {
			_ = ours.Close()
		}
		return c, err
	}
	return m
}

// silent is a peer that says nothing.
func silent(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// closes is a peer that reads what comes, and hangs up.
func closes(c net.Conn) {
	go silent(c)
	time.Sleep(time.Millisecond)
}

// web is a web server.
func web(c net.Conn) {
	_, _ = c.Read(make([]byte, 1<<10))
	go silent(c)
	_, _ = fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
}

// TestOtherPeers: who is no Redis server, or speaks TLS where we don't, or doesn't where we do, is told apart; and who says nothing, after
// the time that there is.
func TestOtherPeers(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Close()
	overTLS := func(c net.Conn) { // its certificate was valid in 2000
		s := tls.Server(c, &tls.Config{Certificates: secure.TLS.Certificates})
		_ = s.Handshake()
		closes(c)
	}
	client := &tls.Config{ServerName: "example.com"}
	for name, c := range map[string]struct {
		secure *tls.Config
		serve  func(net.Conn)
		say    string
		waits  bool
	}{
		"silent":         {nil, silent, "no reply to the greeting: the server hangs, or it is no Redis server", true},
		"silent to TLS":  {client, silent, "no reply to the TLS handshake or the greeting", true},
		"web server":     {nil, web, "no Redis server", false},
		"TLS":            {nil, overTLS, "write rediss://", false},
		"closes":         {nil, closes, "twemproxy", false},
		"no TLS":         {client, web, "write redis://", false},
		"unknown issuer": {client, overTLS, "certificate", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := piped(c.secure, c.serve).Connect(ctx, nil)
				if took := time.Since(began); !errors.Is(err, protocol.ErrUnreachable) || !strings.Contains(err.Error(), c.say) || c.waits != (took == patience) || !c.waits && took > time.Millisecond {
					t.Errorf("after %v: %v, want %q, after a wait: %v", took, err, c.say, c.waits)
				}
				time.Sleep(patience) // its side ends
			})
		})
	}
	t.Run("Redis, no TLS", func(t *testing.T) {
		m := New(redis.Options{Addr: redistest.Start(t, 1)[0].Addr(), TLSConfig: client})
		for patience := 300 * time.Millisecond; ; patience *= 2 { // on a busy machine, dialing alone may take that long
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := m.Connect(ctx, nil)
			cancel()
			if err != nil && strings.Contains(err.Error(), "write redis://") {
				return
			}
			if err == nil || patience > time.Minute {
				t.Fatal(err)
			}
		}
	})
}

// told is an Admission that keeps what a server says of itself.
type told struct{ protocol.Server }

func (*told) KeyOfBeats() string { return "" }

func (t *told) Admit(s protocol.Server) error { t.Server = s; return nil }

// TestNegativeUptime: a server whose clock was set back since it started reports its uptime all the same.
func TestNegativeUptime(t *testing.T) {
	said := helloSaid + timeSaid + strings.Repeat(strings.Replace(infoSaid, ":100", ":-99", 1), 3)
	m := New(redis.Options{Addr: "server:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
		return monologue{text: bytes.NewReader([]byte(said))}, nil
	}})
	var s told
	if c, err := m.Connect(t.Context(), &s); err != nil || !s.HasUptime || s.Uptime != -99*time.Second {
		t.Errorf("%+v, %v", s, err)
	} else {
		c.Close()
	}
}

// TestGreeting: each fact about a server is read from its greeting, or is said here to have another origin: TLS, and what beats have told.
func TestGreeting(t *testing.T) {
	info := "run_id:0123456789\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nuptime_in_seconds:100\r\nrole:master\r\nused_memory:1\r\nmaxmemory:2\r\nmaxmemory_policy:noeviction\r\n"
	said := helloSaid + timeSaid + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", len(info), info), 3)
	m := New(redis.Options{Addr: "server:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
		return monologue{text: bytes.NewReader([]byte(said))}, nil
	}})
	var s told
	c, err := m.Connect(t.Context(), &s)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	var unread []string
	for _, of := range []any{s.Server, s.Memory} {
		for field, value := range reflect.ValueOf(of).Fields() {
			if value.IsZero() {
				unread = append(unread, field.Name)
			}
		}
	}
	if got, want := strings.Join(unread, " "), "CertificateUntil Past"; got != want {
		t.Errorf("greet.go doesn't set %q of a server, want %q", got, want)
	}
}

// TestDialerIgnoresItsContext: the connection that it makes too late is closed.
func TestDialerIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, closed := time.Now(), make(chan struct{})
		m := piped(nil, func(c net.Conn) { silent(c); close(closed) })
		dial := m.dial
		m.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(2 * patience)
			return dial(ctx, network, addr)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := m.Connect(ctx, nil); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, protocol.ErrUnreachable) || time.Since(began) != patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		<-closed
	})
}

// talks is a peer that gives a reply to each command; none if that is empty.
func talks(reply func(command string) string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			var n, size int
			if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
				return
			}
			var words []string
			for range n {
				if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
					return
				}
				word := make([]byte, size+2)
				if _, err := io.ReadFull(in, word); err != nil {
					return
				}
				words = append(words, string(word[:size]))
			}
			if _, err := io.WriteString(c, reply(strings.ToUpper(words[0]))); err != nil {
				return
			}
		}
	}
}

// TestSilentSubscription: a subscription is asked for a sign of life when it is silent. It ends, after the patience, if none comes.
func TestSilentSubscription(t *testing.T) {
	const signs = 5
	for name, last := range map[string]string{"alive": subscribed, "woken": published, "not woken": "*3\r\n$7\r\nmessage\r\n$7\r\nprocess\r\n$5\r\nhello\r\n"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, ready, woken := 0, 0, 0
				m := piped(nil, talks(func(command string) string {
					if command != "SUBSCRIBE" {
						return helloSaid
					}
					asked++
					switch {
					case asked == 1:
						return subscribed
					case asked < 1+signs:
						return last
					}
					return ""
				}))
				began := time.Now()
				err := m.Listen(t.Context(), "process", patience, func() { ready++ }, func(protocol.WakeUp) { woken++ })
				var late net.Error
				if !errors.As(err, &late) || !late.Timeout() {
					t.Errorf("it ends by %v", err)
				}
				if took := time.Since(began); took != signs*quiet+patience || asked != 1+signs || ready != 1 || (woken > 0) != (name == "woken") {
					t.Errorf("it ends after %v, asked %d times, ready %d times, woken %d times", took, asked, ready, woken)
				}
			})
		})
	}
}

const tooLong = "$9223372036854775806\r\n"

// TestLies: what breaks the limits of replies ends the connection.
func TestLies(t *testing.T) {
	conversation := func(said string) *Master {
		return New(redis.Options{Addr: "127.0.0.1:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
			return monologue{text: bytes.NewReader([]byte(said))}, nil
		}})
	}
	malformed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, protocol.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	const most = "9223372036854775807"
	for said, lies := range map[string][]string{
		heldSaid: {
			strings.Replace(heldSaid, ":1\r\n", ":999\r\n", 1),   // a slot that there is none
			strings.Replace(heldSaid, ":2\r\n:1", ":9\r\n:1", 1), // no status
			strings.ReplaceAll(heldSaid, ":1500", ":"+most), strings.ReplaceAll(heldSaid, ":1764000000000000", ":-"+most),
			strings.ReplaceAll(heldSaid, "$5\r\n", tooLong), "*" + most + heldSaid[2:], "*-2" + heldSaid[2:],
		},
		granted: {strings.Replace(granted, ":1764000000000000", ":"+most, 1), strings.Replace(granted, ":1764000000000000", ":-1", 1), strings.Replace(granted, "*3", "*2", 1), ":" + most + "\r\n"},
	} {
		for i, text := range append([]string{said}, lies...) {
			c := &conn{in: bufio.NewReader(strings.NewReader(text))}
			err := c.Receive([]*protocol.Command{{Op: protocol.OpAcquire, Key: "redlock:{key}", Slots: 2}})
			if i == 0 && err != nil {
				t.Errorf("%q: %v", text, err)
			} else if i > 0 {
				malformed(text, err)
			}
		}
	}
	for _, lie := range []string{"*3\r\n" + tooLong, "*3\r\n$7\r\nmessage\r\n:1\r\n*-1\r\n", tooLong, ":1\r\n"} {
		malformed("a subscription that says "+lie, conversation(helloSaid+subscribed+lie).Listen(t.Context(), "process", time.Minute, func() {}, nil))
	}
	for _, lie := range []string{tooLong, "*1073741824\r\n"} {
		if _, err := conversation(lie).Connect(t.Context(), nil); !errors.Is(err, protocol.ErrUnreachable) {
			t.Errorf("a greeting that says %q: %v", lie, err)
		}
	}
}

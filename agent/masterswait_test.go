package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// pipes is a listener in memory, in whose connections time can be virtual.
type pipes struct {
	come   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{come: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// client returns a client that connects to the listener.
func (p *pipes) client(t testing.TB) *http.Client {
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		p.come <- there
		return here, nil
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Minute}
}

// TestMastersWait: while too few masters have a vote, a client is refused after a minute, or after its wait or what it has said of masters. The library's
// test has all outages and calls.
func TestMastersWait(t *testing.T) {
	inBubble(t, func(t *testing.T, net *simnet.Net, locker *redlock.Locker, client *http.Client) {
		time.Sleep(time.Second)
		for _, s := range net.Servers {
			s.Hang()
		}
		knows := time.Now()
		_, _ = locker.TryLock(t.Context(), "any")
		var all sync.WaitGroup
		for body, want := range map[string]time.Duration{
			`{"key":"a"}`:                                 time.Minute,
			`{"key":"b","once_per":"5s"}`:                 5 * time.Second,
			`{"key":"k","once_per":"10s","wait":"3s"}`:    3 * time.Second,
			`{"key":"l","once_per":"2h","wait":"4h"}`:     time.Minute,
			`{"key":"c","wait":"20s"}`:                    20 * time.Second,
			`{"key":"d","masters_wait":"7s"}`:             7 * time.Second,
			`{"key":"e","try":true}`:                      0,
			`{"key":"f","wait":"0s"}`:                     0,
			`{"key":"g","masters_wait":"0s"}`:             0,
			`{"key":"h","wait":"5m","masters_wait":"2m"}`: 2 * time.Minute,
			`{"keys":["i","j"],"concurrency":[3,1]}`:      time.Minute,
		} {
			all.Go(func() {
				h := post(t, client, "/v1/lock", body)
				text, _ := io.ReadAll(h.response.Body)
				waited := time.Since(knows)
				if h.response.StatusCode != http.StatusConflict || h.response.Header.Get("Redlock-Outcome") != "no_quorum" || !strings.Contains(string(text), "/problems.md#no_quorum") {
					t.Errorf("%s: status %d, outcome %s: %s", body, h.response.StatusCode, h.response.Header.Get("Redlock-Outcome"), text)
				}
				if waited < want || waited > want+time.Second {
					t.Errorf("%s: after %v, want %v", body, waited, want)
				}
			})
		}
		all.Wait()
	})
}

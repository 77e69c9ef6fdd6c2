package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
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

// TestPatienceWithMasters: without masters a client is refused after a minute, or after the whole of its wait.
func TestPatienceWithMasters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := newLocker(t, []string{"redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"})
		p := newPipes()
		client := p.client(t)
		serveOn(t, agent.New(locker), p)
		time.Sleep(time.Second) // it is known that nobody listens there
		var all sync.WaitGroup
		for body, want := range map[string]time.Duration{
			`{"key":"a"}`:                   time.Minute,
			`{"key":"a","pulse":"3s"}`:      time.Minute, // behind the other
			`{"key":"b","once_per":"10s"}`:  time.Minute,
			`{"key":"c","wait":"20s"}`:      20 * time.Second,
			`{"key":"d","wait":"5m"}`:       5 * time.Minute,
			`{"key":"e","try":true}`:        0,
			`{"key":"e","wait":"0s"}`:       0,
			`{"keys":["a","f"]}`:            time.Minute,
			`{"key":"g","concurrency":[3]}`: time.Minute,
		} {
			all.Go(func() {
				start := time.Now()
				h := post(t, client, "/v1/lock", body)
				text, _ := io.ReadAll(h.response.Body)
				waited := time.Since(start)
				if h.response.StatusCode != http.StatusConflict || h.response.Header.Get("Redlock-Outcome") != "no_quorum" || !strings.Contains(string(text), "/problems.md#no_quorum") {
					t.Errorf("%s: status %d, outcome %s: %s", body, h.response.StatusCode, h.response.Header.Get("Redlock-Outcome"), text)
				}
				if waited < want || waited > want+3*time.Second {
					t.Errorf("%s: after %v, want %v", body, waited, want)
				}
			})
		}
		all.Wait()
	})
}

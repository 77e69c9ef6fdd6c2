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

	"github.com/caddy-redlock/caddy-redlock/agent"
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

// TestMastersWait: while too few masters have a vote, a client is refused after a minute, or after its wait or what it has said of masters, counted from
// when the agent knows, whatever the masters do.
func TestMastersWait(t *testing.T) {
	for name, away := range map[string]func(*simnet.Server){"refuse": (*simnet.Server).Kill, "hang": (*simnet.Server).Hang, "full": (*simnet.Server).Fill, "restarted": (*simnet.Server).Reboot} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				locker := net.Locker(t, redlock.WithRestartGuard(10*time.Minute))
				p := newPipes()
				client := p.client(t)
				serveOn(t, agent.New(locker), p)
				time.Sleep(time.Second)
				for _, s := range net.Servers {
					away(s)
				}
				knows := time.Now()
				_, _ = locker.TryLock(t.Context(), "any")
				var all sync.WaitGroup
				for body, c := range map[string]struct{ at, want time.Duration }{
					`{"key":"a"}`:                     {0, time.Minute},
					`{"key":"a","pulse":"3s"}`:        {0, time.Minute}, // behind the other
					`{"key":"a","masters_wait":"7s"}`: {2 * time.Second, 7 * time.Second},
					`{"key":"b","once_per":"10s"}`:    {0, time.Minute},
					`{"key":"c","wait":"20s"}`:        {0, 20 * time.Second},
					`{"key":"d","wait":"5m"}`:         {0, time.Minute},
					`{"key":"e","try":true}`:          {0, 0},
					`{"key":"e","wait":"0s"}`:         {0, 0},
					`{"keys":["a","f"]}`:              {0, time.Minute},
					`{"key":"g","concurrency":[3]}`:   {0, time.Minute},
					`{"key":"h","masters_wait":"0s"}`: {0, 0},
					`{"key":"i"}`:                     {40 * time.Second, time.Minute},
					`{"key":"j"}`:                     {70 * time.Second, 70 * time.Second},
					`{"key":"k","wait":"5m","pulse":"100ms","masters_wait":"2m"}`: {70 * time.Second, 2 * time.Minute},
				} {
					if name == "restarted" { // it is known that they come later than that
						c.want = c.at
					}
					all.Go(func() {
						time.Sleep(time.Until(knows.Add(c.at)))
						h := post(t, client, "/v1/lock", body)
						text, _ := io.ReadAll(h.response.Body)
						waited := time.Since(knows)
						if h.response.StatusCode != http.StatusConflict || h.response.Header.Get("Redlock-Outcome") != "no_quorum" || !strings.Contains(string(text), "/problems.md#no_quorum") {
							t.Errorf("%s: status %d, outcome %s: %s", body, h.response.StatusCode, h.response.Header.Get("Redlock-Outcome"), text)
						}
						if waited < c.want || waited > c.want+time.Second {
							t.Errorf("%s: after %v, want %v", body, waited, c.want)
						}
					})
				}
				all.Wait()
				if h := post(t, client, "/v1/lock", `{"key":"a","masters_wait":"-1s"}`); h.response.StatusCode != http.StatusBadRequest {
					t.Errorf("a negative wait for masters: %d", h.response.StatusCode)
				}
			})
		})
	}
}

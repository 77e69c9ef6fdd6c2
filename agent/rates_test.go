package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestRates requires how often a client hears of its agent within a minute, at least and at most.
func TestRates(t *testing.T) {
	for body, c := range map[string]struct{ marks, least, most int }{
		`{"key":"a"}`:                        {0, 17, 19},
		`{"key":"a","ttl":"150ms"}`:          {0, 800, 1300},
		`{"key":"a","quiet":true}`:           {0, 0, 0},
		`{"key":"a","quiet":true} and marks`: {1000, 900, 1000},
		`{"key":"busy"}`:                     {0, 0, 0},
		`{"key":"busy","pulse":"3s"}`:        {0, 19, 20},
		`{"key":"busy","pulse":"10ms"}`:      {0, 5800, 6001}, // none may be shorter
	} {
		t.Run(body, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _ *simnet.Net, locker *redlock.Locker, client *http.Client) {
				busy, err := locker.TryLock(t.Context(), "busy")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = busy.Unlock() }()
				var heard atomic.Int64
				ctx, cancel := context.WithCancel(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(int, textproto.MIMEHeader) error { heard.Add(1); return nil },
				}))
				said, says := io.Pipe()
				text, _, _ := strings.Cut(body, " and")
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://redlock/v1/lock", io.MultiReader(strings.NewReader(text+"\n"), said))
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					response, err := client.Do(r)
					if err != nil {
						return // it was canceled
					}
					defer response.Body.Close()
					for lines := bufio.NewScanner(response.Body); lines.Scan(); {
						heard.Add(1)
					}
				}()
				time.Sleep(time.Second)
				before := heard.Load()
				for range c.marks {
					_, _ = says.Write([]byte("\n"))
					time.Sleep(time.Minute / time.Duration(c.marks))
				}
				if c.marks == 0 {
					time.Sleep(time.Minute)
				}
				if n := int(heard.Load() - before); n < c.least || n > c.most {
					t.Errorf("%d times a minute, want %d to %d", n, c.least, c.most)
				}
				cancel()
				_ = says.Close()
				<-ended
			})
		})
	}
}

// TestPatience: so long an agent waits for who is silent, or reads nothing.
func TestPatience(t *testing.T) {
	const post = "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		says string
		want time.Duration
	}{
		"who says nothing":       {"", 5 * time.Second},
		"the rest of a head":     {"POST /v1/lock HTTP/1.1\r\nHost:", 5 * time.Second},
		"a body":                 {post, 15 * time.Second},
		"the rest of a body":     {post + "5\r\n{\"key", 15 * time.Second},
		"another request":        {"GET /healthz HTTP/1.1\r\nHost: redlock\r\n\r\n", 2 * time.Minute},
		"one that isn't allowed": {"POST /v1/lock HTTP/1.1\r\nHost: other\r\nContent-Length: 9\r\n\r\n", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, network *simnet.Net) {
				p := newPipes()
				serveOn(t, agent.New(network.Locker(t)), p)
				here, there := net.Pipe()
				p.come <- there
				go func() { _, _ = fmt.Fprint(here, c.says) }()
				start := time.Now()
				_, _ = io.Copy(io.Discard, here)
				if took := time.Since(start); took < c.want || took > c.want+time.Second {
					t.Errorf("the connection ended after %v, want %v", took, c.want)
				}
			})
		})
	}
}

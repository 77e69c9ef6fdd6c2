//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// metricsAt waits until the agent has logged where it serves metrics.
func metricsAt(t *testing.T, log *redistest.Log) (address string) {
	t.Helper()
	eventually(t, "the agent serves metrics", func() bool {
		found := regexp.MustCompile(`"agent serves metrics" .*address=(\S+)`).FindStringSubmatch(log.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	return address
}

// TestAgentMetrics: Prometheus needs no token, and finds those who were refused; nothing else is served there. A second agent can't have the address.
func TestAgentMetrics(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	for _, listen := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "metrics")} {
		log := new(redistest.Log)
		a := newAgent(t, servers, "--metrics-listen", listen)
		a.log = log
		a.start()
		address := metricsAt(t, log)
		network := "tcp"
		if strings.HasPrefix(listen, "unix:") {
			network, listen = "unix", "unix:"+address
		} else {
			listen = address
		}
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		t.Cleanup(client.CloseIdleConnections)
		_ = a.hold(`{"key":"s3cret` + network + `"}`)
		_ = a.lock(`{"key":"s3cret` + network + `","try":true}`)
		for path, want := range map[string]string{
			"/metrics": `redlock_requests_total{outcome="held",rule="/v1/lock"} 1`, "/healthz": "", "/readyz": "",
			"/console/masters": "404", "/console/locks": "404", "/v1/lock": "404", "/": "404",
		} {
			response, err := client.Get("http://localhost" + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if text := response.Status + string(body); !strings.Contains(text, want) || strings.HasPrefix(text, "200") == (want == "404") || strings.Contains(text, "s3cret") {
				t.Errorf("%s: %s", path, text)
			}
		}
		second := exec.Command(program, "agent", "--masters", "memory://", "--listen", "unix:"+filepath.Join(t.TempDir(), "s"), "--metrics-listen", listen)
		if _, text, code := finish(t, second); code != exitError || !strings.Contains(text, "--metrics-listen "+listen+": ") {
			t.Errorf("a second agent: %d, %s", code, text)
		}
	}
}

// TestAgentReplacedMetrics: an agent that is replaced gives up its port for metrics, although it still has a holder.
func TestAgentReplacedMetrics(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	log := new(redistest.Log)
	first := newAgent(t, servers, "--metrics-listen", "127.0.0.1:0")
	first.log = log
	first.start()
	address := metricsAt(t, log)
	holder := first.hold(`{"key":"k"}`)
	second := newAgent(t, servers, "--replace")
	second.path = first.path
	second.start()
	eventually(t, "nobody listens there", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	select {
	case <-first.exited:
		t.Error("the first agent ended while a client held a lock")
	default:
	}
	_ = holder.Close()
	first.requireExit(0)
}

// TestMetricsTaken: an agent that replaces another one waits for its port, but not for ever; any other agent doesn't start.
func TestMetricsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	a := agentCommand{metrics: taken.Addr().String()}
	if l, err := a.metricsListener(); l != nil || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, %v", l, err)
	}
	a.socket.replace = true
	if l, err := a.metricsListener(); l != nil || err != nil {
		t.Errorf("with --replace: %v, %v", l, err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		until := func(free time.Duration) func() (net.Listener, error) {
			return func() (net.Listener, error) {
				if time.Since(began) < free {
					return nil, os.ErrExist
				}
				return taken, nil
			}
		}
		if l, err := listenSoon(t.Context(), until(1500*time.Millisecond)); l != taken || err != nil || time.Since(began) > 1600*time.Millisecond {
			t.Errorf("%v, %v after %v", l, err, time.Since(began))
		}
		began = time.Now()
		if l, err := listenSoon(t.Context(), until(time.Hour)); l != nil || err != os.ErrExist || time.Since(began) != takeOver {
			t.Errorf("%v, %v after %v", l, err, time.Since(began))
		}
	})
}

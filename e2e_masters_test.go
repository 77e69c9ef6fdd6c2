package caddyredlock_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

const payRule = "redlock /orders/*/pay order:{path.1}\n"

// A quorum is enough, whether the others are gone or hung; less is none, and the masters are taken
// back as soon as they return.
func TestMastersFailAndReturn(t *testing.T) {
	const timeout = time.Second
	for _, test := range []struct {
		name          string
		fail, restore func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"hung", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := redistest.Start(t, 3)
			b := newBackend(t, func() {})
			option := mastersOption(servers, "timeout "+timeout.String())
			c := runCaddy(t, caddyfile(option, payRule+b.proxy()))
			orders := 0
			pay := func() answer {
				orders++ // a new key: what a failed attempt may have left is another test's
				return post(t, fmt.Sprintf("%s/orders/%d/pay", c.url, orders))
			}
			requireStatus(t, pay(), http.StatusOK)

			test.fail(servers[0])
			for range 3 {
				start := time.Now()
				requireStatus(t, pay(), http.StatusOK)
				if took := time.Since(start); took >= 2*timeout {
					t.Errorf("with one of three masters %s a request took %v, want less than %v", test.name, took, 2*timeout)
				}
			}

			test.fail(servers[1])
			for range 3 {
				requireStatus(t, pay(), http.StatusConflict)
			}
			served := b.servedTotal()

			test.restore(servers[1]) // and with it the quorum
			returned := time.Now()
			a := pay()
			for a.status == http.StatusConflict && time.Since(returned) < time.Second {
				time.Sleep(50 * time.Millisecond)
				a = pay()
			}
			requireStatus(t, a, http.StatusOK)
			if took := time.Since(returned); took > time.Second {
				t.Errorf("served again %v after the master had returned, want 1s", took)
			}
			if now := b.servedTotal(); now != served+1 {
				t.Errorf("%d requests were served without a quorum", now-served-1)
			}

			test.restore(servers[0])
			redistest.RequireNoKeys(t, servers)
		})
	}
}

// Two names of one server are one vote.
func TestOneServerUnderTwoNames(t *testing.T) {
	servers := redistest.Start(t, 2)
	servers[1].Kill()
	name := servers[0].URL()
	alias := strings.Replace(name, "127.0.0.1", "localhost", 1)
	c := runCaddy(t, caddyfile("redlock {\nmasters "+name+" "+alias+" "+servers[1].URL()+"\nrestart_guard off\n}", payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusConflict)
	requireLogLine(t, c, name, alias, "same server")
}

// A replica has no vote, even where it takes writes: it repeats what its master says.
func TestReplicaAmongTheMasters(t *testing.T) {
	servers := redistest.Start(t, 2)
	host, port, _ := strings.Cut(servers[0].Addr(), ":")
	replica := redistest.Start(t, 1, "--replicaof", host, port, "--replica-read-only", "no")[0]
	c := runCaddy(t, caddyfile(mastersOption(append(servers, replica), "timeout "+calm.String()), payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusOK)
	requireLogLine(t, c, replica.URL()+" is a replica")
	servers[1].Kill()
	eventually(t, "Caddy notices that a master is gone", func() bool {
		return post(t, c.url+"/orders/1/pay").status == http.StatusConflict
	})
	requireStatus(t, post(t, c.url+"/orders/2/pay"), http.StatusConflict)
}

// requireLogLine waits for a line in the log that holds all these texts.
func requireLogLine(t *testing.T, c *caddyProcess, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a line in the log with %q", texts), func() bool {
		for line := range strings.Lines(c.log.String()) {
			found := 0
			for _, text := range texts {
				if strings.Contains(line, text) {
					found++
				}
			}
			if found == len(texts) {
				return true
			}
		}
		return false
	})
}

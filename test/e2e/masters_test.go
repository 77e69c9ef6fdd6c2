package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const payRule = "redlock /orders/*/pay order:{path.1}\n"

// A Redis Cluster is a master as well.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2, 0)
	b := newBackend(t, func() {})
	c := runCaddy(t, caddyfile("redlock {\nmasters "+redistest.ClusterURL(nodes)+"\nrestart_guard off\ntimeout 3s\n}", payRule+b.proxy()))
	for order := range 8 { // on both nodes
		requireStatus(t, post(t, fmt.Sprintf("%s/orders/%d/pay", c.url, order)), http.StatusOK)
	}
}

// A quorum is enough, whether the other masters are killed or hung. Without a quorum nothing is served, until masters return.
func TestMastersFailAndReturn(t *testing.T) {
	needTime(t)
	t.Parallel()
	const timeout = 3 * time.Second
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
			pay := func() received {
				orders++ // a new key, because a failed attempt may have left a lock on the last one
				return post(t, fmt.Sprintf("%s/orders/%d/pay", c.url, orders))
			}
			requireStatus(t, pay(), http.StatusOK)

			test.fail(servers[0])
			for range 3 {
				requireStatus(t, pay(), http.StatusOK)
			}

			test.fail(servers[1])
			for range 3 {
				requireStatus(t, pay(), http.StatusConflict)
			}
			served := b.servedTotal()

			test.restore(servers[1]) // now there is a quorum again
			eventually(t, "a request is served again", func() bool {
				a := pay()
				if a.status != http.StatusConflict {
					requireStatus(t, a, http.StatusOK)
				}
				return a.status == http.StatusOK
			})
			if now := b.servedTotal(); now != served+1 {
				t.Errorf("%d requests were served without a quorum", now-served-1)
			}

			test.restore(servers[0])
			redistest.RequireNoKeys(t, servers)
		})
	}
}

// A server has one vote, even under two names.
func TestOneServerUnderTwoNames(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 2)
	servers[1].Kill()
	name := servers[0].URL()
	alias := strings.Replace(name, "127.0.0.1", "localhost", 1)
	c := runCaddy(t, caddyfile("redlock {\nmasters "+name+" "+alias+" "+servers[1].URL()+"\nrestart_guard off\n}", payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusConflict)
	requireLogLine(t, c, name, alias, "same server")
}

// A replica has no vote, even if it accepts writes: it only repeats its master.
func TestReplicaAmongTheMasters(t *testing.T) {
	t.Parallel()
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

// requireLogLine waits for a line of the log that contains all these texts.
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

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const rememberRule = "redlock {\n" + idempotent + "remember 1h\n}\n"

// till is a shop behind Caddys that remember what it answers.
type till struct {
	t    *testing.T
	shop *shop
	paid map[string]received // the first response to each payment
}

func newTill(t *testing.T) *till {
	return &till{t: t, shop: newShop(t), paid: make(map[string]received)}
}

// ask asks for a payment through a Caddy.
func (i *till) ask(c *caddyProcess, payment string) received {
	i.t.Helper()
	r := withBody(c.url, `{"amount":1}`, "Idempotency-Key", payment, "Authorization", "Bearer alice")
	r.Host = "127.0.0.1" // that of all Caddys, as behind a load balancer
	return send(i.t, r)
}

// answered is ask, until the masters answer in time, which on a busy machine they may not: nothing was done then.
func (i *till) answered(c *caddyProcess, payment string) (a received) {
	i.t.Helper()
	eventually(i.t, "the masters answer in time", func() bool {
		a = i.ask(c, payment)
		return a.header.Get("Redlock-Outcome") != "no_quorum"
	})
	return a
}

// runs returns how many requests the shop has served.
func (i *till) runs() int { return i.shop.runsOf("127.0.0.1") }

// pay makes a payment, which must run.
func (i *till) pay(c *caddyProcess, payment string) {
	i.t.Helper()
	before := i.runs()
	a := i.answered(c, payment)
	if a.status != http.StatusOK || i.runs() != before+1 || a.header.Get("Idempotency-Replayed") != "" {
		i.t.Fatalf("%s: %d %s, %d runs: want one and its response", payment, a.status, a.header.Get("Redlock-Outcome"), i.runs()-before)
	}
	i.paid[payment] = a
}

// requireReplay requires that a payment is answered as at first, without being made again.
func (i *till) requireReplay(c *caddyProcess, payment string) {
	i.t.Helper()
	before := i.runs()
	a := i.answered(c, payment)
	if !sameResponse(a, i.paid[payment]) || i.runs() != before || a.header.Get("Idempotency-Replayed") != "true" {
		i.t.Fatalf("%s: %d %s, %d runs, %.40q: want none, and the first response, %.40q", payment, a.status, a.header.Get("Redlock-Outcome"), i.runs()-before, a.body, i.paid[payment].body)
	}
}

// results returns the keys of the responses that a master has.
func results(s *redistest.Server) (keys []string) {
	for _, key := range s.Keys() {
		if strings.HasSuffix(key, ":result") {
			keys = append(keys, key)
		}
	}
	return keys
}

// requireResults waits until a master has this many responses.
func requireResults(t *testing.T, s *redistest.Server, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d responses on %s", n, s.Addr()), func() bool { return len(results(s)) == n })
}

// requireVotes waits until a Caddy has this many masters that vote.
func requireVotes(t *testing.T, c *caddyProcess, n float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v masters vote", n), func() bool {
		up := 0.0
		for name, value := range c.scrape(t) {
			if strings.HasPrefix(name, "master_up{") {
				up += value
			}
		}
		return up == n
	})
}

// TestRememberedResponsesSurvive: a response survives what docs/DESIGN.md says that it does, and where too little is known the request runs again. A
// server without a file forgets everything when it is killed, and has no vote for as long as the restart guard.
func TestRememberedResponsesSurvive(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	i := newTill(t)
	option := "redlock {\nmasters " + strings.Join(redistest.URLs(servers), " ") + "\nmax_ttl 5s\ntimeout 2s\n}"
	site := "redlock {\n" + idempotent + "remember 1h\nttl 5s\n}\n" + i.shop.proxy()
	c := runCaddy(t, caddyfile(option, site))
	requireVotes(t, c, 3)
	pay := func(payment string, stored int) {
		t.Helper()
		i.pay(c, payment)
		for _, s := range servers {
			eventually(t, fmt.Sprintf("%d responses on %s", stored, s.Addr()), func() bool { // also if it wasn't asked in time
				i.requireReplay(c, payment)
				return len(results(s)) == stored
			})
		}
	}
	empty := func(s *redistest.Server) {
		t.Helper()
		s.Kill()
		requireVotes(t, c, 2)
		s.Restart()
		requireVotes(t, c, 3) // a release with a response that it has missed may come again
	}

	pay("a", 1)
	servers[0].Pause()
	i.requireReplay(c, "a")
	servers[0].Resume()
	requireVotes(t, c, 3)
	pay("b", 2)
	empty(servers[0])
	servers[1].Pause() // so that the empty one is needed
	i.requireReplay(c, "b")
	servers[1].Resume()
	requireResults(t, servers[0], 1)
	empty(servers[1])
	servers[2].Pause()
	i.requireReplay(c, "b") // by the one that was repaired
	before := i.runs()
	if a := i.answered(c, "a"); a.status != http.StatusOK || i.runs() != before+1 {
		t.Errorf("what the masters that answer have lost: %d, %d runs", a.status, i.runs()-before)
	}
	servers[0].Kill()
	before = i.runs()
	// The one master may have been handed the response meanwhile: then it is known that the payment was made.
	if a := i.ask(c, "b"); !slices.Contains([]string{"409 no_quorum", "503 unreadable"}, fmt.Sprint(a.status, " ", a.header.Get("Redlock-Outcome"))) || i.runs() != before {
		t.Errorf("with one master of three: %d %s, %d runs", a.status, a.header.Get("Redlock-Outcome"), i.runs()-before)
	}
	servers[2].Resume()
}

// TestRememberedResponsesSurviveRestarts: servers that write to a file before they answer forget nothing, if all of them and all Caddys end at once.
func TestRememberedResponsesSurviveRestarts(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, "--appendonly", "yes", "--appendfsync", "always")
	i := newTill(t)
	config := caddyfile(mastersOption(servers, "timeout "+calm.String()), rememberRule+i.shop.proxy())
	c := runCaddy(t, config)
	i.pay(c, "a")
	for _, s := range servers {
		s.Kill()
	}
	_ = c.cmd.Process.Kill()
	<-c.exited
	for _, s := range servers {
		s.Restart()
	}
	i.requireReplay(runCaddy(t, config), "a")
}

// TestRememberedInTheProcess: without masters a response survives a reload, and the log warns that it doesn't survive a restart.
func TestRememberedInTheProcess(t *testing.T) {
	t.Parallel()
	i := newTill(t)
	c := runCaddy(t, caddyfile("", rememberRule+i.shop.proxy()))
	i.pay(c, "a")
	if a := c.load(t, caddyfile("", "header Reloaded yes\n"+rememberRule+i.shop.proxy())); a.status != http.StatusOK {
		t.Fatalf("reload: %d %s", a.status, a.body)
	}
	i.requireReplay(c, "a")
	requireLogLine(t, c, `"level":"warn"`, "responses are remembered in this process's memory")
}

// TestRememberByOtherSettings: another Caddy with other settings of the rule, and one that was reloaded, know what the first has answered.
func TestRememberByOtherSettings(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	i := newTill(t)
	option := mastersOption(servers, "timeout "+calm.String())
	c := runCaddy(t, caddyfile(option, rememberRule+i.shop.proxy()))
	other := runCaddy(t, caddyfile(option, "redlock {\nname other\n"+idempotent+"remember 2h\nremember_size 1KB\nremember_status 404\nwait 3s\nttl 7s\n}\n"+i.shop.proxy()))
	i.pay(c, "a")
	i.requireReplay(other, "a")
	if a := c.load(t, caddyfile(mastersOption(servers, "timeout 3s"), rememberRule+i.shop.proxy())); a.status != http.StatusOK {
		t.Fatalf("reload: %d %s", a.status, a.body)
	}
	i.requireReplay(c, "a")
	i.pay(c, "b")
	i.requireReplay(other, "b")
}

// keyFile returns a file with a key for responses, all of whose bytes are equal.
func keyFile(t *testing.T, b byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(b), 32)))
	if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEncryptedResponses: with keys the masters can't read a response. Keys can be replaced one after the other, and a Caddy without the right one
// refuses a repeat, which would otherwise run again; so does one with it, if the response was tampered with.
func TestEncryptedResponses(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	i := newTill(t)
	first, second := keyFile(t, 'a'), keyFile(t, 'b')
	with := func(keys ...string) *caddyProcess {
		t.Helper()
		lines := []string{"timeout " + calm.String()}
		if len(keys) > 0 {
			lines = append(lines, "remember_keys "+strings.Join(keys, " "))
		}
		return runCaddy(t, caddyfile(debugLog+mastersOption(servers, lines...), rememberRule+i.shop.proxy()))
	}
	readable := func(payment string) (found bool) {
		receipt, _, _ := strings.Cut(i.paid[payment].body, "\n")
		for _, s := range servers {
			for _, key := range results(s) {
				found = found || strings.Contains(s.Client().HGet(t.Context(), key, "data").Val(), receipt)
			}
		}
		return found
	}
	open, sealed, rotated, wrong := with(), with(first), with(second, first), with(second)
	i.pay(open, "open")
	i.pay(sealed, "sealed")
	if !readable("open") || readable("sealed") {
		t.Errorf("the masters can read what is not encrypted: %v, what is: %v", readable("open"), readable("sealed"))
	}
	i.requireReplay(sealed, "sealed")
	i.requireReplay(sealed, "open") // from before there was a key
	i.requireReplay(rotated, "sealed")
	i.pay(rotated, "rotated")
	i.requireReplay(wrong, "rotated")
	before := i.runs()
	for _, c := range []*caddyProcess{wrong, open} {
		if a := i.ask(c, "sealed"); a.status != http.StatusInternalServerError || i.runs() != before {
			t.Errorf("without the right key: %d %q, %d runs", a.status, a.body, i.runs()-before)
		}
	}
	for _, s := range servers { // by who can write to the masters
		for _, key := range results(s) {
			data := []byte(s.Client().HGet(t.Context(), key, "data").Val())
			data[len(data)-1] ^= 1
			if err := s.Client().HSet(t.Context(), key, "data", data).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a := i.ask(rotated, "sealed"); a.status != http.StatusInternalServerError || i.runs() != before {
		t.Errorf("a response that was tampered with: %d %q, %d runs", a.status, a.body, i.runs()-before)
	}
	receipt, _, _ := strings.Cut(i.paid["sealed"].body, "\n")
	for _, c := range []*caddyProcess{open, sealed, rotated, wrong} {
		for _, text := range []string{receipt, "Bearer alice", strings.Repeat("a", 32), base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", 32)))} {
			if strings.Contains(c.log.String(), text) {
				t.Errorf("the log shows %q", text)
			}
		}
	}
}

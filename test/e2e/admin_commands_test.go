package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestAdminCommands has the situation of docs/commands.md: of three masters one is down, a key is held, and a request of this process
// and another process wait for it.
func TestAdminCommands(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	b, release := newHeldBackend(t)
	defer release()
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), "redlock order:{path.1} {\nname pay\nwait 5m\n}\n"+b.proxy()))
	command := func(want int, args ...string) string {
		t.Helper()
		return commandAt(t, c.admin, want, args...)
	}
	if text := command(3, "inspect", "order:42"); !strings.Contains(text, "Nobody holds the key") {
		t.Errorf("a free key: %s", text)
	}
	if text := command(0, "locks"); text != "0 held, 0 waiting\n" {
		t.Errorf("no keys: %s", text)
	}
	wait := b.hold(t, c.url+"/orders/42")
	waitNext := sendAll(t, request(c.url+"/orders/42"))
	other, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm), redlock.WithInstance("web2/4711"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() {
		_, err := other.Lock(ctx, "order:42")
		waits <- err
	}()
	eventually(t, "two wait", func() bool {
		var seen console.Inspection
		var locks console.Locks
		unmarshal(t, command(0, "inspect", "order:42", "--json"), &seen)
		unmarshal(t, command(0, "locks", "--json"), &locks)
		return len(seen.Lockers) == 1 && len(seen.Lockers[0].Masters[0].Queue) == 1 && len(seen.Lockers[0].Masters[1].Queue) == 1 && locks.Waiting == 1
	})
	servers[2].Kill()
	eventually(t, "Caddy notices that a master is gone", func() bool { return strings.Contains(command(0, "masters"), "unreachable") })
	requireDocumented(t, "caddy redlock masters", command(0, "masters"))
	requireDocumented(t, "caddy redlock locks --prefix order:", command(0, "locks", "--prefix", "order:"))
	var locks console.Locks
	unmarshal(t, command(0, "locks", "--json"), &locks)
	fence := fmt.Sprint(locks.Locks[0].Fence)
	var inspected string
	eventually(t, "the masters know the fence", func() bool { // they forget it after 5 s, until the lease is renewed
		inspected = command(0, "inspect", "order:42")
		return strings.Count(inspected, fence) == 3 // the lock's, and that of two masters
	})
	requireDocumented(t, "caddy redlock inspect order:42", inspected)
	if text := command(0, "locks", "--prefix", "other:"); text != "0 held, 0 waiting\n" {
		t.Errorf("keys with another prefix: %s", text)
	}

	eventually(t, "another fence is refused, and the right one is named", func() bool {
		return strings.Contains(command(3, "release", "order:42", "--fence", "7"), "with the fencing token "+fence)
	})
	if text := command(3, "release", "order:43", "--fence", "7"); !strings.Contains(text, "nobody holds the key") {
		t.Errorf("a free key: %s", text)
	}
	cancel()
	if err := errors.Join(<-waits, other.Close()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "the lock is released", func() bool { // when the masters know its fence
		text, _, code := redlockCommand(t, "release", "order:42", "--fence", fence, "--address", c.admin)
		if code == 0 {
			requireDocumented(t, "caddy redlock release order:42 --fence 1795350419944604", text)
		}
		return code == 0
	})
	eventually(t, "the next request has its turn, though the first still runs", func() bool { return b.inside() == 2 })

	servers[1].Kill()
	eventually(t, "no quorum", func() bool {
		text, _, code := redlockCommand(t, "masters", "--address", c.admin)
		return code == 2 && strings.Contains(text, "NO LOCK CAN BE TAKEN")
	})
	command(2, "masters", "--wait", "300ms")
	for _, args := range [][]string{{"masters", "--json"}, {"inspect", "order:42"}, {"release", "order:42", "--fence", fence}} {
		command(2, args...)
	}
	release()
	wait()
	waitNext()
}

// TestWhoAsks: the lists name who has sent each request that holds a key or waits for it, if the rule says so, and a delivery is one row.
func TestWhoAsks(t *testing.T) {
	t.Parallel()
	b, release := newHeldBackend(t)
	defer release()
	c := runCaddy(t, caddyfile("redlock {\nmasters memory://\n}", "redlock order:{path.1} {\nname pay\nwait 5m\nshow_client\ndedupe {header.Id}\n}\n"+b.proxy()))
	delivery := func(id string) *http.Request {
		r := request(c.url + "/orders/42")
		r.Header.Set("Id", id)
		return r
	}
	wait := sendAll(t, delivery("1"))
	eventually(t, "one holds the key", func() bool { return b.inside() == 1 })
	waitNext := sendAll(t, delivery("2"))
	command := func(args ...string) string {
		t.Helper()
		text, stderr, code := redlockCommand(t, append(args, "--address", c.admin)...)
		if code != 0 {
			t.Errorf("%q: exit code %d\n%s", args, code, stderr)
		}
		return text
	}
	eventually(t, "another waits", func() bool { return strings.Contains(command("locks"), "1 held, 1 waiting") })
	if text := command("locks", "--calls"); strings.Count(text, "pay ") != 2 || strings.Count(text, "waits ") != 1 || strings.Contains(text, "running:") {
		t.Errorf("want a row of the delivery, and one of the call that waits:\n%s", text)
	}
	text := command("inspect", "order:42")
	for _, want := range []string{"for     POST /orders/42, client 127.0.0.1, label pay\n", "besides running:", "behind  POST /orders/42, client 127.0.0.1, label pay, for "} {
		if !strings.Contains(text, want) {
			t.Errorf("inspect lacks %q:\n%s", want, text)
		}
	}
	release()
	wait()
	waitNext()
}

func unmarshal(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// TestLongAndHostileKeys: a pipe gets the whole of each key, and no key obeys the language of a terminal.
func TestLongAndHostileKeys(t *testing.T) {
	needTime(t)
	t.Parallel()
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", "redlock {query.a}/{query.b} {\nname a-rule-with-a-rather-long-name\n}\n"+b.proxy()))
	long := strings.Repeat("k", 150)
	wait := b.hold(t, c.url+"/?a="+long+"&b=end", c.url+"/?a=%1b[31mred&b=x", c.url+"/?a=1&b=2")
	text, _, _ := redlockCommand(t, "locks", "--limit", "2", "--address", c.admin)
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "3 held, 0 waiting; 2 of 3 keys are shown") {
		t.Errorf("two of three keys:\n%q", text)
	}
	text, _, _ = redlockCommand(t, "locks", "--address", c.admin)
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "\n"+long+"/end ") || strings.Count(text, "held") != 4 { // a pipe gets all of a key
		t.Errorf("three keys:\n%s", text)
	}
	release()
	wait()
}

// TestWatch has a watch live through a restart of Caddy, and end with Ctrl-C.
func TestWatch(t *testing.T) {
	needTime(t)
	t.Parallel()
	config := strings.Replace(caddyfile("", payRule+"respond served"), "{$ADMIN}", freeAddr(t), 1)
	_, rest, _ := strings.Cut(config, "admin ")
	address, _, _ := strings.Cut(rest, "\n")
	c := runCaddy(t, config)
	cmd := caddyCommand(t, "redlock", "locks", "--watch", "--json", "--address", address)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the watch has ended before %q: %v", text, lines.Err())
	}
	time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	await(`"locks":[]`)
	_ = c.cmd.Process.Kill()
	<-c.exited
	await(`"error":"no Caddy answers at ` + address)
	runCaddy(t, config)
	await(`"locks":[]`)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	<-exited
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

// TestAdminAddresses are the ways to say where Caddy is, and what is said if it isn't there.
func TestAdminAddresses(t *testing.T) {
	needTime(t)
	t.Parallel()
	socket := t.TempDir() + "/admin.sock"
	onSocket := strings.Replace(caddyfile("redlock {\nmasters memory://\n}", payRule+"respond served"), "{$ADMIN}", "unix/"+socket+"|0600", 1)
	runCaddy(t, onSocket)
	elsewhere := runCaddy(t, strings.Replace(caddyfile("", "respond served 404"), "admin {$ADMIN}", "admin {$ADMIN} {\norigins example.com\n}", 1))
	unlocked := runCaddy(t, caddyfile("", "respond served"))
	agents := t.TempDir() + "/agent.sock"
	serveAgent(t, agents)
	file := writeConfig(t, strings.Replace(onSocket, "{$LISTEN}", freeAddr(t), 1))
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--address", "unix/" + socket}, 0, "memory://"},
		{[]string{"--config", file, "--adapter", "caddyfile"}, 0, "1 of 1 master available, 1 needed: locks can be taken"},
		{[]string{"--config", writeConfig(t, "{\nadmin off\n}"), "--adapter", "caddyfile"}, 1, "the admin endpoint is off"},
		{[]string{"--config", file + ".none"}, 1, "no such file"},
		{[]string{"--address", freeAddr(t)}, 1, "is it running?"},
		{[]string{"--address", "unix/" + socket + ".none"}, 1, "is it running?"},
		{[]string{"--address", "localhost:1-9"}, 1, "want host:port or unix//path"},
		{[]string{"--address", elsewhere.url}, 1, "no Caddy with this module, or one with an older version"},
		{[]string{"--address", elsewhere.admin}, 1, "refuses this address: host not allowed"},
		{[]string{"--address", redistest.Start(t, 1)[0].Addr()}, 1, "can't be asked"},
		{[]string{"--address", "unix/" + agents}, 1, "type redlock in place of caddy redlock, and --agent unix:" + agents + " in place of --address"},
		{[]string{"--address", unlocked.admin}, 2, "has no redlock rule"},
	} {
		text, stderr, code := redlockCommand(t, append([]string{"masters"}, test.args...)...)
		if code != test.code || !strings.Contains(text+stderr, test.want) {
			t.Errorf("%q: exit code %d, want %d and %q\n%s%s", test.args, code, test.code, test.want, text, stderr)
		}
	}
	if text, _, code := redlockCommand(t, "--version"); code != 0 || text != ownVersion.FindString(text)+"\n" {
		t.Errorf("the version: exit code %d: %s", code, text)
	}
	for _, args := range [][]string{{"masters", "more"}, {"inspect"}, {"release", "key"}, {"release", "--fence", "7"}, {"locks", "--limit", "-1"}} {
		if text, stderr, code := redlockCommand(t, args...); code != 1 || !strings.HasPrefix(stderr, "Error: ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, text, stderr)
		}
	}
}

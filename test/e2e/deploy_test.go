package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// deployFile returns the text of a file of deploy.
func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// startDeployed starts a redis-server with the configuration of deploy and these users, and returns its address.
func startDeployed(t *testing.T, users string) (address string) {
	t.Helper()
	binary, err := redistest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	conf, err := filepath.Abs("../../deploy/redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 { // another program may have the port, if not another test
		address := freeAddr(t)
		cmd := exec.Command(binary, conf, "--bind", "127.0.0.1", "--port", portOf(t, address), "--aclfile", users, "--dir", t.TempDir())
		log := new(safeBuffer)
		cmd.Stdout, cmd.Stderr = log, log
		exited, err := redistest.StartProcess(cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			<-exited
		})
		ready := func() bool { return strings.Contains(log.String(), "Ready to accept connections") }
		for deadline := time.Now().Add(bound); !ready() && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			select {
			case <-exited:
				deadline = time.Time{}
			default:
			}
		}
		if ready() {
			return address
		}
		if !strings.Contains(log.String(), "in use") {
			t.Fatalf("redis-server with deploy/redis.conf:\n%s", log)
		}
	}
	t.Fatal("no free port")
	return ""
}

// The files of deploy, on real servers: passwords made as its README says, five redis-servers, two Caddys, and the application of the
// compose file. Only addresses are others, and the servers vote at once.
func TestDeploy(t *testing.T) {
	needTime(t)
	dir := t.TempDir()
	for _, name := range []string{"users.acl", "redis.conf", "Caddyfile"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(deployFile(t, name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	makePasswords := exec.Command("sh", "-euc", regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(deployFile(t, "README.md"))[1])
	makePasswords.Dir = dir
	if text, code := output(t, makePasswords); code != 0 {
		t.Fatal(text)
	}
	passwordFile := filepath.Join(dir, "secrets", "redis-password")
	text, err := os.ReadFile(passwordFile)
	if err != nil {
		t.Fatal(err)
	}
	password := strings.TrimSpace(string(text))

	var masters []string
	for range 5 {
		masters = append(masters, "redis://"+startDeployed(t, filepath.Join(dir, "secrets", "users.acl")))
	}
	b, release := newHeldBackend(t)
	t.Setenv("REDLOCK_MASTERS", strings.Join(masters, " "))
	t.Setenv("REDIS_PASSWORD_FILE", passwordFile)
	t.Setenv("UPSTREAM", strings.TrimPrefix(b.URL, "http://"))
	var caddies []*caddyProcess
	var operators []string
	for range 2 {
		ops := freeAddr(t)
		config := strings.NewReplacer("http://:8080", "http://{$LISTEN}", "http://:2020", "http://"+ops, "\tredlock {\n\t\tmasters", "\tadmin {$ADMIN}\n\tdefault_bind 127.0.0.1\n\tredlock {\n\t\trestart_guard off\n\t\ttimeout "+calm.String()+"\n\t\tmasters").
			Replace(deployFile(t, "Caddyfile"))
		caddies, operators = append(caddies, runCaddy(t, config)), append(operators, "http://"+ops)
	}
	wait := b.hold(t, caddies[0].url+"/orders/42/pay")
	requireStatus(t, post(t, caddies[1].url+"/orders/42/pay"), http.StatusLocked)
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireStatus(t, post(t, caddies[1].url+"/orders/42/pay"), http.StatusOK)
	requireStatus(t, post(t, caddies[1].url+"/orders"), http.StatusOK) // without a lock
	get := func(url string) received {
		t.Helper()
		response, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		return read(t, response)
	}
	for i, address := range operators {
		requireStatus(t, get(address+"/healthz"), http.StatusOK)
		if a := get(address + "/metrics"); a.status != http.StatusOK || !strings.Contains(a.body, "caddy_") {
			t.Errorf("metrics of Caddy %d: status %d", i+1, a.status)
		}
	}

	// What the masters are set to, seen by their user and by nobody.
	ctx := t.Context()
	nobody := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(masters[0], "redis://")})
	defer func() { _ = nobody.Close() }()
	if err := nobody.Ping(ctx).Err(); !redis.HasErrorPrefix(err, "NOAUTH") { // the probes wait for this reply
		t.Errorf("PING without a password: %v", err)
	}
	user := redis.NewClient(&redis.Options{Addr: nobody.Options().Addr, Username: "redlock", Password: password})
	defer func() { _ = user.Close() }()
	if err := user.FlushAll(ctx).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("FLUSHALL: %v", err)
	}
	info := user.Info(ctx, "memory", "persistence").Val()
	for _, want := range []string{"maxmemory_policy:noeviction", "maxmemory_human:256.00M", "aof_enabled:1"} {
		if !strings.Contains(info, want) {
			t.Errorf("INFO has no %s", want)
		}
	}
	for _, c := range caddies {
		if strings.Contains(c.log.String(), password) {
			t.Error("the log shows the password")
		}
		if strings.Contains(c.log.String(), "may evict") {
			t.Error("the masters may evict locks")
		}
	}
}

// What is needed to try it: a backend that takes its time. And Caddy itself accepts both files as they are.
func TestDeployedCaddyfiles(t *testing.T) {
	needTime(t)
	t.Setenv("REDLOCK_MASTERS", "redis://127.0.0.1:1 redis://127.0.0.1:2 redis://127.0.0.1:3")
	t.Setenv("REDIS_PASSWORD_FILE", secretFile(t, secret))
	t.Setenv("UPSTREAM", "127.0.0.1:3")
	for _, name := range []string{"Caddyfile", "shop.Caddyfile"} {
		file := "../../deploy/" + name
		if text, code := output(t, caddyCommand(t, "validate", "--adapter", "caddyfile", "--config", file)); code != 0 || !strings.Contains(text, "Valid configuration") {
			t.Errorf("caddy validate: exit code %d\n%s", code, text)
		}
		if text, code := output(t, caddyCommand(t, "fmt", file)); code != 0 {
			t.Errorf("caddy fmt %s: exit code %d\n%s", name, code, text)
		}
	}
	c := runCaddy(t, strings.NewReplacer("http://:8080", "http://{$LISTEN}", "admin off", "admin {$ADMIN}", "3s", "1ms").Replace(deployFile(t, "shop.Caddyfile")))
	requireStatus(t, post(t, c.url+"/orders/42/pay"), http.StatusOK)
}

// The user of the locks has the rights that docs/masters.md lists, and that of the operator what docs/operations.md asks for.
func TestDeployedUsers(t *testing.T) {
	want := "user default off\nuser operator on >operator-password resetchannels -@all +ping +info +acl|setuser +config|get +config|set\nuser redlock on >password " + strings.Join(redistest.LeastRights(t), " ") + "\n"
	if text := deployFile(t, "users.acl"); text != want {
		t.Errorf("users.acl is\n%s\nwant\n%s", text, want)
	}
}

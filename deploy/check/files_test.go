package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// find returns what the first group of a pattern matches in a file of deploy.
func find(t *testing.T, file, pattern string) string {
	t.Helper()
	match := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(read(t, filepath.Join("..", file)))
	if match == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return match[1]
}

// copyOfDeploy returns a copy of the folder with passwords made as its README says.
func copyOfDeploy(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS("..")); err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(read(t, "../README.md"))
	run(t, dir, "sh", "-euc", commands[1])
	return dir
}

func run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	return string(out)
}

// need skips a test without a program, or fails it where CI has installed all that is needed.
func need(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("DEPLOY") == "required" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

// gracePeriod is how long Caddy waits for requests when it stops: longer than any of them holds a key.
func gracePeriod(t *testing.T) time.Duration {
	t.Helper()
	grace, err := time.ParseDuration(find(t, "Caddyfile", `^\tgrace_period (\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	hold, err := time.ParseDuration(find(t, "Caddyfile", `^\t\tmax_hold (\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	if grace <= hold {
		t.Errorf("Caddy cuts requests off after %v, and they may hold their keys for %v", grace, hold)
	}
	return grace
}

// redisPort is the port in redis.conf.
func redisPort(t *testing.T) int {
	t.Helper()
	port, err := strconv.Atoi(find(t, "redis.conf", `^port (\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// hasPort reports whether the Caddyfile has a site on a port.
func hasPort(t *testing.T, port int32) bool {
	t.Helper()
	return strings.Contains(read(t, "../Caddyfile"), "http://:"+strconv.Itoa(int(port))+" {")
}

// TestUnits has systemd read the units, with a Caddy that exists.
func TestUnits(t *testing.T) {
	analyze := need(t, "systemd-analyze")
	need(t, "redis-server")
	dir := t.TempDir()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var units []string
	for name, instance := range map[string]string{
		"caddy.service": "caddy.service", "redlock-redis@.service": "redlock-redis@6379.service",
		"redlock-agent.service": "redlock-agent.service", "redlock-agent.socket": "redlock-agent.socket",
	} {
		text := strings.NewReplacer("/usr/local/bin/caddy", executable, "/usr/local/bin/redlock", executable).Replace(read(t, "../systemd/"+name))
		if err := os.WriteFile(filepath.Join(dir, instance), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		units = append(units, filepath.Join(dir, instance))
		if !strings.HasSuffix(instance, ".service") {
			continue
		}
		if out := run(t, dir, analyze, "security", "--offline=yes", "--threshold=30", filepath.Join(dir, instance)); testing.Verbose() {
			t.Log(out[strings.LastIndex(out, "→"):])
		}
	}
	for line := range strings.Lines(run(t, dir, append([]string{analyze, "verify", "--man=no"}, units...)...)) {
		if strings.Contains(line, "caddy.service") || strings.Contains(line, "redlock-") { // and not other units of this machine
			t.Error(line)
		}
	}
	stop, err := strconv.Atoi(find(t, "systemd/caddy.service", `^TimeoutStopSec=(\d+)s$`))
	if err != nil || time.Duration(stop)*time.Second <= gracePeriod(t) {
		t.Errorf("systemd kills Caddy after %d s, within its grace period", stop)
	}
}

// TestDockerfile runs the command that builds Caddy, as it is, in a copy of the repository.
func TestDockerfile(t *testing.T) {
	root := filepath.Join("..", "..")
	dir := t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	ignored := strings.Fields(read(t, "../Dockerfile.dockerignore"))
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() && (name == ".git" || name == "bin") {
			if !strings.Contains(strings.Join(ignored, " "), name) {
				t.Errorf("Dockerfile.dockerignore lacks %s", name)
			}
			continue
		}
		if name == ".git" { // of a worktree
			continue
		}
		from, to := filepath.Join(root, name), filepath.Join(dir, name)
		if entry.IsDir() {
			err = os.CopyFS(to, os.DirFS(from))
		} else {
			err = os.WriteFile(to, []byte(read(t, from)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "sh", "-euc", find(t, "Dockerfile", `^RUN (.*go build.*)$`))
	if version := run(t, dir, filepath.Join(dir, "bin", "redlock"), "--version"); !regexp.MustCompile(`^\S+ devel-[0-9a-f]{8}\n$`).MatchString(version) {
		t.Errorf("the image can't be told from that of another commit: %s", version)
	}
	requireFlags(t, run(t, dir, filepath.Join(dir, find(t, "Dockerfile", `^COPY --from=build /src/(\S+) /usr/bin/redlock$`)), "agent", "--help"))
	built := find(t, "Dockerfile", `^COPY --from=build /src/(\S+) /usr/bin/caddy$`)
	modules := run(t, dir, filepath.Join(dir, built), "list-modules")
	for _, module := range []string{"http.handlers.redlock", "redlock", "http.handlers.reverse_proxy"} {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(module) + `$`).MatchString(modules) {
			t.Errorf("the image's Caddy has no %s", module)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, filepath.Join(root, "go.mod")))[1]
	if image := find(t, "Dockerfile", `^FROM golang:(\S+) AS build$`); image != version {
		t.Errorf("the Dockerfile builds with Go %s, go.mod wants %s", image, version)
	}
	if user := find(t, "Dockerfile", `^USER (\d+):\d+$`); user == "0" {
		t.Error("the image runs as root")
	}
	for _, port := range strings.Fields(find(t, "Dockerfile", `^EXPOSE (.*)$`)) {
		if n, err := strconv.Atoi(port); err != nil || !hasPort(t, int32(n)) {
			t.Errorf("the image exposes port %s, which the Caddyfile doesn't have", port)
		}
	}
}

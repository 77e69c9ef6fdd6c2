// Package e2e has the end-to-end tests: real Caddy processes, real redis-servers, real HTTP. The shortest one, to begin with,
// is middleware_test.go at the top of the repository.
package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-redlock/caddy-redlock"
	_ "github.com/caddy-redlock/caddy-redlock/cmd/caddy/slowbackend"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const (
	// bound is for what a healthy process does at once, however busy the machine is.
	bound = 2 * time.Minute
	// calm is a time-out that keeps a master on a busy machine from being taken for one that has failed.
	calm = 3 * time.Second

	// secret is a password in configurations; no error, log or response may show it.
	secret = "s3cr3t-Zm9v"
)

// caddyProgram is a link to the tests' own binary, which is cmd/caddy when it is called so: Caddy is linked once.
var caddyProgram string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "caddy" {
		caddycmd.Main()
		return
	}
	os.Exit(redistest.RunAs(m, "caddy", &caddyProgram))
}

// raceFlag has programs of documents built with the race detector if the tests are: nothing is compiled in two ways.
var raceFlag = fmt.Sprintf("-race=%v", redistest.Race)

// caddyCommand returns the command "caddy <args>", with folders of its own in place of the user's.
func caddyCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(caddyProgram, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// caddyfile returns a configuration of one site, in which runCaddy sets {$LISTEN} and {$ADMIN}.
func caddyfile(global, site string) string {
	return "{\n\tadmin {$ADMIN}\n\tauto_https off\n\tdefault_bind 127.0.0.1\n" + global + "\n}\n" +
		"http://{$LISTEN} {\n" + site + "\n}\n"
}

// mastersOption returns the global option for masters that have just started, with further lines.
func mastersOption(servers []*redistest.Server, lines ...string) string {
	return "redlock {\nmasters " + strings.Join(redistest.URLs(servers), " ") + "\nrestart_guard off\n" + strings.Join(lines, "\n") + "\n}"
}

// caddyProcess is a running Caddy.
type caddyProcess struct {
	url, admin string
	cmd        *exec.Cmd
	log        *safeBuffer
	exited     <-chan struct{} // closed when the process has ended
}

var (
	accessStack = regexp.MustCompile(`(?m)^(?:Previous )?(?i:read|write) at .*\n((?:  .*\n)+)`)
	functions   = regexp.MustCompile(`(?m)^  (\S+\(\))$`)
)

// raceOfOurs reports whether a data race is in the module's code or in what that calls, other than the next handler or the body that
// Caddy reads. Caddy 2.11 has races of its own: its transport still reads a body when the upstream has answered, while the log, the
// placeholders or the transport of a retry read it too.
func raceOfOurs(report string) bool {
	for _, access := range accessStack.FindAllStringSubmatch(report, -1) {
		for i, f := range functions.FindAllStringSubmatch(access[1], -1) {
			if strings.HasSuffix(f[1], ").ServeHTTP()") {
				break
			}
			passedOn := i > 0 && strings.HasSuffix(f[1], "middleware.(*body).Read()")
			if strings.Contains(f[1], "caddy-redlock/") && !passedOn {
				return true
			}
		}
	}
	return false
}

// runCaddy runs Caddy with a Caddyfile until the end of the test.
func runCaddy(t *testing.T, config string) *caddyProcess {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	listen, admin := freeAddr(t), freeAddr(t)
	c := &caddyProcess{
		url:   "http://" + listen,
		admin: "http://" + admin,
		cmd:   caddyCommand(t, "run", "--adapter", "caddyfile", "--config", file),
		log:   new(safeBuffer),
	}
	c.cmd.Env = append(c.cmd.Env, "LISTEN="+listen, "PORT="+portOf(t, listen), "ADMIN="+admin, "CADDY_ADMIN="+admin)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	var err error
	if c.exited, err = redistest.StartProcess(c.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.exited
		log := c.log.String()
		for report := range strings.SplitSeq(log, "==================") {
			if raceOfOurs(report) {
				t.Errorf("data race in Caddy:\n%s", report)
			}
		}
		if strings.Contains(log, "panic: ") || strings.Contains(log, "panic serving") { // but not panic.go in a stack
			t.Error("panic in Caddy")
		}
		if t.Failed() {
			t.Logf("Caddy's log, at most the last 20 KB:\n%s", log[max(0, len(log)-20_000):])
		}
	})
	eventually(t, "Caddy serves", func() bool {
		select {
		case <-c.exited:
			t.Fatal("Caddy has ended")
		default:
		}
		return listens(listen)
	})
	return c
}

func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// freeAddr returns an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
}

var eventually = redistest.Eventually

type safeBuffer = redistest.Log

// output runs a command to its end, and returns what it wrote and its exit code.
func output(t *testing.T, cmd *exec.Cmd) (text string, code int) {
	t.Helper()
	return outputOf(t, cmd, cmd.CombinedOutput)
}

// printed is output without what a program logs.
func printed(t *testing.T, cmd *exec.Cmd) (text string, code int) {
	t.Helper()
	return outputOf(t, cmd, cmd.Output)
}

func outputOf(t *testing.T, cmd *exec.Cmd, run func() ([]byte, error)) (text string, code int) {
	t.Helper()
	out, err := run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

const readme = "README.md"

// firstBlock returns the code block of a language at the top of README, before its first section.
func firstBlock(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", readme))
	if err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(string(text), "\n## ")
	found := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$").FindStringSubmatch(top)
	if found == nil {
		t.Fatalf("the top of README has no %s", language)
	}
	return found[1]
}

// TestREADMECurls runs what README says to try first, with the very commands, and requires the very answers.
func TestREADMECurls(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not on the PATH")
	}
	command, _, _ := strings.Cut(firstBlock(t, "sh"), "#")
	args, found := strings.CutPrefix(strings.TrimSpace(command), "go run ./cmd/caddy ")
	if want := "run --config Caddyfile.example"; !found || args != want {
		t.Fatalf("README says %q, want go run ./cmd/caddy %s", command, want)
	}
	slow := freeAddr(t)
	text, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	c := runCaddy(t, strings.NewReplacer("http://:8080", "http://{$LISTEN}", "http://:8081", "http://"+slow, "127.0.0.1:8081", slow).Replace(string(text)))
	eventually(t, "the slow backend serves", func() bool { return listens(slow) })

	var script, want strings.Builder
	for line := range strings.Lines(firstBlock(t, "console")) {
		if command, isCommand := strings.CutPrefix(line, "$ "); isCommand {
			script.WriteString(command)
		} else {
			want.WriteString(line)
		}
	}
	if n := strings.Count(script.String(), "http://localhost:8080/"); n != 2 {
		t.Fatalf("README has %d curls, want 2", n)
	}
	shell := exec.Command("sh", "-c", strings.ReplaceAll(script.String(), "http://localhost:8080", c.url)+"wait\n")
	got, err := shell.Output()
	if err != nil || string(got) != want.String() {
		t.Errorf("%v\n%s\nREADME says\n%s", err, got, &want)
	}
}

func TestREADMECaddyfile(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", secret)
	servers := redistest.Start(t, 3, "--requirepass", secret)
	b, release := newHeldBackend(t)
	c := runDocumented(t, block(t, readme, "Caddy", "caddyfile"), servers, b.Listener.Addr().String())
	wait := b.hold(t, c.url+"/orders/42/pay")
	requireStatus(t, post(t, c.url+"/orders/42/refund"), http.StatusLocked)
	requireStatus(t, post(t, c.url+"/orders/x/pay"), http.StatusBadRequest)
	others := sendAll(t, request(c.url+"/orders"), request(c.url+"/orders"), request(c.url+"/orders/43/pay"))
	eventually(t, "requests of other orders, and without a number, are served", func() bool { return b.inside() == 4 })
	line := postAll(t, c.url+"/orders/43/pay")
	c.eventuallyWait(t, 1)
	release()
	for _, a := range slices.Concat(wait(), others(), line()) {
		requireStatus(t, a, http.StatusOK)
	}
}

// TestREADMELibrary: the first program needs no server.
func TestREADMELibrary(t *testing.T) {
	t.Parallel()
	text, code := printed(t, exec.Command(buildDocumented(t, block(t, readme, "Go", "go"), nil)))
	if !strings.HasPrefix(text, "sending invoices, with fencing token ") || code != 0 {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestREADMEModule: what xcaddy build, go get and go install install is this module, and Caddy with it has the directive.
func TestREADMEModule(t *testing.T) {
	module, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	install := block(t, readme, "Install", "sh")
	for _, command := range []string{"xcaddy build --with ", "go get ", "go install "} {
		_, path, _ := strings.Cut(install, command)
		if fields := strings.Fields(path); len(fields) == 0 || strings.TrimSuffix(strings.TrimSuffix(fields[0], "/middleware"), "/cmd/redlock@latest") != strings.TrimSpace(string(module)) {
			t.Errorf("README installs with %s%s another module than %s", command, path, module)
		}
	}
	if text, code := output(t, caddyCommand(t, "list-modules")); code != 0 || !strings.Contains(text, "\nhttp.handlers.redlock\n") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

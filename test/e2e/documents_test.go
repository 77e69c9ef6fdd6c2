package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// block returns the first code block of a language in a section of a document.
func block(t *testing.T, document, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", document))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, code, isThere := strings.Cut(section, "\n```"+language+"\n")
	code, _, closed := strings.Cut(code, "\n```\n")
	if !found || !isThere || !closed {
		t.Fatalf("%s has no %s in its section %q", document, language, heading)
	}
	return code + "\n"
}

// example returns a file of examples.
func example(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// withMasters replaces the masters of a document by these.
func withMasters(text string, servers []*redistest.Server) string {
	for i, s := range servers {
		text = strings.ReplaceAll(text, fmt.Sprintf("redis://10.0.0.%d:6379", i+1), s.URL())
	}
	return text
}

// runDocumented runs the Caddyfile of a document as it is, but for its addresses, and with masters that may have just started.
func runDocumented(t *testing.T, text string, servers []*redistest.Server, upstream string) *caddyProcess {
	t.Helper()
	text = withMasters(text, servers)
	text = regexp.MustCompile(`(?m)^\w+\.example\.com \{$`).ReplaceAllString(text, "http://{$$LISTEN} {")
	text = strings.ReplaceAll(text, "app:8080", upstream)
	text = strings.Replace(text, "\tredlock {\n", "\tredlock {\n\t\trestart_guard off\n\t\ttimeout "+calm.String()+"\n", 1)
	return runCaddy(t, strings.Replace(text, "{\n", "{\n\tadmin {$ADMIN}\n\tauto_https off\n\tdefault_bind 127.0.0.1\n", 1))
}

var opened = regexp.MustCompile(`redlock\.Open\((\[\]string\{[^}]*\})\)`)

// buildDocumented builds the program of a document as it is, but for its masters, which may have just started, and for its address,
// which is $ADDRESS.
func buildDocumented(t *testing.T, text string, servers []*redistest.Server) (binary string) {
	t.Helper()
	text = opened.ReplaceAllString(withMasters(text, servers), fmt.Sprintf("redlock.Open($1, redlock.WithRestartGuard(0), redlock.WithTimeout(%d))", calm))
	text = strings.ReplaceAll(text, `"127.0.0.1:8080"`, `os.Getenv("ADDRESS")`)
	if strings.Contains(text, "os.Getenv") && !strings.Contains(text, `"os"`) {
		text = strings.Replace(text, "import (\n", "import (\n\t\"os\"\n", 1)
	}
	folder := t.TempDir()
	file, binary := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", raceFlag, "-o", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, text)
	}
	return binary
}

// open returns a Locker of the test with the same masters.
func open(t *testing.T, servers []*redistest.Server) *redlock.Locker {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locker.Close(); err != nil && !errors.Is(err, redlock.ErrClosed) {
			t.Error(err)
		}
	})
	return locker
}

// lock takes the lock on a key, and returns a function that releases it.
func lock(t *testing.T, locker *redlock.Locker, key string) (fence uint64, unlock func()) {
	t.Helper()
	l, err := locker.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return l.Fence(), func() {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// serveDocumented runs a server that buildDocumented has built. exited is closed when it has ended.
func serveDocumented(t *testing.T, binary string) (url string, cmd *exec.Cmd, log *safeBuffer, exited <-chan struct{}) {
	t.Helper()
	address := freeAddr(t)
	cmd, log = exec.Command(binary), new(safeBuffer)
	cmd.Env = append(os.Environ(), "ADDRESS="+address)
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-exited
	})
	eventually(t, "the program serves", func() bool { return listens(address) })
	return "http://" + address, cmd, log, exited
}

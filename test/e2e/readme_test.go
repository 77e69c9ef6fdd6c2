package e2e

import (
	"html"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const readme = "README.md"

func readREADME(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", readme))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestREADMECurls runs what README says to try first, with the very commands, and requires the responses that its picture of a
// terminal has.
func TestREADMECurls(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not on the PATH")
	}
	blocks := strings.SplitN(readREADME(t), "\n```sh\n", 4)
	if !strings.HasPrefix(blocks[1], "go run ./cmd/caddy run --config Caddyfile.example ") {
		t.Fatalf("README begins with %q", blocks[1])
	}
	curls, _, _ := strings.Cut(blocks[2], "```\n")
	if n := strings.Count(curls, "http://localhost:8080/"); n != 2 {
		t.Fatalf("README has %d curls, want 2", n)
	}
	picture, err := os.ReadFile("../../docs/images/try.svg")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, line := range regexp.MustCompile(`<text class="\w+" [^>]*>(.*)</text>`).FindAllStringSubmatch(string(picture), -1) {
		want.WriteString(html.UnescapeString(line[1]) + "\n")
	}
	slow := freeAddr(t)
	text, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	c := runCaddy(t, strings.NewReplacer("http://:8080", "http://{$LISTEN}", "http://:8081", "http://"+slow, "127.0.0.1:8081", slow).Replace(string(text)))
	eventually(t, "the slow backend serves", func() bool { return listens(slow) })
	eventually(t, "what README shows", func() bool { // where the second curl begins after the first has ended, both are served
		got, err := exec.Command("sh", "-c", strings.ReplaceAll(curls, "http://localhost:8080", c.url)+"wait\n").Output()
		if err != nil || string(got) != want.String() {
			t.Logf("%v\n%s\nREADME shows\n%s", err, got, &want)
			return false
		}
		return true
	})
}

func TestREADMECaddyfile(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	b, release := newHeldBackend(t)
	c := runDocumented(t, strings.Replace(block(t, readme, "Choose your door", "caddyfile"), "wait 2s", "wait 2m", 1), servers, b.Listener.Addr().String())
	pay := func(order string) *http.Request { return withBody(c.url+"/payments", `{"order":{"id":`+order+`}}`) }
	wait := b.holdRequests(t, pay("42"))
	other := sendAll(t, pay("43"))
	eventually(t, "another order's payment is served", func() bool { return b.inside() == 2 })
	requireStatus(t, sendAll(t, pay(`"x"`))()[0], http.StatusBadRequest)
	line := sendAll(t, pay("42"))
	c.eventuallyWait(t, 1)
	release()
	for _, a := range slices.Concat(wait(), other(), line()) {
		requireStatus(t, a, http.StatusOK)
	}
	requireWithoutBody(t, c.url+"/payments/7")
}

// TestREADMEModule: what xcaddy build, go get and go install install is this module, and Caddy with it has the directive.
func TestREADMEModule(t *testing.T) {
	const module = "github.com/caddy-redlock/caddy-redlock"
	for command, folder := range map[string]string{"`xcaddy build --with ": "`", "`go get ": "/middleware`", "\ngo install ": "/cmd/redlock@latest\n"} {
		if want := command + module + folder; !strings.Contains(readREADME(t), want) {
			t.Errorf("README has no %s", want)
		}
	}
	if text, code := output(t, caddyCommand(t, "list-modules")); code != 0 || !strings.Contains(text, "\nhttp.handlers.redlock\n") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

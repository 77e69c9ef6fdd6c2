package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// patient keeps doctor from giving up on a machine that is busy.
var patient = []string{"--patience", "20s"}

// documented returns the output that docs/commands.md or testdata/commands.txt shows for a command.
func documented(t *testing.T, command string) string {
	t.Helper()
	var text string
	for _, file := range []string{"../../docs/commands.md", "testdata/commands.txt"} {
		part, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text += string(part)
	}
	_, block, found := strings.Cut(text, "```console\n$ "+command+"\n")
	block, _, closed := strings.Cut(block, "```\n")
	if !found || !closed {
		t.Fatalf("no document shows %s", command)
	}
	for line := range strings.Lines(block) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
			t.Errorf("%s: a line of more than 80 columns: %s", command, line)
		}
	}
	return block
}

// token is an abbreviated token in an output.
var token = regexp.MustCompile(`\b[A-Z2-7]{12}\b`)

var ownVersion = regexp.MustCompile(`(caddy-redlock )?\b(v\d\S+|devel-[0-9a-f]{8})\b`)

var numbers = regexp.MustCompile(`[-+]?\d[\d.]*(ms|s|m\d\ds|h\d\dm|d|[kMG]?B)?\b`)

// likeDocumented returns a text in which all numbers, tokens and versions are the same, and lines don't matter.
func likeDocumented(text string) string {
	text = ownVersion.ReplaceAllString(text, "${1}V")
	if host, err := os.Hostname(); err == nil {
		text = strings.ReplaceAll(text, host+"/", "web1/")
	}
	return strings.Join(strings.Fields(numbers.ReplaceAllString(token.ReplaceAllString(text, "T"), "N")), " ")
}

// requireDocumented compares an output with the documented one.
func requireDocumented(t *testing.T, command, text string) {
	t.Helper()
	if got, want := likeDocumented(text), likeDocumented(documented(t, command)); got != want {
		t.Errorf("%s prints\n%s\n%s\nthe document has\n%s", command, text, got, want)
	}
	for line := range strings.Lines(text) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
			t.Errorf("%s: a line of more than 80 columns: %s", command, line)
		}
	}
}

// redlockCommand runs caddy redlock, and returns what it wrote to standard output and standard error, and its exit code.
func redlockCommand(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return run(t, "", args...)
}

// run does it in a folder.
func run(t *testing.T, folder string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var errs strings.Builder
	cmd := caddyCommand(t, append([]string{"redlock"}, args...)...)
	cmd.Dir, cmd.Stderr = folder, &errs
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), errs.String(), cmd.ProcessState.ExitCode()
}

// commandAt runs caddy redlock at an admin endpoint until it has this exit code, or one that isn't that of masters which are late, and returns
// what it has printed. What forget has forgotten before it was late, the next one finds nowhere: then the text is that of both.
func commandAt(t *testing.T, admin string, want int, args ...string) (printed string) {
	t.Helper()
	late := false
	eventually(t, "the masters answer in time", func() bool {
		text, stderr, code := redlockCommand(t, append(slices.Clip(args), "--address", admin)...)
		if args[0] != "forget" {
			printed = ""
		}
		printed += text + stderr
		if done := code == want || late && args[0] == "forget" && code == 3; !done && code != 2 {
			t.Errorf("%q: exit code %d, want %d\n%s", args, code, want, printed)
		}
		late = code == 2
		return !late || want == 2
	})
	return printed
}

// writeConfig writes a Caddyfile, and returns its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// withLeastRights gives the servers a user with the rights in docs/masters.md, and those changed, and the password of the tests.
func withLeastRights(t *testing.T, server *redistest.Server, changed ...string) {
	t.Helper()
	rights := append([]string{"reset", "on", ">" + secret}, redistest.LeastRights(t)...)
	if err := server.Client().ACLSetUser(t.Context(), "redlock", append(rights, changed...)...).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestDoctor has the masters of testdata/commands.txt: a good one, one that is down, and one whose user may not subscribe.
func TestDoctor(t *testing.T) {
	servers := redistest.Start(t, 3)
	withLeastRights(t, servers[0])
	withLeastRights(t, servers[2], "-subscribe")
	servers[1].Kill()
	file := writeConfig(t, `{
	redlock {
		masters `+strings.Join(redistest.URLs(servers), " ")+`
		username redlock
		password {file.`+secretFile(t, secret)+`}
		timeout 20s
		max_ttl 40s
		max_skew 20s
		restart_guard {$GUARD:10m}
	}
}
http://127.0.0.1:1 {
	redlock order:{path.1} {
		ttl 40s
	}
}`)
	doctor := append([]string{"doctor", "--config", file, "--adapter", "caddyfile"}, patient...)
	text, _, code := redlockCommand(t, doctor...)
	if code != 2 || !strings.Contains(text, "it votes in ") || !strings.Contains(text, "0 of 3 masters would grant locks now, 2 needed: NO LOCK CAN BE TAKEN.") {
		t.Errorf("servers that have just started: exit code %d\n%s", code, text)
	}
	t.Setenv("GUARD", "off")
	text, _, code = redlockCommand(t, append(doctor, "--json")...)
	var report struct {
		Masters  []struct{ Votes bool }
		Voting   int
		Findings []struct{ Level, Check, Master, Advice string }
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || code != 2 || report.Voting != 2 || len(report.Masters) != 3 || report.Masters[1].Votes || len(report.Findings) != 5 {
		t.Errorf("JSON: exit code %d, %v\n%s", code, err, text)
	}
	keepAll := func(s *redistest.Server, changed ...string) { // so that it needs no restart guard, and doctor may see that
		withLeastRights(t, s, append(changed, "+config|get")...)
		for name, value := range map[string]string{"appendonly": "yes", "appendfsync": "always"} {
			if err := s.Client().ConfigSet(t.Context(), name, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	keepAll(servers[0])
	keepAll(servers[2], "-subscribe")
	text, stderr, code := redlockCommand(t, doctor...)
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
	requireDocumented(t, "caddy redlock doctor --config Caddyfile", text)
	if strings.Contains(text+stderr, secret) {
		t.Error("doctor shows the password")
	}
	redistest.RequireNoKeys(t, []*redistest.Server{servers[0], servers[2]})

	servers[1].Restart()
	keepAll(servers[1])
	keepAll(servers[2])
	text, _, code = redlockCommand(t, doctor...)
	if code != 0 || !strings.Contains(text, "3 of 3 masters would grant locks now, 2 needed: locks can be taken.") {
		t.Errorf("all is well: exit code %d\n%s", code, text)
	}
}

// TestDoctorBesideCaddy: a configuration that takes its locks elsewhere than the Caddy that runs is found, though no master can know.
func TestDoctorBesideCaddy(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 2)
	config := func(masters, option string) string {
		return caddyfile("redlock {\nmasters "+masters+"\nrestart_guard off\nmax_ttl 40s\nmax_skew 20s\ninstance web1\ntimeout "+calm.String()+"\n"+option+"\n}", "redlock order:{path.1}\nrespond ok")
	}
	c := runCaddy(t, config(servers[0].URL(), ""))
	if text, _, code := redlockCommand(t, "masters", "--wait", "2m", "--address", c.admin); code != 0 {
		t.Fatal(text)
	}
	for _, test := range []struct{ masters, option, want string }{
		{servers[0].URL(), "", ""},
		{servers[0].URL(), "key_prefix shop", "web1 has the key_prefix redlock, and this configuration shop"},
		{servers[1].URL(), "", "web1 has none of the masters of this configuration, but " + servers[0].URL()},
		{"memory://", "", "web1 has none of the masters of this configuration, but " + servers[0].URL()},
	} {
		file := writeConfig(t, strings.NewReplacer("{$LISTEN}", "127.0.0.1:1", "{$ADMIN}", strings.TrimPrefix(c.admin, "http://")).Replace(config(test.masters, test.option)))
		text, stderr, code := redlockCommand(t, append([]string{"doctor", "--config", file, "--adapter", "caddyfile"}, patient...)...)
		flat := strings.Join(strings.Fields(text), " ")
		if test.want == "" && strings.Contains(flat, "web1") || !strings.Contains(flat, test.want) || test.want != "" && code != 2 {
			t.Errorf("%+v: exit code %d\n%s%s", test, code, text, stderr)
		}
	}
}

// TestDoctorsConfigurations are those that can't be looked at, and one without masters.
func TestDoctorsConfigurations(t *testing.T) {
	needTime(t)
	t.Parallel()
	for _, test := range []struct {
		config string
		code   int
		want   string
	}{
		{":1", 0, "locks are kept in the memory of the process"},
		{"{\n\tredlock {\n\t\tmasters redis://127.0.0.1:1 redis://127.0.0.1:1\n\t}\n}", 1, "Caddyfile:3"},
		{"{\n\tredlock {\n\t\tmasters redis://127.0.0.1:1\n\t\tpassword {env.REDLOCK_TEST_NONE}\n\t}\n}", 1, "password: the placeholder is unknown or empty"},
		{"{\n\tredlock {\n\t\tmasters rediss://127.0.0.1:1\n\t\ttls {\n\t\t\ttrust_pool file /nonexistent/ca.pem\n\t\t}\n\t}\n}", 1, "/nonexistent/ca.pem"},
		{"{", 1, "Caddyfile:1"},
	} {
		text, stderr, code := redlockCommand(t, "doctor", "--config", writeConfig(t, test.config), "--adapter", "caddyfile")
		if code != test.code || !strings.Contains(text+stderr, test.want) {
			t.Errorf("%s\nexit code %d, want %d and %q\n%s%s", test.config, code, test.code, test.want, text, stderr)
		}
	}
	for _, args := range [][]string{{"doctor"}, {"doctor", "more"}, {"doctor", "--patience", "0s"}, {"unheard-of"}} {
		if text, stderr, code := run(t, t.TempDir(), args...); code != 1 || !strings.HasPrefix(stderr, "Error: ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, text, stderr)
		}
	}
}

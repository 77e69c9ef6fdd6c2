package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// Loading a configuration logs a warning, with the rule and its line, for what is valid but hardly ever meant.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		masters string
		rules   []string
		want    []string // a part of each warning, in order
	}{
		"names that no request has": {"memory://a", []string{
			"redlock @post a:{http.request.uri.segment.1}",
			"redlock @post b:{paths.1}:{header.X}",
			"redlock @post c:{header.X|http.request.nonsense}",
			"redlock @post d:{body.$.id}",
			"redlock @post e:{path.1} {\ndedupe {http.request.id}\n}",
			"redlock @post f:{form.items[0].id|json.items[0].id}",
		}, []string{`Caddyfile:7","placeholder":"http.request.uri.segment.1"`, `Caddyfile:8","placeholder":"paths.1"`,
			`Caddyfile:9","placeholder":"http.request.nonsense"`, `Caddyfile:10","placeholder":"body.$"`, `Caddyfile:11","placeholder":"http.request.id"`, `Caddyfile:14","placeholder":"json.items[0]"`}},
		"names that some have": {"memory://a", []string{
			"redlock @post a:{path.1}:{header.X}:{query.a}:{cookie.b}:{host}:{method}:{body.id}:{json.a.b}:{form.c}",
			"redlock b:{header.X|query.a|path.9|cookie.c|body.x}",
			"redlock c:{remote_host}:{client_ip}:{scheme}:{port}:{labels.1}:{file}:{dir}:{uuid}:{http.request.remote.host/16}:{tls_version}",
			"redlock d:{vars.a}:{re.a.1}:{http.auth.user.id}:{env.REDLOCK_TEST_NONE}:{tls_client_subject}:{http.request.tls.client.san.dns_names.0}:{http.error.status_code}",
			"redlock f:{header.X:uuid} {\ndedupe off\n}",
			"redlock {\npreset stripe\n}",
		}, nil},
		"reads that are refused": {"memory://a", []string{"redlock /pay* order:{json.id}"}, []string{`Caddyfile:7"`}},
		"no placeholder":         {"memory://a", []string{"redlock POST order:{path.1}"}, []string{`Caddyfile:7","key":"POST"`}},
		"two masters":            {"memory://a memory://b", nil, []string{`"masters":2,"tolerated":0`}},
		"four":                   {"memory://a memory://b memory://c memory://d", nil, []string{`"masters":4,"tolerated":1`}},
		"three":                  {"memory://a memory://b memory://c", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "Caddyfile")
			config := "{\nredlock {\nmasters " + test.masters + "\n}\n}\nhttp:// {\n" + strings.Join(test.rules, "\n") + "\n@post method POST\n}\n"
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			text, code := output(t, caddyCommand(t, "validate", "--config", file))
			var warnings []string
			for line := range strings.Lines(text) {
				if strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "redlock") {
					warnings = append(warnings, line)
				}
			}
			if code != 0 || len(warnings) != len(test.want) {
				t.Fatalf("exit code %d, warnings %q, want %d; all:\n%s", code, warnings, len(test.want), text)
			}
			for i, want := range test.want {
				if !strings.Contains(warnings[i], want) {
					t.Errorf("warning %s, want %s", warnings[i], want)
				}
			}
		})
	}
}

// A configuration that is validated and started is warned of once.
func TestWarnedOnce(t *testing.T) {
	t.Parallel()
	c := runCaddy(t, caddyfile(mastersOption(redistest.Start(t, 2), "timeout "+calm.String()), payRule+"respond served"))
	eventually(t, "the start is over", func() bool { return strings.Contains(c.log.String(), "of 2 masters available") })
	if n := strings.Count(c.log.String(), "even number"); n != 1 {
		t.Errorf("%d warnings of an even number of masters, want 1", n)
	}
}

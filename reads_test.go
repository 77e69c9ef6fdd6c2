package caddyredlock_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestReadsAreRefused: Caddy warns once of each rule that reads its key from the body and whose matcher lets GET through, because that GET gets 400.
func TestReadsAreRefused(t *testing.T) {
	const body = "order:{json.id:int}"
	for name, test := range map[string]struct {
		rule string
		want string // the line of the rule; "" for no warning
	}{
		"no matcher":                 {"redlock " + body, "8"},
		"a path":                     {"redlock /pay* " + body, "8"},
		"a path and a host":          {"@a {\nhost a.example\npath /pay*\n}\nredlock @a " + body, "12"},
		"a method besides":           {"@a method GET POST\nredlock @a " + body, "9"},
		"another method":             {"@a method POST\nredlock @a " + body, ""},
		"not GET":                    {"@a {\nnot method GET HEAD OPTIONS\npath /pay*\n}\nredlock @a " + body, ""},
		"not a POST":                 {"@a not method POST\nredlock @a " + body, "9"},
		"not some GET":               {"@a not {\nmethod GET\npath /x\n}\nredlock @a " + body, "12"},
		"what may be anything":       {"@a expression method('POST')\nredlock @a " + body, ""},
		"not anything":               {"@a not header X-Read *\nredlock @a " + body, ""},
		"a header":                   {"@a header Content-Type application/json\nredlock @a " + body, ""},
		"in a block":                 {"handle /pay* {\nredlock " + body + "\n}", "9"},
		"in a block for POST":        {"@a method POST\nhandle @a {\nredlock " + body + "\n}", ""},
		"after a block for GET":      {"@a method GET\nhandle @a {\nrespond x\n}\nhandle {\nredlock " + body + "\n}", ""},
		"after a block for one path": {"@a {\nmethod GET\npath /x\n}\nhandle @a {\nrespond x\n}\nhandle {\nredlock " + body + "\n}", "16"},
		"the second":                 {"redlock /a* a:{path.1}\nredlock /b* " + body, "9"},
		"with durations":             {"redlock " + body + " {\ndedupe {json.nr}\nremember 1h\nwait 2s\non_duplicate wait\n}", "8"},
		"an ID":                      {"redlock order:{path.1} {\ndedupe {json.nr}\n}", "8"},
		"an alternative":             {"redlock order:{json.id|path.1}", ""},
		"several fields":             {"redlock order:{json.id|form.id}", "8"},
		"without a key, too":         {"redlock " + body + " {\non_missing_key pass\n}", ""},
		"a preset for webhooks":      {"redlock {\npreset stripe\n}", ""},
		"a sender":                   {"redlock " + body + " {\nverify github x\n}", ""},
		"a preset for an API":        {"redlock " + body + " {\npreset idempotency-key\n}", "8"},
		"a rule that reads no body":  {"redlock order:{path.1}", ""},
		"a rule that buffers a body": {"redlock order:{path.1} {\nbuffer_body\n}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if err := validate("log {\noutput file "+log+"\n}", test.rule+"\nrespond served"); err != nil {
				t.Fatal(err)
			}
			text := readFile(t, log)
			n := strings.Count(text, "its matcher lets GET through")
			if test.want == "" && n > 0 || test.want != "" && (n != 1 || !strings.Contains(text, `"at":"Caddyfile:`+test.want+`"}`)) {
				t.Errorf("want a warning of line %q:\n%s", test.want, text)
			}
		})
	}
}

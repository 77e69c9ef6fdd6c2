package caddyredlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// foreign is what docs/operations.md names of other programs.
var foreign = []string{
	"SIGTERM", "SIGINT", "SIGQUIT", "SIGKILL", "caddy stop", "grace_period", "shutdown_delay", "TimeoutStopSec", "terminationGracePeriodSeconds", "stop_grace_period",
	"trusted_proxies", "/metrics", "logger", "error",
	"INFO", "SET", "SLOWLOG GET", "used_memory", "MEMORY USAGE", "maxmemory", "maxmemory-policy noeviction", `save ""`, "appendonly no", "appendfsync always", "appendfsync everysec",
	"ACL SETUSER redlock '#NEW'", "ACL SETUSER redlock '!FORMER'", "CONFIG SET maxmemory 512mb", "CONFIG SET tls-cert-file FILE tls-key-file FILE", "appendonly yes",
	"REDISCLI_AUTH=$(cat secrets/operator-password) redis-cli --user operator COMMAND", "operator", "users.acl", "redis.conf", "caddy reload --force", "trust_pool file FORMER NEW",
	"redis-cli", "redis-cli --bigkeys",
}

// TestOperationsNamesWhatExists requires what docs/operations.md names to be in the code: commands and their flags, targets, tests, log
// messages, errors, settings, outcomes, states, metrics.
func TestOperationsNamesWhatExists(t *testing.T) {
	document := readFile(t, "docs/operations.md")
	code := readCode(t)
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```").FindAllStringSubmatch(document, -1) {
		for line := range strings.Lines(block[1]) {
			command, _, _ := strings.Cut(line, "#")
			code.requireNamed(t, strings.TrimSpace(command))
		}
	}
	text := regexp.MustCompile("(?s)\n```.*?\n```").ReplaceAllString(document, "")
	spans := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1)
	if len(spans) < 100 {
		t.Fatalf("%d names found", len(spans))
	}
	for _, span := range spans {
		code.requireNamed(t, span[1])
	}
}

// code is what may be named: the strings of the code without tests, and its identifiers.
type code struct {
	literals    []string
	identifiers map[string]bool
	commands    string // the source of the command line
	makefile    string
}

func readCode(t *testing.T) *code {
	t.Helper()
	c := &code{identifiers: make(map[string]bool), makefile: readFile(t, "Makefile")}
	files, _ := tree(t)
	for _, name := range files {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			if strings.HasSuffix(name, "_test.go") {
				for _, test := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(readFile(t, name), -1) {
					c.identifiers[path.Dir(name)+"/"+test[1]] = true
				}
			}
			continue
		}
		if folder := path.Dir(name); folder == "internal/cli" || folder == "internal/caddycli" {
			c.commands += readFile(t, name)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					c.literals = append(c.literals, text)
				}
			case *ast.Ident:
				c.identifiers[n.Name] = true
			}
			return true
		})
	}
	return c
}

var (
	placeholder = regexp.MustCompile(`^\{http\.redlock\.(\w+)\}$`)
	identifier  = regexp.MustCompile(`^(?:\w+\.)*([A-Z]\w+)$`)
	goTest      = regexp.MustCompile(`^go test .*-run (\w+) \./(\w+)$`)
	route       = regexp.MustCompile(`^(?:GET |http://localhost:2019)/redlock(/\w*)(?:\?ready)?$`)
	edited      = regexp.MustCompile(`^sed \S+ (\S+)$`)
	flag        = regexp.MustCompile(`--([a-z]+)`)
)

func (c *code) requireNamed(t *testing.T, name string) {
	t.Helper()
	if slices.Contains(foreign, name) {
		return
	}
	var found bool
	if command, ok := strings.CutPrefix(name, "caddy redlock "); ok {
		words := strings.Fields(command)
		found = regexp.MustCompile(`Use: +"` + regexp.QuoteMeta(words[0]) + `\b`).MatchString(c.commands)
		for _, match := range flag.FindAllStringSubmatch(command, -1) {
			found = found && strings.Contains(c.commands, strconv.Quote(match[1]))
		}
	} else if target, ok := strings.CutPrefix(name, "make "); ok {
		found = regexp.MustCompile(`(?m)^` + target + `:`).MatchString(c.makefile)
	} else if match := goTest.FindStringSubmatch(name); match != nil {
		found = c.identifiers[match[2]+"/"+match[1]]
	} else if metric, ok := strings.CutPrefix(strings.TrimPrefix(name, "caddy_"), "redlock_"); ok {
		found = metric == "" || slices.Contains(c.literals, metric)
	} else if match := route.FindStringSubmatch(name); match != nil {
		found = slices.ContainsFunc(c.literals, func(text string) bool { return strings.HasSuffix(text, strings.Trim(match[1], "/")) })
	} else if match := edited.FindStringSubmatch(name); match != nil {
		_, err := os.Stat(match[1])
		found = err == nil
	} else if key, ok := strings.CutPrefix(name, "redlock:"); ok {
		found = c.says(":" + strings.TrimSuffix(key, ":leases"))
	} else if match := placeholder.FindStringSubmatch(name); match != nil {
		found = slices.ContainsFunc(c.literals, func(text string) bool { return strings.HasSuffix(text, match[1]) })
	} else if match := identifier.FindStringSubmatch(name); match != nil {
		found = c.identifiers[match[1]]
	} else if _, err := os.Stat(path.Join("docs", name)); err == nil {
		found = true
	} else if _, err := os.Stat(name); err == nil {
		found = true
	} else {
		found = c.says(name)
	}
	if !found {
		t.Errorf("docs/operations.md names %q, which is not in the code", name)
	}
}

// says reports whether the code has this text: in one string, or as a setting and its value.
func (c *code) says(text string) bool {
	if setting, value, two := strings.Cut(text, " "); two && regexp.MustCompile(`^[a-z]+_[a-z_]+$`).MatchString(setting) && !strings.Contains(value, " ") {
		return c.says(setting) && (slices.Contains(c.literals, value) || regexp.MustCompile(`^\d`).MatchString(value))
	}
	words := strings.Contains(text, " ")
	return slices.ContainsFunc(c.literals, func(literal string) bool {
		if words {
			return strings.Contains(literal, text)
		}
		return literal == text || strings.HasPrefix(literal, `json:"`+text) || slices.Contains(strings.Fields(literal), text)
	})
}

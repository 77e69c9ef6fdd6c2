package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// accessLines returns the lines of Caddy's access log about a path.
func accessLines(c *caddyProcess, path string) (lines []accessLine) {
	for text := range strings.Lines(c.log.String()) {
		var line accessLine
		if json.Unmarshal([]byte(text), &line) == nil && strings.HasPrefix(line.Logger, "http.log.access") && line.Request.URI == path {
			lines = append(lines, line)
		}
	}
	return lines
}

type accessLine struct {
	Logger  string
	Request struct{ URI string }
	Lock    string
	Redlock map[string]any
}

// TestAccessLog looks for the group redlock in Caddy's access log: with no configuration of its own, for served and refused
// requests, and without the key.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	const secret = "s3cret" // a cookie, because Caddy doesn't log those
	c := runCaddy(t, caddyfile("", `
		log
		log_append lock {http.redlock.outcome}
		log_skip /skipped
		@orders path /served /missing /skipped
		route @orders {
			redlock order:{cookie.order} {
				name orders
			}
		}
		@nested path /nested /refused
		route @nested {
			redlock all:{cookie.order} {
				name outer
			}
			redlock one:{path.0} {
				name inner
				wait 1ms
			}
			redlock /refused {header.X-None} {
				name last
			}
		}
		route /errors {
			redlock a:{header.X-None} {
				name first
			}
		}
		respond ok
		handle_errors {
			redlock /errors b:{header.X-None|client_ip} {
				name second
			}
			respond "{http.redlock.rule} {http.redlock.detail}" {err.status_code}
		}`))
	acquired := func(rule string) map[string]any { return map[string]any{"rule": rule, "outcome": "acquired"} }
	missing := func(rule, part string) map[string]any {
		return map[string]any{"rule": rule, "outcome": "missing_key", "detail": "key part {" + part + "}: missing or empty"}
	}
	with := func(group map[string]any, others ...any) map[string]any {
		group["others"] = others
		return group
	}
	for path, test := range map[string]struct {
		cookie, body string
		want         map[string]any // nil for none
	}{
		"/served":  {"order=" + secret, "ok", acquired("orders")},
		"/missing": {"", "orders key part {http.request.cookie.order}: missing or empty", missing("orders", "http.request.cookie.order")},
		"/nested":  {"order=" + secret, "ok", with(acquired("inner"), acquired("outer"))},
		"/refused": {"order=" + secret, "last key part {http.request.header.X-None}: missing or empty", with(missing("last", "http.request.header.X-None"), acquired("outer"), acquired("inner"))},
		"/errors":  {"", "second ", with(missing("first", "http.request.header.X-None"), acquired("second"))},
		"/no-rule": {"", "ok", nil},
	} {
		if a := post(t, c.url+path, "Cookie", test.cookie); a.body != test.body {
			t.Errorf("%s: body %q, want %q", path, a.body, test.body)
		}
		eventually(t, "a line in the access log for "+path, func() bool { return len(accessLines(c, path)) == 1 })
		line := accessLines(c, path)[0]
		checkGroup(t, path, line.Redlock)
		if got, _ := json.Marshal(line.Redlock); !sameJSON(line.Redlock, test.want) {
			want, _ := json.Marshal(test.want)
			t.Errorf("%s: logged %s, want %s", path, got, want)
		}
		if outcome, _ := test.want["outcome"].(string); line.Lock != outcome {
			t.Errorf("%s: log_append has %q, want %q", path, line.Lock, outcome)
		}
	}
	requireStatus(t, post(t, c.url+"/skipped", "Cookie", "order="+secret), http.StatusOK)
	requireStatus(t, post(t, c.url+"/served?last", "Cookie", "order="+secret), http.StatusOK)
	eventually(t, "the last line", func() bool { return len(accessLines(c, "/served?last")) == 1 })
	if len(accessLines(c, "/skipped")) > 0 {
		t.Error("log_skip is ignored")
	}
	requireLogLine(t, c, `"level":"info"`, `"request is refused","rule":"orders","outcome":"missing_key"`, `{http.request.cookie.order}: missing`)
	for line := range strings.Lines(c.log.String()) {
		if strings.Contains(line, secret) {
			t.Errorf("the log shows a key: %s", line)
		}
	}
}

// checkGroup checks the numbers of a group, and removes them.
func checkGroup(t *testing.T, path string, group map[string]any) {
	t.Helper()
	if group == nil {
		return
	}
	waited, ok := group["waited"].(float64)
	fence, fenced := group["fence"].(float64)
	if !ok || waited < 0 || waited > bound.Seconds() || fenced != (group["outcome"] == "acquired") || fenced && fence < 1 {
		t.Errorf("%s: %v", path, group)
	}
	maps.DeleteFunc(group, func(name string, _ any) bool { return slices.Contains([]string{"waited", "fence"}, name) })
	others, _ := group["others"].([]any)
	for _, other := range others {
		checkGroup(t, path, other.(map[string]any))
	}
}

func sameJSON(a, b any) bool {
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(textA) == string(textB)
}

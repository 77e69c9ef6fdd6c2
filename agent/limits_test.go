package agent_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/limits"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestLimits: the agent refuses what is beyond a limit with 400, and names the field.
func TestLimits(t *testing.T) {
	l, err := redlock.Open(live)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client := serve(t, "unix", agent.New(l))
	ask := func(path, body string) error {
		response, err := client.Post("http://localhost"+path, "application/json", io.MultiReader(strings.NewReader(body))) // in chunks
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var problem struct{ Detail string }
		if response.StatusCode != http.StatusBadRequest || json.NewDecoder(response.Body).Decode(&problem) != nil {
			t.Errorf("%s: status %d", body, response.StatusCode)
			return nil
		}
		return errors.New(problem.Detail)
	}
	name := limits.With("", "_")
	for path, options := range map[string][]string{
		"/v1/lock": {"ttl", "wait", "masters wait", "max hold", "once per", "concurrency"},
		"/v1/rule": {"ttl", "wait", "masters wait", "max hold", "max waiters", "concurrency"}, // of a gateway, such as Traefik
	} {
		limits.Test(t, name, func(option, value string) error {
			if option != "concurrency" && option != "max waiters" {
				value = `"` + value + `"`
			}
			return ask(path, `{"key":"a","`+name(option)+`":`+value+`}`)
		}, options...)
	}
	limits.TestKeys(t, func(keys ...string) error {
		text, err := json.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		return ask("/v1/lock", `{"keys":`+string(text)+`}`)
	})
}

// TestWords: who is refused reads of the fields of the protocol, and of nothing that only the agent's own language has.
func TestWords(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live)))
	for path, bodies := range map[string]map[string]string{
		"/v1/lock": {
			`[]`:                                            "the JSON is of the type array: want an object",
			`"k"`:                                           "the JSON is of the type string: want an object",
			`{"key":5}`:                                     "key: is of the type number: want a text",
			`{"keys":"k"}`:                                  "keys: is of the type string: want a list",
			`{"keys":[5]}`:                                  "keys: is of the type number: want a text",
			`{"key":"k","try":"yes"}`:                       "try: is of the type string: want true or false",
			`{"key":"k","concurrency":"2"}`:                 "concurrency ",
			`{"key":"k","pulse":"9ms"}`:                     "pulse 9ms: must be at least 10ms",
			`{"key":"k","pulse":"-1s"}`:                     "pulse -1s: must be at least 10ms",
			`{"key":"k","concurrency":["x"]}`:               "concurrency: is of the type string: want a number",
			`{"keys":["k","j"],"once":"1h"}`:                "once and once_per: want one key",
			`{"keys":["k","j"],"once_per":"1h"}`:            "once and once_per: want one key",
			`{"key":"k","concurrency":2,"once":"1h"}`:       "once and once_per: want one key",
			`{"key":"k","concurrency":[2],"once_per":"1h"}`: "once and once_per: want one key",
			`{"key":"k","label":"` + strings.Repeat("l", 1025) + `"}`: "label",
			`{"keys":[""]}`:             "key is empty",
			`{"key":"k","color":"red"}`: `unknown field "color"`,
			`{"key":"k"`:                "unexpected EOF",
		},
		"/v1/rule": {
			`[]`:                      "want a JSON object",
			`{"key":5}`:               "key: want",
			`{"key":"k","ttl":"10h"}`: "ttl 10h0m0s",
			`{"wait":"1s"}`:           "key: want",
		},
		"/v1/turn": {
			`{"key":"k"}` + "\n[]":                    "the line that describes the request: the JSON is of the type array: want an object",
			`{"key":"k"}` + "\n" + `{"method":5}`:     "the line that describes the request: method: is of the type number: want a text",
			`{"key":"k"}` + "\n" + `{"length":"5"}`:   "the line that describes the request: length: is of the type string: want a number",
			`{"key":"k"}` + "\n" + `{"target":"a"}`:   "target: not",
			`{"key":"k"}` + "\n" + `{"header":["a"]}`: "the line that describes the request: header: is of the type array: want an object",
		},
	} {
		for body, want := range bodies {
			response, err := client.Post("http://localhost"+path, "application/json", io.MultiReader(strings.NewReader(body+"\n"))) // in chunks
			if err != nil {
				t.Fatal(err)
			}
			var problem struct{ Detail string }
			err = json.NewDecoder(response.Body).Decode(&problem)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusBadRequest || err != nil || !strings.HasPrefix(problem.Detail, want) || goes.MatchString(problem.Detail) {
				t.Errorf("%s %s: %s %q, want %q", path, body, response.Status, problem.Detail, want)
			}
		}
	}
}

// goes matches names of Go.
var goes = regexp.MustCompile(`Go |json:|redlock[.:]|With[A-Z]|struct`)

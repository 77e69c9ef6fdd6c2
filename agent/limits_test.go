package agent_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
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

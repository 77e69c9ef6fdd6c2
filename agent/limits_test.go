package agent_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/limits"
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
	ask := func(body string) error {
		response, err := client.Post("http://localhost/v1/lock", "application/json", strings.NewReader(body))
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
	limits.Test(t, name, func(option, value string) error {
		if option != "concurrency" {
			value = `"` + value + `"`
		}
		return ask(`{"key":"a","` + name(option) + `":` + value + `}`)
	}, "ttl", "wait", "masters wait", "max hold", "concurrency")
}

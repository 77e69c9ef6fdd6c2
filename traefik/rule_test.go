package traefik

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	wire "github.com/caddy-redlock/caddy-redlock/agent"
	parse "github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

// TestFieldsOfRules: what the agent answers about a rule is what the plugin reads, field by field.
func TestFieldsOfRules(t *testing.T) {
	text := answerOf(t, `{"key": "a:{body.id}", "wait": "2s"}`) // none of the fields is zero
	info := new(ruleInfo)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(info); err != nil {
		t.Errorf("the plugin reads less than the agent answers: %v: %s", err, text)
	}
	for field, value := range reflect.ValueOf(info).Elem().Fields() {
		if field.IsExported() && value.IsZero() {
			t.Errorf("the plugin reads %s, which the agent doesn't answer: %s", field.Tag.Get("json"), text)
		}
	}
}

// answerOf returns what an agent answers about a rule.
func answerOf(t *testing.T, settings string) []byte {
	t.Helper()
	locker := redlocktest.New(t)
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- wire.New(locker).Serve(ctx, loadWithin, listener) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	response, err := client.Post("http://redlock/v1/rule", "application/json", strings.NewReader(settings))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v %s: %s", err, response.Status, text)
	}
	return text
}

// TestSpellingsOfSettings: the plugin knows what it needs while the agent is away in each spelling that the agent takes.
func TestSpellingsOfSettings(t *testing.T) {
	for name, value := range map[string]string{"on_no_quorum": "pass", "no_quorum_status": "503", "key_header": "X-Key", "fence_header": "X-Fence"} {
		for _, separator := range []string{"_", "-", ""} {
			written := strings.ReplaceAll(name, "_", separator)
			for _, written := range []string{written, strings.ToUpper(written)} {
				settings := map[string]interface{}{"key": "a", written: value}
				text, err := json.Marshal(settings)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := parse.Parse(text); err != nil {
					t.Fatalf("the agent refuses %s: %v", written, err)
				}
				r, err := newRule(&agent{}, settings)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.text(name); got != value {
					t.Errorf("%s: the plugin reads %q, want %q", written, got, value)
				}
			}
		}
	}
}

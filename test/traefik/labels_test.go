package traefik_test

import (
	"reflect"
	"testing"

	"github.com/mitchellh/mapstructure"

	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestLabels decodes settings as Traefik does (pkg/plugins/middlewareyaegi.go): labels are text only, while TOML and YAML have numbers
// and lists. What isn't the plugin's own goes to the agent as it is.
func TestLabels(t *testing.T) {
	for name, settings := range map[string]map[string]any{
		"labels": {"agent": "http://agent:7300", "tokenfile": "/run/secrets/token", "key": "order:{path.1}", "heldStatus": "429"},
		"YAML":   {"agent": "http://agent:7300", "tokenFile": "/run/secrets/token", "key": []any{"order:{path.1}", "a,b"}, "heldStatus": 429, "verify": map[string]any{"scheme": "github"}},
	} {
		config := traefik.CreateConfig()
		decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{DecodeHook: mapstructure.StringToSliceHookFunc(","), WeaklyTypedInput: true, Result: config})
		if err == nil {
			err = decoder.Decode(settings)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		delete(settings, "agent")
		delete(settings, "tokenfile")
		delete(settings, "tokenFile")
		if config.Agent != "http://agent:7300" || config.TokenFile != "/run/secrets/token" || !reflect.DeepEqual(config.Rule, settings) {
			t.Errorf("%s: %+v", name, config)
		}
	}
}

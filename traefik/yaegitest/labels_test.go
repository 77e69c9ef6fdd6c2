package yaegitest

import (
	"reflect"
	"testing"

	"github.com/mitchellh/mapstructure"

	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestLabels decodes settings as Traefik does (pkg/plugins/middlewareyaegi.go): labels are text only, while TOML and YAML have numbers
// and lists.
func TestLabels(t *testing.T) {
	for name, settings := range map[string]map[string]any{
		"labels": {"masters": "redis://a,redis://b", "heldStatus": "429", "wait": "2s", "passwordfile": "/run/secrets/redis", "restartGuard": "off"},
		"YAML":   {"masters": []any{"redis://a", "redis://b"}, "heldStatus": 429, "wait": "2s", "passwordFile": "/run/secrets/redis", "restartGuard": "off"},
	} {
		config := traefik.CreateConfig()
		decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{DecodeHook: mapstructure.StringToSliceHookFunc(","), WeaklyTypedInput: true, Result: config})
		if err == nil {
			err = decoder.Decode(settings)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(config.Masters, []string{"redis://a", "redis://b"}) || config.HeldStatus != 429 || config.Wait != "2s" || config.PasswordFile != "/run/secrets/redis" || config.RestartGuard != "off" || len(config.Unknown) != 0 {
			t.Errorf("%s: %+v", name, config)
		}
		settings["heldstatus2"] = "x"
		if err := decoder.Decode(settings); err != nil || len(config.Unknown) != 1 {
			t.Errorf("%s: unknown settings %v, %v", name, config.Unknown, err)
		}
	}
}

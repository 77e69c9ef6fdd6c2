package traefik

import "testing"

// TestFastProxy finds the setting wherever Traefik reads it.
func TestFastProxy(t *testing.T) {
	for text, want := range map[string]bool{
		"experimental:\n  fastProxy: {}":               true,
		"experimental:\n  # fastProxy: {}\n":           false,
		"[experimental.fastProxy]":                     true,
		"[experimental]\n  [experimental.fastProxy]":   true,
		"experimental: {plugins: {}}\n":                false,
		"experimental:\n  fastproxy:\n    debug: true": true,
	} {
		if got := switchesOnFastProxy(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	if fastProxy([]string{"traefik", "--experimental.fastProxy"}, nil) == "" {
		t.Error("not found in the arguments")
	}
	if fastProxy(nil, []string{"TRAEFIK_EXPERIMENTAL_FASTPROXY=true"}) == "" {
		t.Error("not found in the environment")
	}
}

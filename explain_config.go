package caddyredlock

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
)

// What becomes of a handler when a request is explained. One that is in neither is left out.
var (
	harmlessHandlers = []string{"authentication", "error", "headers", "invoke", "map", "redlock", "request_body", "rewrite", "static_response", "subroute", "vars"}
	lastHandlers     = []string{"file_server", "reverse_proxy"}
)

// harmless makes a configuration that only finds out which rules a request comes through: without
// masters, other apps, proxies, and certificates. The notes tell what it leaves out.
func harmless(text []byte) (config *caddy.Config, notes []string, err error) {
	var parsed struct {
		Apps struct {
			HTTP    map[string]any `json:"http"`
			Redlock map[string]any `json:"redlock"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	servers, _ := parsed.Apps.HTTP["servers"].(map[string]any)
	for _, server := range servers {
		s, ok := server.(map[string]any)
		if !ok {
			continue
		}
		for _, name := range []string{"errors", "logs", "tls_connection_policies", "listener_wrappers", "packet_conn_wrappers"} {
			delete(s, name)
		}
		s["automatic_https"] = map[string]any{"disable": true}
		tame(s["routes"], &notes)
		tame(s["named_routes"], &notes)
	}
	redlock := map[string]any{}
	for _, name := range []string{"timeout", "max_ttl", "body_budget"} { // which rules are checked against
		if value, ok := parsed.Apps.Redlock[name]; ok {
			redlock[name] = value
		}
	}
	tamed, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR"}}},
		"apps":    map[string]any{"http": parsed.Apps.HTTP, "redlock": redlock},
	})
	if err != nil {
		return nil, nil, err
	}
	config = new(caddy.Config)
	slices.Sort(notes)
	return config, slices.Compact(notes), json.Unmarshal(tamed, config)
}

// tame replaces handlers, in routes that may be in any depth.
func tame(config any, notes *[]string) {
	switch config := config.(type) {
	case []any:
		for _, item := range config {
			tame(item, notes)
		}
	case map[string]any:
		if handlers, ok := config["handle"].([]any); ok {
			config["handle"] = tameHandlers(handlers, notes)
		}
		for _, item := range config {
			tame(item, notes)
		}
	}
}

func tameHandlers(handlers []any, notes *[]string) (tamed []any) {
	for _, handler := range handlers {
		h, _ := handler.(map[string]any)
		name, _ := h["handler"].(string)
		_, goesOn := h["handle_response"] // forward_auth, which other handlers follow
		switch {
		case slices.Contains(harmlessHandlers, name):
			if name == "redlock" {
				forgetSecrets(h, notes)
			}
			tamed = append(tamed, handler)
		case slices.Contains(lastHandlers, name) && !goesOn:
			tamed = append(tamed, map[string]any{"handler": "static_response"})
		default:
			*notes = append(*notes, "the handler "+name+" is not run")
		}
	}
	return tamed
}

// forgetSecrets leaves out a signature whose secrets are not here, but where the configuration is used.
func forgetSecrets(rule map[string]any, notes *[]string) {
	text, err := json.Marshal(rule["verify"])
	if err != nil {
		return
	}
	var verify *Verify
	if json.Unmarshal(text, &verify) != nil || verify == nil || verify.check() != nil { // Provision has the better error
		return
	}
	if _, err := verify.verifier(); err != nil {
		*notes = append(*notes, "the signature can't be checked: "+err.Error())
		delete(rule, "verify")
	}
}

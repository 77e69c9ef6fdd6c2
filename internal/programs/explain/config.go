package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// The handlers that are run when a request is explained, and those that are replaced by an empty response. Others are left out.
var (
	runHandlers      = []string{"authentication", "error", "headers", "invoke", "map", "redlock", "redlock_guard", "redlock_require", "request_body", "rewrite", "static_response", "subroute", "vars"}
	replacedHandlers = []string{"file_server", "reverse_proxy"}
)

// Secrets returns the senders whose signatures are checked, with the secrets of this machine.
type Secrets func([]middleware.Verify) ([]middleware.Verify, error)

// reduction makes a configuration explainable.
type reduction struct {
	secrets Secrets
	notes   []string // what was left out
}

// explainable makes of a configuration one that only serves to find out which rules a request reaches: without masters, other
// apps, proxies and certificates. The notes say what was left out.
func explainable(text []byte, secrets Secrets) (config *caddy.Config, notes []string, err error) {
	var parsed struct {
		Apps struct {
			HTTP    map[string]any `json:"http"`
			Redlock map[string]any `json:"redlock"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	reduce := &reduction{secrets: secrets}
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
		reduce.handlersIn(s["routes"])
		reduce.handlersIn(s["named_routes"])
	}
	redlock := map[string]any{}
	for _, name := range []string{"timeout", "max_ttl", "body_budget"} { // rules are checked against these
		if value, ok := parsed.Apps.Redlock[name]; ok {
			redlock[name] = value
		}
	}
	reduced, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR"}}},
		"apps":    map[string]any{"http": parsed.Apps.HTTP, "redlock": redlock},
	})
	if err != nil {
		return nil, nil, err
	}
	config = new(caddy.Config)
	slices.Sort(reduce.notes)
	return config, slices.Compact(reduce.notes), json.Unmarshal(reduced, config)
}

// handlersIn replaces handlers in routes, however deep they are nested.
func (r *reduction) handlersIn(config any) {
	switch config := config.(type) {
	case []any:
		for _, item := range config {
			r.handlersIn(item)
		}
	case map[string]any:
		if handlers, ok := config["handle"].([]any); ok {
			config["handle"] = r.replaced(handlers)
		}
		for name, item := range config {
			if _, ofMatcher := item.(map[string]any); ofMatcher && (name == "remote_ip" || name == "client_ip") {
				r.notes = append(r.notes, "the matcher "+name+" can't be known: "+guessOf("http.request.remote"))
			}
			r.handlersIn(item)
		}
	}
}

// guesses has what is assumed for values that only a request from a client has, by the beginning of the placeholders' names.
var guesses = map[string]string{
	"http.request.remote":   "the client is assumed to be at 127.0.0.1",
	"http.vars.client_ip":   "the client is assumed to be at 127.0.0.1",
	"http.request.tls.":     "the client is assumed to have no certificate, and the connection no protocol",
	"http.request.uuid":     "each request has its own",
	"http.request.duration": "each request has its own",
	"http.request.local":    "the connection is assumed to have no address",
	"time.":                 "it is the time now",
	"env.":                  "it is read on this machine, not where the server runs",
	"system.":               "it is read on this machine, not where the server runs",
	"file.":                 "it is read on this machine, not where the server runs",
	"http.reverse_proxy.":   "no upstream is asked",
}

// guessOf returns what is assumed for a placeholder whose value can't be known here, or "" for others.
func guessOf(name string) string {
	for beginning, guess := range guesses {
		if strings.HasPrefix(name, beginning) {
			return guess
		}
	}
	return ""
}

func (r *reduction) replaced(handlers []any) (kept []any) {
	for _, handler := range handlers {
		h, _ := handler.(map[string]any)
		name, _ := h["handler"].(string)
		_, goesOn := h["handle_response"] // such as forward_auth, after which other handlers run
		switch {
		case slices.Contains(runHandlers, name):
			if name == "redlock" {
				r.dropVerify(h)
			}
			kept = append(kept, handler)
		case slices.Contains(replacedHandlers, name) && !goesOn:
			kept = append(kept, map[string]any{"handler": "static_response"})
		default:
			r.notes = append(r.notes, "the handler "+name+" is not run")
		}
	}
	return kept
}

// dropVerify removes the check of a signature whose secrets are not on this machine, but only where the server runs.
func (r *reduction) dropVerify(handler map[string]any) {
	text, err := json.Marshal(handler["verify"])
	if err != nil {
		return
	}
	var verify []middleware.Verify
	if json.Unmarshal(text, &verify) != nil { // Provision has the better error
		return
	}
	if _, err := r.secrets(verify); err != nil {
		r.notes = append(r.notes, "the signature can't be checked: "+err.Error())
		delete(handler, "verify")
	}
}

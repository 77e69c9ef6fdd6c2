package caddyredlock

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// warn logs what is valid, but hardly ever meant.
func (h *Handler) warn(log *zap.Logger) {
	rule := []zap.Field{zap.String("rule", h.RuleName()), zap.String("at", h.Source["key"])}
	for _, template := range h.templates() {
		for _, name := range unknownNames(template) {
			log.Warn("key has a placeholder that Caddy does not know: no request has a key, unless another handler sets it", append(rule, zap.String("placeholder", name))...)
		}
	}
	for _, warning := range h.serializer.Warnings() {
		log.Warn(warning, rule...)
	}
	if global := h.serializer.Global(); global != "" {
		log.Warn("key has no placeholder: all requests of this rule share one lock; a matcher begins with @, / or *", append(rule, zap.String("key", global))...)
	}
	if h.serializer.Remember > 0 && h.app.inMemory() {
		log.Warn("responses are remembered in this process's memory: after a restart, and in other processes, a repeat runs again", rule...)
	}
}

// templates returns the templates that the rule has in the configuration.
func (h *Handler) templates() []string {
	return append(h.Keys[:len(h.Keys):len(h.Keys)], h.Dedupe, h.Scope)
}

// placeholders returns the placeholders in them.
func (h *Handler) placeholders() (names []string) {
	for _, template := range h.templates() {
		names = append(names, placeholderNames(template)...)
	}
	return names
}

// jsonIndex finds the index of a list as JavaScript writes it: to a reader of JSON, items[0] is one name, and items.0 the first item.
var jsonIndex = regexp.MustCompile(`\b(?:body|json|payload)\.[^{}|&:]*\[[0-9]+\]`)

// unknownNames returns the placeholders of a template that have no value, whatever the request is.
func unknownNames(template string) (unknown []string) {
	r := &http.Request{Method: http.MethodGet, URL: new(url.URL), Header: make(http.Header), TLS: new(tls.ConnectionState)}
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	for _, name := range placeholderNames(template) {
		if _, ours := strictName(name); strings.Contains(name, ".") && !ours && !setByOthers(name) && !isKnown(repl, name) {
			unknown = append(unknown, name)
		}
	}
	for _, family := range []string{"body", "json", "form"} {
		if strings.Contains(template, family+".$.") { // JSONPath begins that way
			unknown = append(unknown, family+".$")
		}
	}
	return append(unknown, jsonIndex.FindAllString(template, -1)...)
}

// placeholderNames returns the placeholders of a template, without the fields of the body.
func placeholderNames(template string) (names []string) {
	_, _ = middleware.ParseTemplate(template, func(name string) (middleware.KeyFunc, error) {
		names = append(names, fullName(name))
		return placeholder(name)
	})
	return names
}

// isKnown reports whether Caddy has a value for a name.
func isKnown(repl *caddy.Replacer, name string) (known bool) {
	defer func() {
		if recover() != nil { // it needs a real request, so there is such a placeholder
			known = true
		}
	}()
	_, known = repl.Get(name)
	return known
}

// setByOthers reports whether a name belongs to a family that other handlers may set, or that only some requests have.
func setByOthers(name string) bool {
	if strings.HasPrefix(name, "http.request.") {
		return strings.HasPrefix(name, "http.request.tls.client.")
	}
	return strings.HasPrefix(name, "http.")
}

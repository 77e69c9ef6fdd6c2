package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// parseDedupe reads the template of the ID of a delivery, as ParseTemplate does. An ID has a single value, so that
// {body.items[].id} is an error. IDs are compared as they are sent: those that differ in case are different.
func parseDedupe(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("dedupe", text, placeholder, "ID", "is the same for all deliveries; name the sender's ID, such as {header.X-GitHub-Delivery}")
}

// parseScope reads the template of who has sent an ID, as parseDedupe does.
func parseScope(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("scope", text, placeholder, "sender", "is the same for all clients; name what tells them apart, such as {header.Authorization}")
}

func parseExact(setting, text string, placeholder PlaceholderFunc, what, global string) (*Template, error) {
	t, err := ParseTemplate(text, placeholder)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", setting, err)
	case t.Global():
		return nil, fmt.Errorf("%s: %q %s", setting, text, global)
	case t.each >= 0:
		return nil, fmt.Errorf("%s: {%s} may have several values, and there is only one %s; name an element, such as {body.items.0.id}", setting, t.parts[t.each].name, what)
	}
	t.setExact()
	return t, nil
}

// exactKey returns what reads the value of a template that parseExact has read. That of a single placeholder is its value; in a longer
// one the values are escaped, as in keys.
func (t *Template) exactKey() KeyFunc {
	if !t.isValue() {
		return t.Key
	}
	return func(r *http.Request) (string, error) { // operators name it as they know it: Bearer abc, and not Bearer%20abc
		key, err := t.Key(r)
		if err != nil {
			return "", err
		}
		return url.PathUnescape(key)
	}
}

// ScopeAt returns the scope of a delivery to one place, its host and path, such as "shop.example.com/hooks/billing": if a rule ignores
// fingerprints, an ID counts at one place alone. All spellings by which a request may reach the same handler are one place: who
// copies a delivery chooses among them.
func ScopeAt(place, scope string) string {
	if place == "" {
		return scope
	}
	host, escaped, _ := strings.Cut(place, "/")
	text, err := url.PathUnescape(escaped)
	if err != nil {
		text = escaped
	}
	segments := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(slashes, r) })
	for i, segment := range segments {
		segment, _, _ = strings.Cut(segment, ";")
		segments[i] = strings.TrimFunc(segment, fold.IsBlank)
	}
	clean := url.URL{Path: path.Clean("/" + strings.ToLower(strings.Join(segments, "/")))} // which follows the dots, as routers do
	return strings.TrimSpace(hostname(host) + clean.EscapedPath() + " " + scope)
}

// DeliveryKey returns the key of a delivery, which is locked while the delivery is served: that of the keys of its request,
// in any order, of its ID, and of who has sent it if the rule asks for that (otherwise scope is empty). All
// three are hashed, each with its length, so that no two deliveries have the same key.
func DeliveryKey(keys []string, id, scope string) string {
	if !slices.IsSorted(keys) {
		keys = slices.Sorted(slices.Values(keys))
	}
	var parts []byte
	for _, part := range append(keys[:len(keys):len(keys)], id, scope) {
		parts = binary.AppendUvarint(parts, uint64(len(part)))
		parts = append(parts, part...)
	}
	sum := sha256.Sum256(parts)
	return "dedupe:" + hex.EncodeToString(sum[:])
}

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

// Delivery is what tells a delivery from all others: only one that has all of it in common is a repeat.
type Delivery struct {
	Keys   []string // of the request, in any order; none under a rule with IdempotencyKey that compares fingerprints
	ID     string   // that its sender has given it
	Place  string   // where it goes, if the rule ignores fingerprints: "POST shop.example.com/hooks/stripe?tenant=a"
	Secret string   // with which it was signed, if the rule verifies that
	Scope  string   // who has sent it, if the rule knows that by its scope
	User   string   // who has sent it, if authentication has found that, and the rule sets no scope
}

// Key returns the key of the delivery, which is locked while that is served, and under which its answer is remembered. All parts are
// hashed, each with its length, so that no two deliveries have the same key.
func (d Delivery) Key() string {
	keys := d.Keys
	if !slices.IsSorted(keys) {
		keys = slices.Sorted(slices.Values(keys))
	}
	var parts []byte
	for _, part := range append(keys[:len(keys):len(keys)], d.ID, cleanPlace(d.Place), d.Secret, d.Scope, d.User) {
		parts = binary.AppendUvarint(parts, uint64(len(part)))
		parts = append(parts, part...)
	}
	sum := sha256.Sum256(parts)
	return "dedupe:" + hex.EncodeToString(sum[:])
}

// runningKey is the key of the delivery under a rule that remembers no answers. It is another one, so that a rule that does, inside of
// one that doesn't, has a lock of its own to ask for the answer.
func (d Delivery) runningKey() string { return "running:" + strings.TrimPrefix(d.Key(), "dedupe:") }

// place returns where a request goes. A sender that delivers one event to two places gives both deliveries the same ID: the second
// is no repeat of the first. Nor is what one method answers the answer to another.
func (rule *Serializer) place(r *http.Request) string {
	u := rule.originalURL(r)
	place := r.Method + " " + r.Host + u.EscapedPath()
	if u.RawQuery != "" {
		place += "?" + u.RawQuery
	}
	return place
}

// cleanPlace returns a place with its host and path in one spelling. All spellings by which a request may reach the same handler are one
// place: who copies a delivery chooses among them.
func cleanPlace(place string) string {
	if place == "" {
		return ""
	}
	method, place, _ := strings.Cut(place, " ")
	place, query, _ := strings.Cut(place, "?")
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
	return method + " " + hostname(host) + clean.EscapedPath() + "?" + query
}

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

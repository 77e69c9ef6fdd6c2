package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

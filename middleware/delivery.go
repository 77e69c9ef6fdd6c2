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

	"github.com/dunglas/httpsfv"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// Delivery identifies a delivery: only one that equals it in all parts is a repeat.
type Delivery struct {
	Keys   []string // of the request, in any order; none under a rule with IdempotencyKey that compares fingerprints
	ID     string   // from its sender
	Host   string   // to which it goes, without a port: "shop.example.com"
	Site   string   // in place of the host, if the rule has a Site
	Place  string   // where it goes there, if the rule ignores fingerprints: "POST /hooks/stripe?tenant=a"
	Signer string   // its signer, by the name of the rule's Verify; "" if that has none
	Scope  string   // its sender, if the rule has a scope
	User   string   // its sender, if it is authenticated, and the rule sets no scope
}

// Key returns the key of the delivery, which is locked while the delivery is served, and under which its response is remembered. All parts are
// hashed, each with its length, so that no two deliveries have the same key.
func (d Delivery) Key() string {
	keys := d.Keys
	if !slices.IsSorted(keys) {
		keys = slices.Sorted(slices.Values(keys))
	}
	var parts []byte
	for _, part := range append(keys[:len(keys):len(keys)], d.ID, hostname(d.Host), d.Site, cleanPlace(d.Place), d.Signer, d.Scope, d.User) {
		parts = binary.AppendUvarint(parts, uint64(len(part)))
		parts = append(parts, part...)
	}
	sum := sha256.Sum256(parts)
	return "dedupe:" + hex.EncodeToString(sum[:])
}

// runningKey is the key of the delivery under a rule that remembers no responses. It differs from Key, so that an inner rule that remembers them has
// a lock of its own to ask for the response.
func (d Delivery) runningKey() string { return "running:" + strings.TrimPrefix(d.Key(), "dedupe:") }

// cleanPlace returns a place with its path in one spelling. All spellings by which a request may reach the same handler are one place, because
// anybody who copies a delivery can choose among them.
func cleanPlace(place string) string {
	if place == "" {
		return ""
	}
	method, place, _ := strings.Cut(place, " ")
	place, query, _ := strings.Cut(place, "?")
	_, escaped, _ := strings.Cut(place, "/")
	text, err := url.PathUnescape(escaped)
	if err != nil {
		text = escaped
	}
	segments := strings.FieldsFunc(text, isSlash)
	for i, segment := range segments {
		segment, _, _ = strings.Cut(segment, ";")
		segments[i] = strings.TrimFunc(segment, fold.IsBlank)
	}
	clean := url.URL{Path: path.Clean("/" + strings.ToLower(strings.Join(segments, "/")))} // which follows the dots, as routers do
	return method + " " + clean.EscapedPath() + "?" + query
}

// errMissingID reports a request without the ID that it must have.
var errMissingID = &refusalReason{OutcomeMissingID, "the request must have an ID, by which a repeat is told from a new request"}

// errNoID reports a request that has nothing to lock, as it has neither keys nor an ID.
var errNoID = fmt.Errorf("%w: the request has no ID", ErrMissingKey)

// IdempotencyHeader is the header in which a client names a request that it may repeat.
const IdempotencyHeader = "Idempotency-Key"

const maxIdempotencyKey = 255 // bytes

// IdempotencyKey is the KeyFunc of the header Idempotency-Key: a string as draft-ietf-httpapi-idempotency-key-header has it,
// "8e03978e-40d5-43dd-bc93-6894a57f9324", or the same without the quotes, as most clients send it. The two are one ID. Letters
// are compared as they are: IDs that differ in case are different.
func IdempotencyKey(r *http.Request) (string, error) {
	id, err := oneHeader(r, IdempotencyHeader) // PHP takes Idempotency_Key for the same header, and may read that one
	if err == nil && id == "" {
		err = ErrMissingKey
	}
	if err != nil {
		return "", &KeyError{Placeholder: idempotencyPlaceholder, Err: err}
	}
	if strings.HasPrefix(id, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{id})
		text, isString := item.Value.(string)
		if err != nil || !isString {
			return "", errBadIdempotencyKey
		}
		id = text
	} else if strings.ContainsAny(id, `",;`) { // a list, or parameters of what is no string
		return "", errBadIdempotencyKey
	}
	if id == "" || len(id) > maxIdempotencyKey || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errBadIdempotencyKey
	}
	return id, nil
}

const idempotencyPlaceholder = "header." + IdempotencyHeader

var errBadIdempotencyKey = &refusalReason{OutcomeBadKey,
	fmt.Sprintf("header %s is no string of 1 to %d printable characters without spaces", IdempotencyHeader, maxIdempotencyKey)}

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

// changing returns the part of a header Authorization that changes between requests of one client, or "".
func changing(authorization string) string {
	scheme, rest, _ := strings.Cut(authorization, " ")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "bearer" && strings.HasPrefix(rest, "eyJ") && strings.Count(rest, ".") == 2:
		return "a refreshed token (JWT)"
	case scheme == "digest", scheme == "hawk", scheme == "mac", scheme == "oauth", scheme == "dpop", scheme == "signature", scheme == "negotiate", scheme == "ntlm",
		strings.HasPrefix(scheme, "aws4-"):
		return "another signature or nonce (" + scheme + ")"
	}
	return ""
}

package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// Delivery identifies a request and its repeats: requests that are equal in all of these fields are one delivery, and all of them get the response to
// the first one (docs/guarantees.md#whose-response-it-is). The rule isn't among the fields, because one request may pass several rules, and a rule
// may be renamed.
type Delivery struct {
	Keys   []string // the request's keys, in any order; none if they are a part of the fingerprint
	ID     string   // the ID that the sender gave the delivery
	Host   string   // the requested host, without a port: "shop.example.com"
	Site   string   // replaces the host if the rule has a Site
	Place  string   // method, path and query, if the rule ignores fingerprints: "POST /hooks/stripe?tenant=a"
	Signer string   // the name of the signer in the rule's Verify; "" if the signer has no name
	Scope  string   // the sender by the rule's Scope; "" if there is no Scope
	User   string   // the authenticated sender, if there is one and the rule sets no Scope
}

// identify returns the delivery to which a request with these keys belongs. The ID in it is empty if the request has no ID.
func (c *compiled) identify(r *http.Request, signer string, keys []string) (d Delivery, err error) {
	d.ID, err = c.dedupe(r)
	switch {
	case errors.Is(err, ErrMissingKey) && c.IdempotencyKey == required:
		return d, errMissingID
	case errors.Is(err, ErrMissingKey):
		return Delivery{}, nil
	case err != nil:
		return d, err
	}
	if d.User, d.Scope, err = c.identifySender(r); err != nil {
		return d, err
	}
	if d.Site = c.Site; d.Site == "" { // the host is a part of the delivery, because users of two sites may have the same name
		if d.Host, err = requestedHost(r); err != nil || d.Host == "" {
			return d, errNoSite
		}
	}
	d.Signer = signer
	if !*c.Fingerprint {
		d.Place = c.place(r)
	}
	if !c.comparesKeys() {
		d.Keys = keys
	}
	return d, nil
}

// identifySender determines the sender of an ID: the authenticated user, or else the scope.
func (c *compiled) identifySender(r *http.Request) (user, scope string, err error) {
	if c.byUser {
		if user = c.User(r); user != "" {
			return user, "", nil
		}
	}
	if c.scope == nil {
		return "", "", nil
	}
	scope, err = c.scope(r)
	switch {
	case errors.Is(err, ErrMissingKey):
		missing := &refusalReason{outcome: OutcomeMissingScope, text: "scope " + c.Scope + ": missing or empty"}
		if c.scopeIsAuthorization() {
			missing.status = http.StatusUnauthorized
		}
		return "", "", missing
	case err == nil && c.Remember > 0 && c.scopeIsAuthorization():
		if kind := changing(r.Header.Get("Authorization")); kind != "" {
			c.logSometimes(slog.LevelWarn, "scope changes while the client stays the same: a repeat with "+kind+" is another client's to this rule, and runs again; see docs/recipes.md#an-api-with-idempotency-key", "scope")
		}
	}
	return "", scope, err
}

// place returns the method, path and query of a request. A sender may deliver one event to two paths with the same ID, but the second delivery isn't
// a repeat of the first. Likewise, the response to one method must not answer a request with another method.
func (c *compiled) place(r *http.Request) string {
	u := c.originalURL(r)
	place := r.Method + " " + u.EscapedPath()
	if u.RawQuery != "" {
		place += "?" + u.RawQuery
	}
	return place
}

// comparesKeys reports whether the keys are a part of the fingerprint, so that a request with a known ID but different keys is refused. Otherwise
// they are a part of the delivery. An ID in the header Idempotency-Key is unique among all requests of its client. An ID from dedupe is only known to
// be unique for one key.
func (c *compiled) comparesKeys() bool {
	return c.identifiesByHeader() && c.Remember > 0 && *c.Fingerprint
}

// fingerprint returns a hash of the parts in which all requests of one delivery are equal: the method, the target, the body and, if comparesKeys
// reports true, the keys. It is empty if the rule ignores fingerprints. Headers are not among the parts, because a repeat may have other cookies,
// languages and trace IDs than the first request.
func (c *compiled) fingerprint(r *http.Request, keys []string) (f remember.Fingerprint, err error) {
	if !*c.Fingerprint {
		return f, nil
	}
	if !c.comparesKeys() {
		keys = nil
	}
	body, err := bodyBytes(r)
	if err != nil {
		return f, err
	}
	return remember.FingerprintOf(body, append(slices.Clip(keys), r.Method, c.originalURL(r).RequestURI())...), nil
}

// asksPart reports whether a request has Range or a condition (If-…), so that the response may be only a part of the whole, or empty. Such a response
// isn't remembered, because a repeat may ask for the whole. The repeat may run, because such a response means that nothing was changed.
func asksPart(r *http.Request) bool {
	return hasHeader(r.Header, []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"})
}

func isPart(status int) bool {
	return slices.Contains([]int{http.StatusPartialContent, http.StatusNotModified, http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable}, status)
}

// Key returns the lock key of the delivery. It is locked while the delivery is served, and the response is remembered under it. Each part is hashed
// with its length, so no two deliveries have the same key.
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

// runningKey is the lock key of the delivery under a rule that remembers no responses. It differs from Key. So an inner rule that remembers responses
// can lock Key, and get the remembered response with that lock.
func (d Delivery) runningKey() string { return "running:" + strings.TrimPrefix(d.Key(), "dedupe:") }

// cleanPlace returns a place with its path in one spelling. All spellings with which a request may reach one handler are the same place, because
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
	clean := url.URL{Path: path.Clean("/" + strings.ToLower(strings.Join(segments, "/")))} // path.Clean follows the dots, as routers do
	return method + " " + clean.EscapedPath() + "?" + query
}

var errMissingID = &refusalReason{outcome: OutcomeMissingID, text: "the request must have the header " + IdempotencyHeader + ", by which a repeat is told from a new request"}

// errNoSite is the error for a request with an ID that may be for several sites, or for none.
var errNoSite = &refusalReason{outcome: OutcomeBadKey, text: "the request has no host, or the header Forwarded names a second one: if all are one site, the rule needs its name (site)"}

// errNoID is the error for a request that has neither keys nor an ID, and so nothing to lock.
var errNoID = fmt.Errorf("%w: the request has no ID", ErrMissingKey)

// IdempotencyHeader is the header in which a client gives an ID to a request that it may repeat.
const IdempotencyHeader = "Idempotency-Key"

const maxIdempotencyKey = 255 // bytes

// idempotencyKey is the KeyFunc for the header Idempotency-Key. It accepts a string as draft-ietf-httpapi-idempotency-key-header has it,
// "8e03978e-40d5-43dd-bc93-6894a57f9324", or the same without quotes, as most clients send it. Both forms are the same ID. IDs that
// differ only in case are different.
func idempotencyKey(r *http.Request) (string, error) {
	id, err := oneHeader(r, IdempotencyHeader) // PHP takes Idempotency_Key for the same header, and may read it instead
	if err == nil && id == "" {
		err = ErrMissingKey
	}
	if err != nil {
		return "", &keyError{Placeholder: idempotencyPlaceholder, Err: err}
	}
	if strings.HasPrefix(id, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{id})
		text, isString := item.Value.(string)
		if err != nil || !isString {
			return "", errBadIdempotencyKey
		}
		id = text
	} else if strings.ContainsAny(id, `",;`) { // several IDs, or an ID with parameters
		return "", errBadIdempotencyKey
	}
	if id == "" || len(id) > maxIdempotencyKey || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errBadIdempotencyKey
	}
	return id, nil
}

const idempotencyPlaceholder = "header." + IdempotencyHeader

var errBadIdempotencyKey = &refusalReason{outcome: OutcomeBadKey,
	text: fmt.Sprintf("header %s is no string of 1 to %d printable characters without spaces", IdempotencyHeader, maxIdempotencyKey)}

// parseDedupe parses the template for the ID of a delivery. An ID has a single value, so {body.items[].id} is an error. IDs that differ only in case
// are different.
func parseDedupe(text string, placeholder placeholderFunc) (*keyTemplate, error) {
	return parseExact("dedupe", text, placeholder, "ID", "is the same for all deliveries; name the sender's ID, such as {header.X-GitHub-Delivery}")
}

func parseScope(text string, placeholder placeholderFunc) (*keyTemplate, error) {
	return parseExact("scope", text, placeholder, "sender", "is the same for all clients; name what tells them apart, such as {header.Authorization}")
}

func parseExact(setting, text string, placeholder placeholderFunc, what, global string) (*keyTemplate, error) {
	t, err := parseTemplate(text, placeholder)
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

// changing returns the part of a header Authorization that differs between requests of one client, or "".
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

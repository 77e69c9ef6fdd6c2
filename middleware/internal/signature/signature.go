// Package signature checks the signatures of webhooks.
package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	size = sha256.Size

	maxSignatures = 16 // the most signatures of a request; senders add a signature for each secret that is valid
)

// Error says why a signature isn't accepted.
type Error string

func (e Error) Error() string { return string(e) }

// The errors of Check.
const (
	ErrUnsigned Error = "signature is missing or can't be read"
	ErrMismatch Error = "signature doesn't match"
	ErrReplay   Error = "signature timestamp is outside the replay window"
)

// Verifier checks signatures of one sender, with one secret or several.
type Verifier struct {
	scheme scheme
	keys   [][]byte
}

// scheme says how a sender signs with HMAC-SHA256.
type scheme struct {
	headers []string
	claim   func(http.Header) (claim, bool)
	// key makes a key from a secret. Default: the bytes of the secret.
	key func(secret string) ([]byte, error)
	// inside reports whether the body itself has signatures, each made with one of the keys. It is called if no signature in the headers matches.
	inside func(body []byte, keys [][]byte) bool
	// empty reports whether the sender's library also accepts a signed request without a body.
	empty bool
}

var schemes = map[string]scheme{
	"stripe":  {headers: []string{"Stripe-Signature"}, claim: stripeClaim},
	"github":  {headers: []string{"X-Hub-Signature-256"}, claim: githubClaim},
	"shopify": {headers: []string{"X-Shopify-Hmac-Sha256", "Shopify-Hmac-Sha256"}, claim: shopifyClaim},
	"slack":   {headers: []string{"X-Slack-Signature", "X-Slack-Request-Timestamp"}, claim: slackClaim, empty: true},
	"standard-webhooks": {headers: []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Svix-Id", "Svix-Timestamp", "Svix-Signature"},
		claim: standardClaim, key: standardKey},
	"adyen": {headers: []string{"Hmacsignature"}, claim: adyenClaim, key: adyenKey, inside: adyenItems},
}

// New returns a Verifier for the scheme with this name. The Verifier accepts a signature made with any of the secrets. Errors contain no secret.
func New(name string, secrets []string) (*Verifier, error) {
	s, ok := schemes[name]
	if !ok {
		return nil, fmt.Errorf("unknown scheme; want one of %s", strings.Join(slices.Sorted(maps.Keys(schemes)), ", "))
	}
	if len(secrets) == 0 {
		return nil, errors.New("want at least one secret")
	}
	v := &Verifier{scheme: s}
	for i, secret := range secrets {
		key, err := []byte(secret), error(nil)
		if s.key != nil {
			key, err = s.key(secret)
		}
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		if len(key) == 0 {
			return nil, fmt.Errorf("secret %d is empty", i+1)
		}
		if strings.TrimSpace(secret) == "" {
			return nil, fmt.Errorf("secret %d is blank", i+1)
		}
		v.keys = append(v.keys, key)
	}
	return v, nil
}

func (v *Verifier) Headers() []string { return v.scheme.headers }

// SharesSecret reports whether both Verifiers accept signatures made with the same key.
func (v *Verifier) SharesSecret(other *Verifier) bool {
	return slices.ContainsFunc(v.keys, func(key []byte) bool {
		return slices.ContainsFunc(other.keys, func(others []byte) bool { return bytes.Equal(key, others) })
	})
}

// Check returns an Error unless a request is signed with any of the secrets, at a time within the window around now. It reads the body
// only if the headers may belong to a signed request, and returns any error of reading it.
func (v *Verifier) Check(h http.Header, window time.Duration, readBody func() ([]byte, error)) error {
	claimed, ok := v.scheme.claim(h)
	if !ok || len(claimed.signatures) == 0 || len(claimed.signatures) > maxSignatures {
		if v.scheme.inside == nil {
			return ErrUnsigned
		}
		claimed.signatures = nil
	}
	if claimed.sent != "" {
		seconds, err := strconv.ParseInt(claimed.sent, 10, 64)
		if err != nil || strconv.FormatInt(seconds, 10) != claimed.sent {
			return ErrUnsigned
		}
		if age := time.Since(time.Unix(seconds, 0)); age > window || age < -window {
			return ErrReplay
		}
	}
	body, err := readBody()
	if err != nil {
		return err
	}
	if claimed.dotted && !bytes.HasPrefix(body, []byte("{")) && !bytes.HasPrefix(body, []byte("[")) {
		return ErrUnsigned
	}
	// Senders write UTF-8. Their libraries would read other bytes as a text that was not signed.
	if !utf8.Valid(body) || bytes.HasPrefix(body, []byte("\ufeff")) || len(body) == 0 && !v.scheme.empty {
		return ErrMismatch
	}
	for _, key := range v.keys {
		want := sign(key, claimed.prefix, body)
		for _, signature := range claimed.signatures {
			if hmac.Equal(signature, want) {
				return nil
			}
		}
	}
	if v.scheme.inside != nil && v.scheme.inside(body, v.keys) {
		return nil
	}
	return ErrMismatch
}

func sign(key []byte, prefix string, body []byte) []byte {
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte(prefix))
	sum.Write(body)
	return sum.Sum(nil)
}

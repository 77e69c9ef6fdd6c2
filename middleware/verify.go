package middleware

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultReplayWindow = 5 * time.Minute

	maxSignatures = 16 // of a request; senders give one for each secret that is valid
)

var (
	errUnsigned     = &rejection{BadSignature, http.StatusUnauthorized, "signature is missing or can't be read"}
	errBadSignature = &rejection{BadSignature, http.StatusUnauthorized, "signature doesn't match"}
	errReplay       = &rejection{BadSignature, http.StatusUnauthorized, "signature is too old, or of the future"}
)

// Verifier checks the signature of a webhook, so that nobody without the secret can hold a key.
type Verifier struct {
	scheme scheme
	keys   [][]byte
}

// scheme is how a sender signs: with HMAC-SHA256.
type scheme struct {
	// claim reads the headers of a request.
	claim func(http.Header) (claim, bool)
	// key makes the key of a secret. Default: its bytes.
	key func(secret string) ([]byte, error)
}

// claim is what the headers of a request say.
type claim struct {
	prefix     string // is signed before the body
	signatures [][]byte
	sent       string // in seconds since 1970; empty where the sender doesn't sign the time
}

var schemes = map[string]scheme{
	"stripe":            {claim: stripeClaim},
	"github":            {claim: githubClaim},
	"shopify":           {claim: shopifyClaim},
	"slack":             {claim: slackClaim},
	"standard-webhooks": {claim: standardClaim, key: standardKey},
}

// NewVerifier makes a Verifier of a scheme: stripe, github, shopify, slack or standard-webhooks. A
// signature with any one of the secrets is good, so that they can be changed. The error shows no
// secret.
func NewVerifier(name string, secrets ...string) (*Verifier, error) {
	s, ok := schemes[name]
	if !ok {
		return nil, fmt.Errorf("verify %q: unknown scheme; there are %s", name, strings.Join(slices.Sorted(maps.Keys(schemes)), ", "))
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("verify %s: want at least one secret", name)
	}
	v := &Verifier{scheme: s}
	for i, secret := range secrets {
		key, err := []byte(secret), error(nil)
		if s.key != nil {
			key, err = s.key(secret)
		}
		if err != nil {
			return nil, fmt.Errorf("verify %s: secret %d: %w", name, i+1, err)
		}
		if len(key) == 0 {
			return nil, fmt.Errorf("verify %s: secret %d is empty", name, i+1)
		}
		v.keys = append(v.keys, key)
	}
	return v, nil
}

// check says whether a request is signed, and not longer ago than the window.
func (v *Verifier) check(r *http.Request, window time.Duration) error {
	claimed, ok := v.scheme.claim(r.Header)
	if !ok || len(claimed.signatures) == 0 || len(claimed.signatures) > maxSignatures {
		return errUnsigned
	}
	if claimed.sent != "" {
		seconds, err := strconv.ParseInt(claimed.sent, 10, 64)
		if err != nil {
			return errUnsigned
		}
		if age := time.Since(time.Unix(seconds, 0)); age > window || age < -window {
			return errReplay
		}
	}
	body, err := bodyBytes(r)
	if err != nil {
		return err
	}
	for _, key := range v.keys {
		sum := hmac.New(sha256.New, key)
		sum.Write([]byte(claimed.prefix))
		sum.Write(body)
		want := sum.Sum(nil)
		for _, signature := range claimed.signatures {
			if hmac.Equal(signature, want) {
				return nil
			}
		}
	}
	return errBadSignature
}

// add adds a signature, if it is one.
func (c *claim) add(signature []byte, err error) {
	if err == nil && len(signature) == sha256.Size {
		c.signatures = append(c.signatures, signature)
	}
}

// stripeClaim: https://docs.stripe.com/webhooks/signature
func stripeClaim(h http.Header) (c claim, ok bool) {
	header, err := single(h["Stripe-Signature"])
	if err != nil {
		return c, false
	}
	for item := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case name == "t" && c.sent != "":
			return c, false
		case name == "t":
			c.sent = value
		case name == "v1":
			c.add(hex.DecodeString(value))
		}
	}
	c.prefix = c.sent + "."
	return c, c.sent != ""
}

// githubClaim: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
func githubClaim(h http.Header) (c claim, ok bool) {
	header, err := single(h["X-Hub-Signature-256"])
	value, found := strings.CutPrefix(header, "sha256=")
	c.add(hex.DecodeString(value))
	return c, err == nil && found
}

// shopifyClaim: https://shopify.dev/docs/apps/build/webhooks/subscribe/https
func shopifyClaim(h http.Header) (c claim, ok bool) {
	header, err := single(h["X-Shopify-Hmac-Sha256"])
	c.add(base64.StdEncoding.DecodeString(header))
	return c, err == nil
}

// slackClaim: https://docs.slack.dev/authentication/verifying-requests-from-slack
func slackClaim(h http.Header) (c claim, ok bool) {
	header, err := single(h["X-Slack-Signature"])
	sent, noTime := single(h["X-Slack-Request-Timestamp"])
	value, found := strings.CutPrefix(header, "v0=")
	c.add(hex.DecodeString(value))
	c.sent, c.prefix = sent, "v0:"+sent+":"
	return c, err == nil && noTime == nil && found && sent != ""
}

// standardClaim: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
func standardClaim(h http.Header) (c claim, ok bool) {
	id, noID := single(h["Webhook-Id"])
	sent, noTime := single(h["Webhook-Timestamp"])
	header, err := single(h["Webhook-Signature"])
	for item := range strings.FieldsSeq(header) {
		if value, found := strings.CutPrefix(item, "v1,"); found {
			c.add(base64.StdEncoding.DecodeString(value))
		}
	}
	c.sent, c.prefix = sent, id+"."+sent+"."
	// a dot in the ID would make it unclear where the time begins
	return c, err == nil && noID == nil && noTime == nil && sent != "" && id != "" && !strings.Contains(id, ".")
}

func standardKey(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return nil, errors.New("want whsec_ and base64")
	}
	return key, nil
}

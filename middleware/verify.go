package middleware

import (
	"cmp"
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
)

const defaultReplayWindow = 5 * time.Minute

// Verifier checks the signatures of webhooks, so that nobody without the secret can hold a key.
type Verifier struct{ signatures *signature.Verifier }

// NewVerifier returns a Verifier of a scheme: stripe, github, shopify, slack, standard-webhooks or adyen. It accepts the
// signatures made with any of the secrets, so that a secret can be replaced without a gap. An unknown scheme, and a secret
// that is empty or malformed, is an error, which does not show the secret.
func NewVerifier(scheme string, secrets ...string) (*Verifier, error) {
	signatures, err := signature.New(scheme, secrets)
	if err != nil {
		return nil, err
	}
	return &Verifier{signatures}, nil
}

// verify returns an error unless the request is signed as the rule demands.
func (rule *Rule) verify(r *http.Request) error {
	if rule.Verify == nil {
		return nil
	}
	return rule.Verify.signatures.Check(r.Header, cmp.Or(rule.ReplayWindow, defaultReplayWindow), func() ([]byte, error) { return bodyBytes(r) })
}

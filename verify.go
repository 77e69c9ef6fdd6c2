package caddyredlock

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Verify is how the signature of a webhook is checked, before its lock is taken.
type Verify struct {
	// Who signs, and so how: stripe, github, shopify, slack or standard-webhooks.
	Scheme string `json:"scheme,omitempty"`
	// The secrets, best as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A
	// signature with any one of them is good, so that they can be changed.
	Secrets []string `json:"secrets,omitempty"`
}

// verifier replaces the placeholders. Its errors show no value: it is a secret.
func (v *Verify) verifier() (*middleware.Verifier, error) {
	repl := caddy.NewReplacer()
	secrets := make([]string, len(v.Secrets))
	for i, text := range v.Secrets {
		var err error
		if secrets[i], err = repl.ReplaceOrErr(text, true, true); err != nil {
			return nil, fmt.Errorf("verify %s: the placeholder of secret %d is unknown or empty (is the variable set; is the file there, and named with its whole path?)", v.Scheme, i+1)
		}
	}
	return middleware.NewVerifier(v.Scheme, secrets...)
}

// check says what is wrong, as far as the secrets need not be known for it.
func (v *Verify) check() error {
	secrets := make([]string, len(v.Secrets))
	for i := range secrets {
		secrets[i] = "AAAA" // a secret in each scheme
	}
	_, err := middleware.NewVerifier(v.Scheme, secrets...)
	return err
}

func verifyArgs(d *caddyfile.Dispenser, into **Verify) error {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return d.Err("verify: want a scheme and at least one secret, such as stripe {env.STRIPE_SECRET}")
	}
	*into = &Verify{Scheme: args[0], Secrets: args[1:]}
	return nil
}

package caddyredlock

import (
	"errors"
	"fmt"
	"math"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// check returns what is wrong with the configuration, as far as that can be known without the app and the secrets: the Caddyfile's
// parser calls it, too.
func (h *Handler) check() error {
	rule := h.Rule
	rule.BodyBudget = middleware.NewBudget(math.MaxInt64) // the app's is not known yet
	rule.Verify = anySecrets(h.Verify)
	_, err := middleware.Compile(rule, placeholderOf)
	return err
}

// finished reports whether the next handlers are certainly done, although they returned an error. A proxy that gave up on its
// upstream returns 499, if the client has left, or more.
func finished(err error) bool {
	var response caddyhttp.HandlerError
	return errors.As(err, &response) && response.StatusCode > 0 && response.StatusCode < 499
}

// anySecrets returns the check of a signature with secrets that every scheme accepts.
func anySecrets(verify *middleware.Verify) *middleware.Verify {
	if verify == nil {
		return nil
	}
	secrets := make([]string, len(verify.Secrets))
	for i := range secrets {
		secrets[i] = "AAAA"
	}
	return &middleware.Verify{Scheme: verify.Scheme, Secrets: secrets}
}

// withSecrets returns the check of a signature with the placeholders of its secrets replaced. Its errors show no secrets.
func withSecrets(verify *middleware.Verify) (*middleware.Verify, error) {
	replaced := anySecrets(verify)
	if verify == nil {
		return nil, nil
	}
	for i, text := range verify.Secrets {
		secret, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
		if err != nil {
			return nil, fmt.Errorf("verify %s: the placeholder of secret %d is unknown or empty (is the variable set? does the file exist, and is its path absolute?)", verify.Scheme, i+1)
		}
		replaced.Secrets[i] = secret
	}
	return replaced, nil
}

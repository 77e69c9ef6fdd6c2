package caddyredlock

import (
	"errors"
	"math"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// buildRule builds the rule, or returns what is wrong with the configuration as far as that can be known without the app:
// the Caddyfile's parser calls it too.
func (h *Handler) buildRule() (err error) {
	h.rule = &middleware.Rule{
		Finished:   finished,
		BodyBudget: middleware.NewBudget(math.MaxInt64), // replaced by the app's, which is not known yet
	}
	h.keys, err = h.Fill(h.rule, placeholderOf)
	return err
}

// finished reports whether the next handlers are certainly done, although they returned an error. A proxy that gave up on its
// upstream returns 499, if the client has left, or more.
func finished(err error) bool {
	var answer caddyhttp.HandlerError
	return errors.As(err, &answer) && answer.StatusCode > 0 && answer.StatusCode < 499
}

// derive returns the function that derives the keys of a request, or nil if the rule locks only IDs.
func (h *Handler) derive() middleware.KeysFunc {
	if h.keys == nil {
		return nil
	}
	return h.keys.Keys
}

// caddysSecret replaces the placeholders of a secret.
func caddysSecret(text string) (string, error) {
	secret, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
	if err != nil {
		return "", errors.New("is unknown or empty (is the variable set? does the file exist, and is its path absolute?)")
	}
	return secret, nil
}

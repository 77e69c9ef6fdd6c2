package caddyredlock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// buildRule builds the rule, or returns what is wrong with the configuration as far as that can be known without the app:
// the Caddyfile's parser calls it too.
func (h *Handler) buildRule() error {
	var preset middleware.Preset
	var err error
	if h.Preset != "" {
		if preset, err = middleware.LookupPreset(h.Preset); err != nil {
			return err
		}
	}
	wait := cmp.Or(time.Duration(h.Wait), preset.Wait)
	remember := cmp.Or(time.Duration(h.Remember), preset.Remember)
	h.rule = &middleware.Rule{
		Name:           h.name(),
		Wait:           max(wait, 0),
		TTL:            time.Duration(h.TTL),
		MaxHold:        time.Duration(h.MaxHold),
		HoldAfterAbort: time.Duration(h.HoldAfterAbort),
		Finished:       finished,
		MaxWaiters:     h.MaxWaiters,
		FenceHeader:    h.FenceHeader,
		HeldStatus:     cmp.Or(h.HeldStatus, preset.HeldStatus),
		NoQuorumStatus: h.NoQuorumStatus,
		HashKeys:       h.HashKeys,
		MaxBody:        cmp.Or(h.MaxBody, preset.MaxBody),
		BodyTimeout:    time.Duration(h.BodyTimeout),
		BodyBudget:     middleware.NewBudget(math.MaxInt64), // replaced by the app's, which is not known yet
		BufferBody:     h.Preset != "",
		ReplayWindow:   time.Duration(h.ReplayWindow),
		DedupeStatus:   h.DedupeStatus,
		AllowUpgrade:   h.AllowUpgrade,
		DryRun:         h.DryRun,
		HideOutcome:    h.HideOutcome,
		LogKeys:        h.LogKeys,

		Remember:          max(remember, 0),
		RememberSize:      h.RememberSize,
		RememberCookies:   h.RememberCookies,
		IgnoreFingerprint: preset.IgnoreFingerprint,
	}
	if err := h.parseKeys(preset.Key); err != nil {
		return err
	}
	if h.BufferBody != nil {
		h.rule.BufferBody = *h.BufferBody
	}
	if err := h.buildMemory(preset); err != nil {
		return err
	}
	if h.Verify != nil {
		if err := h.Verify.check(); err != nil {
			return err
		}
	}
	for _, choice := range []struct {
		option, value, otherwise, special string
		into                              *bool
	}{
		{"on_missing_key", h.OnMissingKey, "refuse", "pass", &h.rule.PassMissingKey},
		{"on_no_quorum", h.OnNoQuorum, "refuse", "pass", &h.rule.PassNoQuorum},
		{"too_large", h.TooLarge, "answer", "run", &h.rule.TooLargeRuns},
		{"on_client_abort", cmp.Or(h.OnClientAbort, "run"), "cancel", "run", &h.rule.RunToEnd},
	} {
		switch choice.value {
		case choice.special:
			*choice.into = true
		case "", choice.otherwise:
		default:
			return fmt.Errorf("%s %q: want %s or %s", choice.option, choice.value, choice.otherwise, choice.special)
		}
	}
	return h.rule.Check()
}

// finished reports whether the next handlers are certainly done, although they returned an error. A proxy that gave up on its
// upstream returns 499, if the client has left, or more.
func finished(err error) bool {
	var answer caddyhttp.HandlerError
	return errors.As(err, &answer) && answer.StatusCode > 0 && answer.StatusCode < 499
}

func (h *Handler) parseKeys(preset string) (err error) {
	keys := h.Keys
	if len(keys) == 0 && preset != "" {
		keys = []string{preset}
	}
	if len(keys) == 0 {
		return nil
	}
	h.keys, err = middleware.ParseTemplates(keys, h.placeholder)
	return err
}

// derive returns the function that derives the keys of a request, or nil if the rule locks only IDs.
func (h *Handler) derive() middleware.KeysFunc {
	if h.keys == nil {
		return nil
	}
	return h.keys.Keys
}

// Verify configures how the signature of a webhook is checked, before its lock is taken.
type Verify struct {
	// The provider that signs, which determines how: stripe, github, shopify, slack, standard-webhooks or adyen.
	Scheme string `json:"scheme,omitempty"`
	// The secrets, best as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A
	// signature made with any one of them is accepted, so that secrets can be rotated.
	Secrets []string `json:"secrets,omitempty"`
}

// verifier replaces the placeholders and returns the verifier. Its errors show no values, because they are secrets.
func (v *Verify) verifier() (*middleware.Verifier, error) {
	repl := caddy.NewReplacer()
	secrets := make([]string, len(v.Secrets))
	for i, text := range v.Secrets {
		var err error
		if secrets[i], err = repl.ReplaceOrErr(text, true, true); err != nil {
			return nil, fmt.Errorf("verify %s: the placeholder of secret %d is unknown or empty (is the variable set? does the file exist, and is its path absolute?)", v.Scheme, i+1)
		}
	}
	return middleware.NewVerifier(v.Scheme, secrets...)
}

// check returns what is wrong, as far as that can be known without the secrets.
func (v *Verify) check() error {
	secrets := make([]string, len(v.Secrets))
	for i := range secrets {
		secrets[i] = "AAAA" // which every scheme accepts as a secret
	}
	_, err := middleware.NewVerifier(v.Scheme, secrets...)
	return err
}

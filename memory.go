package caddyredlock

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// buildMemory adds to the rule how deliveries are identified, and how their answers are remembered.
func (h *Handler) buildMemory(preset middleware.Preset) (err error) {
	if err := h.identify(preset); err != nil {
		return err
	}
	if h.keys == nil && !h.identifiesByHeader(preset) {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}; a first value that begins with / or @ is taken for a matcher")
	}
	scope := h.Scope
	if h.rule.Dedupe != nil { // the rule may have turned the preset's ID off, and has no need of its scope then
		scope = cmp.Or(scope, preset.Scope)
	}
	if scope != "" && scope != "off" {
		if h.rule.Scope, err = middleware.ParseScope(scope, h.placeholder); err != nil {
			return err
		}
	}
	if h.Fingerprint != nil {
		h.rule.IgnoreFingerprint = !*h.Fingerprint
	}
	statuses := h.RememberStatus
	if statuses == nil {
		statuses = preset.RememberStatus
	}
	if statuses != nil {
		if h.rule.RememberStatus, err = middleware.ParseStatuses(statuses...); err != nil {
			return err
		}
	}
	if h.rule.Remember > 0 {
		return nil
	}
	for name, set := range map[string]bool{"remember_size": h.RememberSize != 0, "remember_status": h.RememberStatus != nil,
		"remember_cookies": h.RememberCookies, "too_large": h.TooLarge != "", "fingerprint": h.Fingerprint != nil} {
		if set {
			return fmt.Errorf("%s needs remember, as nothing is remembered without it", name)
		}
	}
	return nil
}

// identify adds to the rule how the ID of a delivery is found.
func (h *Handler) identify(preset middleware.Preset) (err error) {
	template := cmp.Or(h.Dedupe, preset.Dedupe)
	switch h.IdempotencyKey {
	case "", "off", "required", "optional":
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", h.IdempotencyKey)
	}
	if h.identifiesByHeader(preset) {
		if h.Dedupe != "" && h.Dedupe != "off" {
			return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
		}
		h.rule.Dedupe, h.rule.RequireID = middleware.IdempotencyKey, h.IdempotencyKey != "optional"
		return nil
	}
	if template == "" || template == "off" {
		return nil
	}
	h.rule.Dedupe, err = middleware.ParseDedupe(template, h.placeholder)
	return err
}

// identifiesByHeader reports whether the ID of a request is its header Idempotency-Key.
func (h *Handler) identifiesByHeader(preset middleware.Preset) bool {
	if h.IdempotencyKey == "" {
		return preset.IdempotencyKey && (h.Dedupe == "" || h.Dedupe == "off")
	}
	return h.IdempotencyKey != "off"
}

// loadSealer reads the keys for the answers on the masters. Its errors don't show them.
func loadSealer(files []string) (*middleware.Sealer, error) {
	if len(files) == 0 {
		return nil, nil
	}
	keys := make([][]byte, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("remember_keys: %w", err)
		}
		if keys[i], err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("remember_keys %s: not base64; make a key with: openssl rand -base64 32", file)
		}
	}
	sealer, err := middleware.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("remember_keys: %w; make a key with: openssl rand -base64 32", err)
	}
	return sealer, nil
}

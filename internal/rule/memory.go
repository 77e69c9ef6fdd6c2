package rule

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// builder fills in the part of a rule that is about deliveries.
type builder struct {
	*Settings
	rule    *middleware.Rule
	preset  middleware.Preset
	compile middleware.PlaceholderFunc
}

// remember adds to the rule how deliveries are identified, and how their answers are remembered.
func (b *builder) remember(hasKeys bool) (err error) {
	if err := b.identify(); err != nil {
		return err
	}
	if !hasKeys && !b.identifiesByHeader() {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}; a first value that begins with / or @ is taken for a matcher")
	}
	scope := b.Scope
	if b.rule.Dedupe != nil { // the rule may have turned the preset's ID off, and has no need of its scope then
		scope = cmp.Or(scope, b.preset.Scope)
	}
	if scope != "" && scope != "off" {
		if b.rule.Scope, err = middleware.ParseScope(scope, b.compile); err != nil {
			return err
		}
	}
	if b.Fingerprint != nil {
		b.rule.IgnoreFingerprint = !*b.Fingerprint
	}
	statuses := b.RememberStatus
	if statuses == nil {
		statuses = b.preset.RememberStatus
	}
	if statuses != nil {
		if b.rule.RememberStatus, err = middleware.ParseStatuses(statuses...); err != nil {
			return err
		}
	}
	if b.rule.Remember > 0 {
		return nil
	}
	for name, set := range map[string]bool{"remember_size": b.RememberSize != 0, "remember_status": b.RememberStatus != nil,
		"fingerprint": b.Fingerprint != nil} {
		if set {
			return fmt.Errorf("%s needs remember, as nothing is remembered without it", name)
		}
	}
	return nil
}

// identify adds to the rule how the ID of a delivery is found.
func (b *builder) identify() (err error) {
	template := cmp.Or(b.Dedupe, b.preset.Dedupe)
	switch b.IdempotencyKey {
	case "", "off", "required", "optional":
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", b.IdempotencyKey)
	}
	if b.identifiesByHeader() {
		if b.Dedupe != "" && b.Dedupe != "off" {
			return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
		}
		b.rule.Dedupe, b.rule.RequireID = middleware.IdempotencyKey, b.IdempotencyKey != "optional"
		return nil
	}
	if template == "" || template == "off" {
		return nil
	}
	b.rule.Dedupe, err = middleware.ParseDedupe(template, b.compile)
	return err
}

// identifiesByHeader reports whether the ID of a request is its header Idempotency-Key.
func (b *builder) identifiesByHeader() bool {
	if b.IdempotencyKey == "" {
		return b.preset.IdempotencyKey && (b.Dedupe == "" || b.Dedupe == "off")
	}
	return b.IdempotencyKey != "off"
}

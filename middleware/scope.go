package middleware

import (
	"log/slog"
	"strings"
)

// identifySender finds out who has sent the ID.
func (s *serving) identifySender() (err error) {
	if s.rule.byUser {
		if s.delivery.User = s.rule.User(s.r); s.delivery.User != "" {
			return nil
		}
	}
	if s.rule.scope == nil {
		return nil
	}
	s.delivery.Scope, err = s.rule.scope(s.r)
	if err == nil && s.rule.Remember > 0 && s.rule.scopeIsAuthorization() {
		if kind := changing(s.r.Header.Get("Authorization")); kind != "" {
			s.rule.logSometimes(slog.LevelWarn, "scope changes while the client stays the same: a repeat with "+kind+" is another client's to this rule, and runs again; see docs/recipes.md#an-api-with-idempotency-key", "scope")
		}
	}
	return err
}

func (rule *Rule) scopeIsAuthorization() bool {
	return strings.Contains(strings.ToLower(rule.Scope), "header.authorization")
}

// changing returns what is in a header Authorization that is not the same in each request of one client, or "".
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

// Warnings returns what is valid in how the rule remembers answers, but hardly ever meant.
func (rule *Serializer) Warnings() (warnings []string) {
	switch {
	case rule.Remember == 0:
	case !rule.HasScope() && rule.Verify == nil:
		warnings = append(warnings, "answers are remembered, and whoever sends the same keys and ID gets them, unless authentication has found who it is: set scope, such as {header.X-API-Key}, unless all clients may see them")
	case rule.ownScope && rule.scopeIsAuthorization():
		warnings = append(warnings, "scope is {header.Authorization}, which changes with a refreshed token, and with each digest or signature: then a repeat runs again; leave scope out where Caddy or the program authenticates, see docs/recipes.md#an-api-with-idempotency-key")
	}
	return warnings
}

func (rule *Serializer) warn() {
	for _, warning := range rule.Warnings() {
		rule.Logger.Warn(warning, "rule", rule.Name)
	}
}

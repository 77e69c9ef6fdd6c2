package middleware

import (
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Serializer serves requests by a Rule that Compile has checked.
type Serializer struct{ rule *compiled }

// Compile returns a Serializer for a rule. It is for programs that read rules from their own configuration, such as Caddy's module. Other programs
// use New. Compile calls placeholder, for example (*Rule).Placeholder, for the placeholders of templates. Each error begins with the name of the
// wrong setting in a configuration, such as on_no_quorum. Compile has no Locker, so only Serve notices a TTL that the Locker doesn't allow.
func Compile(rule Rule, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*Serializer, error) {
	c, err := compile(rule, nil, placeholder)
	if err != nil {
		return nil, err
	}
	return &Serializer{c}, nil
}

// Rule returns the rule as given, with the settings of its preset and the defaults filled in.
func (s *Serializer) Rule() Rule { return s.rule.Rule }

// Serve takes the lock of a request, calls next, and releases the lock when next has returned or panicked, even if the client
// has left. The context of next's request ends when the lease is lost. If the response to the request is remembered, Serve writes that response, and
// doesn't call next.
//
// The error is a *Refusal if the request isn't served; then Serve has written nothing. Otherwise it is the error of next. After a refusal
// the body can still be read until the request's context ends, unless the client has stopped sending it.
func (s *Serializer) Serve(locker *redlock.Locker, w http.ResponseWriter, r *http.Request, next HandlerFunc) error {
	req := &serving{rule: s.rule, w: w, r: r, next: next, arrived: time.Now()}
	req.turn.locker, req.turn.Rule, req.turn.concurrency = locker, s.rule.Name, s.rule.Concurrency[0]
	req.turn.keyed, req.turn.dryRun = s.rule.derive != nil, s.rule.DryRun
	req.turn.outer, _ = r.Context().Value(turnKey{}).(*Turn)
	defer req.observeUnlocked()
	defer req.turn.noteIn(r.Context())
	if body := req.receive(); body != nil {
		defer body.end()
	}
	return req.serve()
}

// Explain returns the keys that Serve would lock for a request. It reads the body if Serve would. It also checks the signature,
// but returns the keys even if the signature is wrong.
func (s *Serializer) Explain(r *http.Request) Explanation { return s.rule.explain(r) }

// ReadsBody reports whether bodies are read before a lock is taken.
func (s *Serializer) ReadsBody() bool { return s.rule.readsBody }

// NeedsBody reports whether the rule refuses each request without a body, because a key or an ID is read only there. It is false for webhooks, of which
// the rule verifies the sender or has its preset: a rule for them is meant to refuse other requests.
func (s *Serializer) NeedsBody() bool {
	webhooks := len(s.rule.verifiers) > 0 || s.rule.Preset != "" && !s.rule.identifiesByHeader()
	return s.rule.needsBody && !webhooks && s.rule.OnMissingKey != Pass
}

// Global returns the first template that makes the same key for all requests, if only one request may hold that key at a time; or "". Such a template
// is nearly always a mistake.
func (s *Serializer) Global() string { return s.rule.global() }

// Warnings returns warnings about settings for remembered responses that are valid, but nearly always a mistake.
func (s *Serializer) Warnings() []string { return s.rule.warnings() }

// UpstreamHeaders returns the headers that the rule may set for its upstream.
func (s *Serializer) UpstreamHeaders() []string {
	if s.rule.KeyHeader == "" {
		return []string{s.rule.FenceHeader, SlotHeader}
	}
	return []string{s.rule.FenceHeader, SlotHeader, s.rule.KeyHeader}
}

package middleware

import (
	"fmt"
	"time"
)

// WithRemember has the masters remember the final answer to a delivery for so long: a repeat gets it without being served, with
// the header Idempotency-Replayed: true. It needs WithDedupe or WithIdempotencyKey. Default: 0, a repeat that comes after the first
// is served as well.
func WithRemember(d time.Duration) Option { return func(s *settings) { s.Remember = d } }

// WithRememberSize bounds the bytes of the body of such an answer, at most MaxRememberSize. Default: 64 KiB.
func WithRememberSize(bytes int) Option { return func(s *settings) { s.RememberSize = bytes } }

// WithRememberStatus sets which answers are final, see ParseStatuses: WithRememberStatus("2xx", "404"). Default: all below 500 but
// 401, 403, 408, 409, 423, 425 and 429.
func WithRememberStatus(statuses ...string) Option {
	return func(s *settings) {
		var err error
		if s.RememberStatus, err = ParseStatuses(statuses...); err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
	}
}

// WithFingerprint sets whether an ID is refused with 422 if its answer is remembered and the method, the path, the query or
// the body is another; see Rule.IgnoreFingerprint. Default: true; with WithPreset of a sender of webhooks false.
func WithFingerprint(on bool) Option { return func(s *settings) { s.IgnoreFingerprint = !on } }

// WithScope sets the template of who has sent a request, such as {header.Authorization}; see Rule.Scope. It needs WithDedupe or
// WithIdempotencyKey. The template "" turns it off. Default: off.
func WithScope(template string) Option { return func(s *settings) { s.scope = template } }

// WithSealer encrypts the answers on the masters; see Rule.Sealer. Default: the masters can read them.
func WithSealer(sealer *Sealer) Option {
	if sealer == nil {
		panic("middleware: WithSealer: the Sealer is nil: did NewSealer return an error?")
	}
	return func(s *settings) { s.Sealer = sealer }
}

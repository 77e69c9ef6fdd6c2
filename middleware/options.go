package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Option is a setting of the middleware.
type Option func(*settings)

// settings are the rule that the options make, and the templates that they add to that of New.
type settings struct {
	Rule
	moreKeys  []string // of WithKeys
	dedupe    string   // template of WithDedupe
	scope     string   // of WithScope
	preset    string   // of WithPreset
	presetKey string   // its template
	idAlone   bool     // the ID is locked if there is no template
}

// withOptions panics if an option is wrong.
func withOptions(opts []Option) *settings {
	s := &settings{}
	for _, opt := range opts {
		opt(s)
	}
	var err error
	if s.dedupe != "" {
		s.Dedupe, err = ParseDedupe(s.dedupe, s.Placeholder)
	}
	if err == nil && s.scope != "" {
		s.Scope, err = ParseScope(s.scope, s.Placeholder)
	}
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return s
}

// WithName sets what logs, metrics and traces call the rule; see Rule.Name. Default: the key template.
func WithName(name string) Option { return func(s *settings) { s.Name = name } }

// WithWait lets a request wait for its lock; then it is refused. Default: 0, it doesn't wait.
func WithWait(d time.Duration) Option { return func(s *settings) { s.Wait = d } }

// WithTTL sets the lease on the masters. Default: the Locker's.
func WithTTL(d time.Duration) Option { return func(s *settings) { s.TTL = d } }

// WithMaxHold bounds how long a request may hold its lock: then its context ends as if the lease were lost.
// Default: the Locker's, see redlock.WithMaxHold; 5 min if that has none.
func WithMaxHold(d time.Duration) Option { return func(s *settings) { s.MaxHold = d } }

// WithMaxWaiters bounds how many requests wait for one key in this process; any more are refused at once.
// Default: the Locker's, 1000.
func WithMaxWaiters(n int) Option { return func(s *settings) { s.MaxWaiters = n } }

// WithFenceHeader names the request header that carries the fencing token to the handler. Default: Fencing-Token.
func WithFenceHeader(name string) Option { return func(s *settings) { s.FenceHeader = name } }

// WithHeldStatus sets the answer to a request whose lock is held. Default: 423.
func WithHeldStatus(status int) Option { return func(s *settings) { s.HeldStatus = status } }

// WithNoQuorumStatus sets the answer to a request for which too few masters answer. Default: 409.
func WithNoQuorumStatus(status int) Option { return func(s *settings) { s.NoQuorumStatus = status } }

// WithPassOnNoQuorum serves requests without a lock if too few masters answer. Default: they are refused.
func WithPassOnNoQuorum() Option { return func(s *settings) { s.PassNoQuorum = true } }

// WithPassOnMissingKey serves requests that lack a part of the key without a lock. Default: they are answered with 400.
func WithPassOnMissingKey() Option { return func(s *settings) { s.PassMissingKey = true } }

// WithMaxBody bounds the bytes of a body that is read for a key or a signature; a longer one is answered with 413.
// Default: 1 MiB.
func WithMaxBody(bytes int64) Option { return func(s *settings) { s.MaxBody = bytes } }

// WithBodyTimeout bounds how long such a body may take to arrive; then the answer is 408. Default: 10 s.
func WithBodyTimeout(d time.Duration) Option { return func(s *settings) { s.BodyTimeout = d } }

// WithBodyBudget sets the memory for such bodies, which several rules may share. Default: 64 MiB, shared by all rules that have
// no budget of their own.
func WithBodyBudget(b *Budget) Option { return func(s *settings) { s.BodyBudget = b } }

// WithBufferBody reads the whole body of each request before its lock is taken, so that no client that sends slowly holds a
// key; see Rule.BufferBody. Default: only a body that a key or a signature needs is read; with WithPreset: true.
func WithBufferBody(on bool) Option { return func(s *settings) { s.BufferBody = on } }

// WithClientAddress sets the function that returns the address of a request's client, on which its share in the body budget
// depends. Behind a proxy it should return what the proxy reports, because otherwise all of its clients have one share.
// Default: the request's RemoteAddr.
func WithClientAddress(address func(*http.Request) string) Option {
	return func(s *settings) { s.ClientAddress = address }
}

// WithKeys adds templates to that of New: a request holds the keys of all of them.
func WithKeys(templates ...string) Option {
	return func(s *settings) { s.moreKeys = append(s.moreKeys, templates...) }
}

// WithVerify checks the signature of a request before its lock is taken; a request without a valid one is answered with 401.
// It panics if the Verifier is nil, which is what NewVerifier returns along with an error. Default: no signature is needed.
func WithVerify(verifier *Verifier) Option {
	if verifier == nil {
		panic("middleware: WithVerify: the Verifier is nil: did NewVerifier return an error?")
	}
	return func(s *settings) { s.Verify = verifier }
}

// WithReplayWindow bounds how far the time in a signature may be from now, if the sender signs it. Default: 5 min.
func WithReplayWindow(d time.Duration) Option { return func(s *settings) { s.ReplayWindow = d } }

// WithPreset sets what LookupPreset returns for a sender of webhooks, and WithBufferBody. Options after it can change these
// settings. New takes the preset's key if its template is "".
func WithPreset(sender string) Option {
	return func(s *settings) {
		p, err := LookupPreset(sender)
		if err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
		if WithDedupe(p.Dedupe)(s); p.IdempotencyKey {
			WithIdempotencyKey(true)(s)
		}
		WithScope(p.Scope)(s)
		WithBufferBody(true)(s)
		s.preset, s.presetKey, s.Wait, s.HeldStatus, s.MaxBody = sender, p.Key, p.Wait, p.HeldStatus, p.MaxBody
		s.Remember, s.IgnoreFingerprint, s.RememberStatus = p.Remember, p.IgnoreFingerprint, nil
		if p.RememberStatus != nil {
			WithRememberStatus(p.RememberStatus...)(s)
		}
	}
}

// WithDedupe sets the template of the sender's ID of a delivery. While a request with the same key and ID waits or runs,
// another one is answered with 409 at once. Requests without an ID are not compared. The template "" turns it off.
// Default: off.
func WithDedupe(template string) Option {
	return func(s *settings) { s.dedupe, s.Dedupe, s.RequireID, s.idAlone = template, nil, false, false }
}

// WithAllowUpgrade lets requests for another protocol, such as WebSocket, hold a lock for as long as their connection lasts, up
// to WithMaxHold. Default: they are refused with 403.
func WithAllowUpgrade() Option { return func(s *settings) { s.AllowUpgrade = true } }

// WithRunToEnd keeps the handler's context alive when the client leaves, so that its work is finished before the lock is
// released; the context ends with the lease, after WithMaxHold at the latest. Whatever the handler writes to a client that has
// left succeeds, so that a proxy reads its upstream to the end. Default: the context ends when the client leaves.
func WithRunToEnd() Option { return func(s *settings) { s.RunToEnd = true } }

// WithHoldAfterAbort keeps the lock for this long after a handler that panicked, lost its client (without WithRunToEnd) or
// answered 502 or 504, because an upstream may still be working for it. It ends after WithMaxHold at the latest. Default: 0,
// the lock is released at once.
func WithHoldAfterAbort(d time.Duration) Option {
	return func(s *settings) { s.HoldAfterAbort = d }
}

// WithDryRun takes no lock and refuses nothing. TurnFromContext returns the key and what would have become of the request:
// OutcomeDryRun if it would have got its lock at once, OutcomeHeld or OutcomeDuplicate if another request with the key runs
// under this rule in this process, or why it would have been refused. Default: locks are taken.
func WithDryRun() Option { return func(s *settings) { s.DryRun = true } }

// WithShutdown ends all waits when ctx ends: the requests that wait are answered with 503 and Retry-After, and no request waits
// any more. Requests that hold their locks run on. Without it the server's Shutdown waits until the whole line has been served.
// Default: never.
//
//	stopping, stop := context.WithCancel(context.Background())
//	server.RegisterOnShutdown(stop)
func WithShutdown(ctx context.Context) Option { return func(s *settings) { s.Shutdown = ctx } }

// WithLogger sets the log of refused requests, see Rule.Logger, and of locks that were not released in order. Keys are never
// logged there. Default: the Locker's logger, see redlock.WithLogger.
func WithLogger(logger *slog.Logger) Option { return func(s *settings) { s.Logger = logger } }

package middleware

import (
	"fmt"
	"log/slog"
	"time"
)

// Option is a setting of the middleware.
type Option func(*Rule)

// WithWait lets a request wait for its lock; see Rule.Wait. Default: 0, no wait.
func WithWait(d time.Duration) Option { return func(rule *Rule) { rule.Wait = d } }

// WithTTL sets the lease on the masters. Default: the Locker's.
func WithTTL(d time.Duration) Option { return func(rule *Rule) { rule.TTL = d } }

// WithMaxHold bounds how long a request may hold its lock. Default: the Locker's, 5 min.
func WithMaxHold(d time.Duration) Option { return func(rule *Rule) { rule.MaxHold = d } }

// WithMaxWaiters bounds how many requests wait for one key in this process; further ones are refused at
// once. Default: the Locker's, 1000.
func WithMaxWaiters(n int) Option { return func(rule *Rule) { rule.MaxWaiters = n } }

// WithFenceHeader names the request header that carries the fencing token to the handler.
// Default: Fencing-Token.
func WithFenceHeader(name string) Option { return func(rule *Rule) { rule.FenceHeader = name } }

// WithHeldStatus sets the answer to a request whose lock is held. Default: 423.
func WithHeldStatus(status int) Option { return func(rule *Rule) { rule.HeldStatus = status } }

// WithNoQuorumStatus sets the answer when too few masters answer. Default: 409.
func WithNoQuorumStatus(status int) Option { return func(rule *Rule) { rule.NoQuorumStatus = status } }

// WithPassOnNoQuorum serves requests without a lock when too few masters answer.
// Default: they are refused.
func WithPassOnNoQuorum() Option { return func(rule *Rule) { rule.PassNoQuorum = true } }

// WithPassOnMissingKey serves requests that lack a part of the key without a lock.
// Default: they are answered with 400.
func WithPassOnMissingKey() Option { return func(rule *Rule) { rule.PassMissingKey = true } }

// WithHashedKeys replaces every key by its SHA-256. Default: only those over 200 bytes.
func WithHashedKeys() Option { return func(rule *Rule) { rule.HashKeys = true } }

// WithMaxBody bounds the bytes of a body that is read for a key or a signature; a longer one is
// answered with 413. Default: 1 MiB.
func WithMaxBody(bytes int64) Option { return func(rule *Rule) { rule.MaxBody = bytes } }

// WithBodyTimeout bounds how long such a body may take to arrive; then the answer is 408.
// Default: 10 s.
func WithBodyTimeout(d time.Duration) Option { return func(rule *Rule) { rule.BodyTimeout = d } }

// WithBodyBudget sets the memory for such bodies, which rules may share. Default: 64 MiB for all
// rules that are given none.
func WithBodyBudget(b *Budget) Option { return func(rule *Rule) { rule.BodyBudget = b } }

// WithKeys adds templates to that of New: a request holds the keys of all of them.
func WithKeys(templates ...string) Option {
	return func(rule *Rule) { rule.moreKeys = append(rule.moreKeys, templates...) }
}

// WithVerify checks the signature of a request before its lock is taken, see NewVerifier; one that
// lacks it is answered with 401. Default: no signature is needed.
func WithVerify(scheme string, secrets ...string) Option {
	return func(rule *Rule) {
		verifier, err := NewVerifier(scheme, secrets...)
		if err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
		rule.Verify = verifier
	}
}

// WithReplayWindow bounds how far the time in a signature may be from now, where the sender signs
// it. Default: 5 min.
func WithReplayWindow(d time.Duration) Option { return func(rule *Rule) { rule.ReplayWindow = d } }

// WithPreset sets what fits a sender of webhooks, see PresetOf; options behind it may change that.
// New takes its key if it is given the template "".
func WithPreset(sender string) Option {
	return func(rule *Rule) {
		p, err := PresetOf(sender)
		if err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
		WithDedupe(p.Dedupe)(rule)
		rule.presetKey, rule.Wait, rule.HeldStatus, rule.MaxBody = p.Key, p.Wait, p.HeldStatus, p.MaxBody
	}
}

// WithDedupe sets the template of the sender's ID of a delivery. While a request with the same key
// and ID waits or runs, another one is answered with 409 at once; a request without ID is not
// compared. The template "" is for none. Default: none.
func WithDedupe(template string) Option {
	return func(rule *Rule) {
		rule.Dedupe = nil
		if template == "" {
			return
		}
		var err error
		if rule.Dedupe, err = ParseDedupe(template, Placeholder); err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
	}
}

// WithDedupeStatus sets the answer to such a second delivery. Default: 409.
func WithDedupeStatus(status int) Option { return func(rule *Rule) { rule.DedupeStatus = status } }

// WithAllowUpgrade lets requests for another protocol, such as WebSocket, hold a lock for as long
// as they last, up to WithMaxHold. Default: they are refused with 403.
func WithAllowUpgrade() Option { return func(rule *Rule) { rule.AllowUpgrade = true } }

// WithRunToEnd keeps the handler's context when the client leaves, so that what it does is finished
// before the lock is freed; the context ends with the lease, at the latest after WithMaxHold. What the
// handler writes to a client that has left succeeds, so that a proxy reads its upstream to the end.
// Default: it ends when the client leaves.
func WithRunToEnd() Option { return func(rule *Rule) { rule.RunToEnd = true } }

// WithDryRun takes no lock and refuses nothing: TurnOf tells the key and the outcome: DryRun; Held or
// Duplicate if another request with the key runs under this rule in this process; or why it would have
// been refused. Default: locks are taken.
func WithDryRun() Option { return func(rule *Rule) { rule.DryRun = true } }

// WithLogger sets where lost locks are told. Keys are never logged. Default: no log.
func WithLogger(logger *slog.Logger) Option { return func(rule *Rule) { rule.Logger = logger } }

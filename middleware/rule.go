package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Rule is how requests are serialized. The zero value works: no wait, the Locker's TTL, 423 and 409.
//
// New makes a Rule of its options. Programs with a configuration of their own can fill in a Rule instead, and call Serve for
// each request. The fields must not change, and the Rule must not be copied, after the first call.
type Rule struct {
	// Name is what logs, metrics and traces call the rule: at most 128 printable bytes. It is not secret, and no key. Rules may
	// share a name; then they are counted together. Default: with New the key template, with NewFunc the function's name.
	Name string

	// Wait is how long a request waits for its lock. Default: 0, not at all.
	Wait time.Duration
	// TTL is the lease on the masters. Default: the Locker's.
	TTL time.Duration
	// MaxHold is the longest time that a request may hold its lock: then its context ends as if the lease were lost. It frees the
	// key of a request that is stuck. Default: DefaultMaxHold, 5 min.
	MaxHold time.Duration
	// MaxWaiters is how many requests may wait for one key in this process; any more are refused at once, as if their wait had
	// timed out. Default: the Locker's, 1000.
	MaxWaiters int
	// FenceHeader is the request header in which the handler, or the upstream behind it, finds the fencing token. A header of that
	// name which a client sends is always removed, so that it can't be one that HTTP or the key needs, such as Host. Default:
	// Fencing-Token.
	FenceHeader string
	// HeldStatus answers a request whose lock is held by another one. Default: 423.
	HeldStatus int
	// NoQuorumStatus answers a request for which too few masters answer. Default: 409.
	NoQuorumStatus int
	// PassNoQuorum serves such a request without a lock. Default: false, it is refused.
	PassNoQuorum bool
	// PassMissingKey serves a request that lacks a part of the key without a lock. Default: false, it is refused.
	PassMissingKey bool

	// MaxBody is how many bytes of a body are read for a key or a signature; a longer one is answered with 413. Bodies that are
	// not needed for them have no limit. Default: 1 MiB.
	MaxBody int64
	// BodyTimeout is how long such a body may take to arrive; then the answer is 408. Default: 10 s.
	BodyTimeout time.Duration
	// BodyBudget bounds the memory for such bodies. Default: a budget of 64 MiB that all rules share.
	BodyBudget *Budget
	// BufferBody reads the whole body before the lock is taken, within MaxBody, BodyTimeout and BodyBudget, even if no key needs
	// it. So no client that sends slowly holds a key. It is not for requests whose body lasts as long as their answer, such as
	// gRPC streams. Default: false, the handler reads the body while it holds the lock.
	BufferBody bool
	// ClientAddress returns the address of the client, IP or IP:port. No address can get all of the BodyBudget. Default:
	// RemoteAddr, which behind a proxy is that of the proxy.
	ClientAddress func(*http.Request) string

	// Verify checks the signature of a request before anything else; a request without a valid one is answered with 401.
	// Default: nil, no signature is needed.
	Verify *Verifier
	// ReplayWindow is how far the time in a signature may be from now. GitHub, Shopify and Adyen sign no time. Default: 5 min.
	ReplayWindow time.Duration
	// Dedupe derives the sender's ID of a delivery. While a request with the same keys and ID waits or runs, another one is
	// answered with 409 at once. Requests without an ID are not compared. Default: nil, no IDs.
	Dedupe KeyFunc

	// RequireID refuses requests without an ID of Dedupe with 400. Default: false, they are served and not compared.
	RequireID bool
	// Scope derives who has sent a request, exactly as it is sent. It is a part of the ID: what one client names 1 is
	// another delivery than what another client names 1, and nobody gets another's answer. A request without it is refused
	// as one that lacks its key. It needs Dedupe. Default: nil, the keys and the ID alone name a delivery.
	Scope KeyFunc

	// Remember is how long the masters remember the final answer to a delivery, from its end: a repeat gets it without being
	// served, with the header Idempotency-Replayed: true. It needs Dedupe, and is at least 1 s. The answers take memory on
	// each master, for as long. Default: 0, a repeat that comes after the first is served as well.
	Remember time.Duration
	// RememberSize is how many bytes the body of such an answer may have, at most MaxRememberSize. Default: 64 KiB.
	RememberSize int
	// RememberStatus reports whether an answer with this status is final; see ParseStatuses. Those from 500 are never final,
	// and neither are answers that were broken off, streams of events, and upgrades. Default: all but 401, 403, 408, 409, 423, 425
	// and 429.
	RememberStatus func(status int) bool
	// IgnoreFingerprint answers a repeat that differs from the first request, as those of senders that sign or date each
	// delivery anew. Default: false, an ID whose answer is remembered is refused with 422 if the method, the path, the query or
	// the body is another. If it is ignored, the host and the path are a part of the ID, also of Dedupe
	// alone, as one event may be delivered to several places. The body is read before the lock is taken, within MaxBody.
	IgnoreFingerprint bool
	// OriginalURL returns the URL that the client has asked for: the fingerprint has that one, even if handlers before this one
	// have changed it. Default: the request's RequestURI.
	OriginalURL func(*http.Request) *url.URL
	// OnReplay is called before a request is answered with the remembered answer, with the request and its turn. Default: nil.
	OnReplay func(*http.Request, Turn)
	// Sealer encrypts the answers on the masters. All processes of the rule must have its keys: an answer that can't be read is
	// refused with 500, because the request must not run again. Default: nil, the masters can read them.
	Sealer *Sealer

	// AllowUpgrade lets requests for another protocol, such as WebSocket, hold a lock for as long as their connection lasts, up to
	// MaxHold. Default: false, they are refused with 403.
	AllowUpgrade bool
	// RunToEnd keeps the handler's context alive when the client leaves: it ends with the lease, after MaxHold at the latest.
	// Whatever the handler still writes succeeds, and goes nowhere. Default: false, the context ends with the request's own.
	RunToEnd bool
	// HoldAfterAbort keeps the lock for this long after a handler that failed, panicked, lost its client (without RunToEnd) or
	// answered 502 or 504, because an upstream may still be working for it. It ends early after MaxHold, and when the Locker
	// closes. Default: 0, the lock is released at once.
	HoldAfterAbort time.Duration
	// Finished reports whether no work can go on after an error of the handler, so that HoldAfterAbort is not needed.
	// Default: nil, work may go on after any error.
	Finished func(error) bool
	// DryRun takes no lock and refuses nothing: the Outcome is what would have become of the request. It counts only the requests
	// under this rule in this process as holders of a key. Default: false.
	DryRun bool
	// Shutdown ends when the server is about to stop: requests that wait are then refused with 503, and no request waits any
	// more. Default: nil, never.
	Shutdown context.Context
	// Observer is told what becomes of the requests, under the rule's Name. Default: nil, nobody.
	Observer Observer
	// Logger gets a line for refused requests, every 10 s at most for each Outcome, and for locks that were not released in order.
	// Lost leases are logged by the Locker, too. Default: no log.
	Logger *slog.Logger

	pace    pace
	lines   lines
	dryRuns dryRuns
	once    sync.Once
	options []redlock.LockOption // of the locks on keys; made once
}

// Check returns an error if the rule can't be used. A TTL that the Locker does not allow is found by New, or by Serve.
func (rule *Rule) Check() error {
	if err := checkName(rule.Name); err != nil {
		return err
	}
	switch {
	case rule.Wait < 0:
		return fmt.Errorf("wait %v: must not be negative", rule.Wait)
	case rule.MaxHold < 0:
		return fmt.Errorf("max_hold %v: must not be negative", rule.MaxHold)
	case rule.HoldAfterAbort < 0:
		return fmt.Errorf("hold_after_abort %v: must not be negative", rule.HoldAfterAbort)
	case rule.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", rule.MaxWaiters)
	case rule.TTL < 0:
		return fmt.Errorf("ttl %v: must not be negative", rule.TTL)
	case !isRefusal(rule.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", rule.HeldStatus)
	case !isRefusal(rule.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", rule.NoQuorumStatus)
	case rule.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", rule.MaxBody)
	case rule.maxBody() > rule.budget().size:
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", rule.maxBody(), rule.budget().size)
	case rule.BodyTimeout < 0:
		return fmt.Errorf("body_timeout %v: must not be negative", rule.BodyTimeout)
	case rule.ReplayWindow < 0:
		return fmt.Errorf("replay_window %v: must not be negative", rule.ReplayWindow)
	}
	if rule.Scope != nil && rule.Dedupe == nil {
		return errors.New("scope needs dedupe or idempotency_key: it tells apart the IDs of different senders")
	}
	if err := rule.checkFenceHeader(); err != nil {
		return err
	}
	return rule.checkRemember()
}

func (rule *Rule) name() string { return cmp.Or(rule.Name, unnamed) }

func (rule *Rule) maxBody() int64 { return cmp.Or(rule.MaxBody, DefaultMaxBody) }

func (rule *Rule) bodyTimeout() time.Duration { return cmp.Or(rule.BodyTimeout, DefaultBodyTimeout) }

func (rule *Rule) budget() *Budget { return cmp.Or(rule.BodyBudget, defaultBudget) }

// DefaultMaxHold is how long a request may hold its lock unless something else is set.
const DefaultMaxHold = 5 * time.Minute

func isRefusal(status int) bool { return status == 0 || 400 <= status && status <= 599 }

// lockOptions returns the options of the locks on keys, to which others can be appended.
func (rule *Rule) lockOptions() []redlock.LockOption {
	rule.once.Do(func() {
		if rule.TTL > 0 {
			rule.options = append(rule.options, redlock.WithTTL(rule.TTL))
		}
		rule.options = append(rule.options, redlock.WithLabel(rule.name()), redlock.WithWait(rule.Wait), redlock.WithMaxHold(cmp.Or(rule.MaxHold, DefaultMaxHold)))
		if rule.MaxWaiters > 0 {
			rule.options = append(rule.options, redlock.WithMaxWaiters(rule.MaxWaiters))
		}
		rule.options = slices.Clip(rule.options)
	})
	return rule.options
}

func (rule *Rule) logger() *slog.Logger {
	if rule.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return rule.Logger
}

package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Rule is how requests are serialized. The zero value works: no wait, the Locker's TTL, 423 and 409.
type Rule struct {
	// Wait is how long a request waits for its lock. Where requests of this rule take so long that it
	// could not be served in that time, it is refused at once. Default: 0, not at all.
	Wait time.Duration
	// TTL is the lease on the masters. Default: the Locker's.
	TTL time.Duration
	// MaxHold is the longest time that a request may hold its lock: then its context ends as if the
	// lease were lost. It frees the key of a request that is stuck. Default: the Locker's, 5 min.
	MaxHold time.Duration
	// MaxWaiters is how many requests may wait for one key in this process; further ones are refused
	// at once, as if they had waited in vain. Default: the Locker's, 1000.
	MaxWaiters int
	// FenceHeader is the request header in which the handler, or the upstream behind it, finds the
	// fencing token. What a client sends under that name is always removed. Default: Fencing-Token.
	FenceHeader string
	// HeldStatus answers a request whose lock is held by another. Default: 423.
	HeldStatus int
	// NoQuorumStatus answers a request when too few masters answer. Default: 409.
	NoQuorumStatus int
	// PassNoQuorum serves such a request without a lock. Default: false.
	PassNoQuorum bool
	// PassMissingKey serves a request that lacks a part of the key, without a lock. Default: false.
	PassMissingKey bool
	// HashKeys replaces every key by its SHA-256, not only those over 200 bytes. Default: false.
	HashKeys bool
	// MaxBody is how many bytes of a body are read at most for a key or a signature; longer ones are
	// answered with 413. It doesn't matter where the body isn't needed. Default: 1 MiB.
	MaxBody int64
	// BodyTimeout is how long such a body may take to arrive; then the answer is 408. Default: 10 s.
	BodyTimeout time.Duration
	// BodyBudget bounds the memory for such bodies. Default: one of 64 MiB that all rules share.
	BodyBudget *Budget
	// Verify checks the signature of a request before anything else; one that lacks it is answered
	// with 401. Default: nil, no signature is needed.
	Verify *Verifier
	// ReplayWindow is how far the time in a signature may be from now. It doesn't matter where the
	// sender signs no time: GitHub and Shopify. Default: 5 min.
	ReplayWindow time.Duration
	// Dedupe derives the sender's ID of a delivery. While a request with the same keys and ID waits or
	// runs, another one is answered with DedupeStatus at once. A request without an ID is not
	// compared. Default: nil, no IDs.
	Dedupe KeyFunc
	// DedupeStatus answers a second delivery while the first waits or runs. Default: 409.
	DedupeStatus int
	// AllowUpgrade lets requests for another protocol, such as WebSocket, hold a lock for as long as
	// their connection lasts, up to MaxHold. Default: false, they are refused with 403.
	AllowUpgrade bool
	// RunToEnd keeps the handler's context when the client leaves: it ends with the lease, at the
	// latest after MaxHold. What the handler writes then succeeds, and goes nowhere. Default: false, the
	// context ends with the request's own.
	RunToEnd bool
	// DryRun takes no lock and refuses nothing: the outcome tells what would have become of a request.
	// Of others with its key only those count that run under this rule in this process. Default: false.
	DryRun bool
	// Logger is told of locks that were not released in order; of lost leases the Locker's is. Default: no log.
	Logger *slog.Logger

	pace      pace
	dryRuns   dryRuns
	moreKeys  []string // templates, of WithKeys
	presetKey string   // the template of WithPreset
}

// Check says what is wrong with the rule. What the Locker allows, Locker.Check tells.
func (rule *Rule) Check() error {
	switch {
	case rule.Wait < 0:
		return fmt.Errorf("wait %v: must not be negative", rule.Wait)
	case rule.MaxHold < 0:
		return fmt.Errorf("max_hold %v: must not be negative", rule.MaxHold)
	case rule.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", rule.MaxWaiters)
	case !httpguts.ValidHeaderFieldName(rule.fenceHeader()):
		return fmt.Errorf("fence_header %q: not the name of a header", rule.FenceHeader)
	case rule.TTL < 0:
		return fmt.Errorf("ttl %v: must not be negative", rule.TTL)
	case !isRefusal(rule.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", rule.HeldStatus)
	case !isRefusal(rule.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", rule.NoQuorumStatus)
	case !isRefusal(rule.DedupeStatus):
		return fmt.Errorf("dedupe_status %d: must be from 400 to 599", rule.DedupeStatus)
	case rule.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", rule.MaxBody)
	case rule.maxBody() > rule.budget().size:
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", rule.maxBody(), rule.budget().size)
	case rule.BodyTimeout < 0:
		return fmt.Errorf("body_timeout %v: must not be negative", rule.BodyTimeout)
	case rule.ReplayWindow < 0:
		return fmt.Errorf("replay_window %v: must not be negative", rule.ReplayWindow)
	}
	return nil
}

func (rule *Rule) maxBody() int64 { return cmp.Or(rule.MaxBody, defaultMaxBody) }

func (rule *Rule) bodyTimeout() time.Duration { return cmp.Or(rule.BodyTimeout, defaultBodyTimeout) }

func (rule *Rule) budget() *Budget { return cmp.Or(rule.BodyBudget, defaultBudget) }

func isRefusal(status int) bool { return status == 0 || 400 <= status && status <= 599 }

// Outcome says what became of a request's lock.
type Outcome string

// The outcomes.
const (
	Acquired   Outcome = "acquired"    // the request runs, or ran, with the lock
	Held       Outcome = "held"        // refused: another has the lock
	NoQuorum   Outcome = "no_quorum"   // too few masters answered; refused, or served without a lock
	MissingKey Outcome = "missing_key" // a part of the key is missing; refused, or served without a lock
	BadKey     Outcome = "bad_key"     // refused: no certain key can be made of the request
	Lost       Outcome = "lost"        // the lease ended while the handler ran
	Canceled   Outcome = "canceled"    // the client left while it waited
	Failed     Outcome = "failed"      // refused: the locker is closed, or can't take such a lock
)

// Turn is one request's hold on its lock, from acquire to release. A handler finds its own with
// TurnOf.
type Turn struct {
	Key     string        // the lock key, hashed where the rule says so; of several all, with spaces between; empty if it has none
	Outcome Outcome       // Acquired, or why the request is served without a lock
	Waited  time.Duration // from the request's arrival until the lock was had
	Lock    *redlock.Lock // nil where the request is served without a lock

	keys        []string
	locker      *redlock.Locker
	fenceHeader string
	outer       *Turn // of another rule, around this one
}

type turnKey struct{}

// TurnOf gives the turn in which a request is served, from the request's context.
func TurnOf(ctx context.Context) (Turn, bool) {
	turn, ok := ctx.Value(turnKey{}).(Turn)
	return turn, ok
}

// Serve takes the lock of a request, calls next, and frees the lock when next has returned or
// panicked, whatever became of the client. The context of next's request ends when the lease is
// lost.
//
// The error is a *Refusal if the request may not be served, and nothing has been written then;
// otherwise it is next's. After a refusal the body can be read until the request's context ends, but
// for one that came too slowly.
func (rule *Rule) Serve(locker *redlock.Locker, derive KeysFunc, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) (err error) {
	arrived := time.Now()
	end := rule.receive(w, r)
	defer func() {
		var refusal *Refusal
		end(errors.As(err, &refusal))
	}()
	turn := newTurn(r.Context(), locker)
	id, err := rule.admit(&turn, derive, r)
	if rule.DryRun {
		return rule.dryRun(turn, id, err, w, r, next)
	}
	if err != nil {
		return rule.withoutKey(turn, err, w, r, next)
	}
	keys, around := turn.notHeld()
	if len(keys) == 0 { // who took them frees them
		turn.Outcome, turn.Lock = Acquired, around
		_, err := rule.handOver(turn, w, r, next)
		return err
	}
	done, err := rule.claim(r.Context(), locker, turn.keys, id)
	if err == nil {
		defer done()
		turn.Lock, err = rule.lock(r.Context(), locker, keys)
	}
	turn.Outcome, turn.Waited = Acquired, time.Since(arrived)
	if err != nil {
		refusal := rule.refuse(r.Context(), err)
		turn.Outcome = refusal.Turn.Outcome
		if turn.Outcome == NoQuorum && rule.PassNoQuorum {
			rule.logger().Warn("request is served without its lock", "error", err)
			return rule.pass(turn, w, r, next)
		}
		refusal.Turn = turn
		return refusal
	}
	if id != "" {
		freeWith(turn.Lock, done)
	}
	return rule.run(turn, w, r, next)
}

// receive makes a request ready to derive keys from, and gives the function that ends that.
func (rule *Rule) receive(w http.ResponseWriter, r *http.Request) (end func(refused bool)) {
	stripFence(r.Header, rule.fenceHeader())
	stripFence(r.Trailer, rule.fenceHeader())
	return rule.wrapBody(w, r)
}

// run serves a request that has its lock.
func (rule *Rule) run(turn Turn, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	defer rule.unlock(turn.Lock)
	defer func(since time.Time) { rule.pace.add(time.Since(since)) }(time.Now())
	wait := turn.Lock.Wait()
	rule.logger().LogAttrs(context.Background(), slog.LevelDebug, "request has its lock",
		slog.Duration("waited", wait.Duration), slog.Int("position", wait.Position), slog.String("came", string(wait.Came)))
	written, err := rule.handOver(turn, w, r, next)
	if lost := turn.Lock.Err(); lost != nil && !written {
		turn.Outcome = Lost
		return &Refusal{Status: http.StatusInternalServerError, Turn: turn, Err: errors.Join(lost, err)}
	}
	return err
}

func (rule *Rule) unlock(lock *redlock.Lock) {
	lost := lock.Err()
	err := lock.Unlock()
	switch {
	case lost != nil: // the Locker has logged it
	case errors.Is(err, redlock.ErrNoQuorum):
		rule.logger().Warn("release is not confirmed; it is repeated until the lease ends", "error", err)
	case err != nil:
		rule.logger().Error("lock was gone before the request ended: another with the same key may have run beside it", "error", err)
	}
}

// lock takes the locks on all keys, which are in order, none twice.
func (rule *Rule) lock(ctx context.Context, locker *redlock.Locker, keys []string) (*redlock.Lock, error) {
	line, opts := rule.pace.line(rule.Wait), rule.lockOptions()
	if rule.Wait == 0 || line == 0 {
		return locker.TryLockAll(ctx, keys, opts...)
	}
	ctx, cancel := context.WithTimeout(ctx, rule.Wait)
	defer cancel()
	line = min(line, cmp.Or(rule.MaxWaiters, locker.MaxWaiters()))
	return locker.LockAll(ctx, keys, append(opts, redlock.WithMaxWaiters(line))...)
}

func (rule *Rule) lockOptions() (opts []redlock.LockOption) {
	if rule.TTL > 0 {
		opts = append(opts, redlock.WithTTL(rule.TTL))
	}
	if rule.MaxHold > 0 {
		opts = append(opts, redlock.WithMaxHold(rule.MaxHold))
	}
	return opts
}

func (rule *Rule) logger() *slog.Logger {
	if rule.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return rule.Logger
}

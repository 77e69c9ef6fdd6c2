package middleware

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// HandlerFunc is a handler that may return an error.
type HandlerFunc func(http.ResponseWriter, *http.Request) error

// serving is one request on its way through a rule:
//
//	admit: verify the signature, ──► acquire: claim the delivery, ──► run: hand it over with ──► release, and
//	derive the keys                  lock the keys                    a fencing token           remember the response
//	  │                                │                                │ lease lost
//	  ▼                                ▼                                ▼
//	400, 401, 403, 413, …            423, 409, 503, 499,              500
//	                                 or the remembered response
type serving struct {
	rule    *Serializer
	w       http.ResponseWriter
	r       *http.Request
	next    HandlerFunc
	arrived time.Time

	turn        Turn              // once the handler has it, it doesn't change any more
	delivery    Delivery          // without an ID it is compared with none
	fingerprint [sha256.Size]byte // of the request, if its response is remembered

	options []redlock.LockOption // of its locks: those of the rule, and for which request they are

	own       *redlock.Lock // that the request holds: on its keys, or on its delivery if it has no other
	claimOnce sync.Once
	room      responseRoom
	result    []byte // the response, if the masters are to remember it
	keep      time.Duration

	why          Reason // why they don't, or not all of it; empty if they do, or nothing is to be remembered
	unremembered error

	span     trace.Span // the request's
	asked    time.Time  // when it began to ask for its locks
	acquired time.Time  // when it got its lock; zero for none
	ended    Outcome    // of its lock, when the handler has returned
}

// Serve takes the lock of a request, calls next, and releases the lock when next has returned or panicked, even if the client
// has left. The context of next's request ends when the lease is lost. If the response to the request is remembered, Serve writes that, and doesn't call next.
//
// The error is a *Refusal if the request is not served; then nothing has been written. Otherwise it is next's. After a refusal
// the body can still be read until the request's context ends, unless it was the body that came too slowly.
func (rule *Serializer) Serve(locker *redlock.Locker, w http.ResponseWriter, r *http.Request, next HandlerFunc) error {
	s := &serving{rule: rule, w: w, r: r, next: next, arrived: time.Now()}
	s.turn.locker, s.turn.Rule, s.turn.concurrency = locker, rule.Name, rule.Concurrency[0]
	s.turn.outer, _ = r.Context().Value(turnKey{}).(*Turn)
	defer s.observeUnlocked()
	if note, ok := r.Context().Value(noteKey{}).(*note); ok {
		defer note.take(&s.turn)
	}
	if body := s.receive(); body != nil {
		defer body.end()
	}
	return s.serve()
}

func (s *serving) serve() error {
	err := s.admit()
	if s.rule.DryRun {
		return s.dryRun(err)
	}
	if err != nil {
		return s.refuseBeforeLock(err)
	}
	keys, err := s.turn.keysToLock()
	if err != nil {
		return s.refuseBeforeLock(err)
	}
	s.setClaimKey()
	if len(keys) == 0 && s.delivery.ID == "" { // a rule around this one holds them all, and will release them
		s.turn.Outcome = OutcomeAcquired
		return s.handOver(s.w)
	}
	s.span = trace.SpanFromContext(s.r.Context())
	s.asked, s.options = time.Now(), append(s.rule.options, redlock.WithRequest(s.shownRequest()))
	s.options = slices.Clip(s.options)
	span := s.startSpan()
	first, err := s.acquire(keys)
	if first == nil {
		s.room.settle(0) // that a replay would have taken
	} else {
		defer s.room.leave()
	}
	s.turn.Waited = time.Since(s.arrived)
	var refusal *Refusal
	switch {
	case first != nil:
		s.turn.Outcome = OutcomeReplayed
	case err != nil:
		refusal = s.rule.refusalOfLock(s.r.Context(), err)
		s.setOutcome(refusal.Turn.Outcome, err)
	}
	s.endSpan(span)
	switch {
	case first != nil:
		if s.rule.OnReplay != nil {
			s.rule.OnReplay(s.r, s.turn)
		}
		first.Write(s.w, s.r.Method)
		return nil
	case refusal != nil:
		return s.refuseWithoutLock(refusal)
	}
	return s.run()
}

// receive removes from the request what a client must not decide, and returns the body that it puts into it, or nil.
func (s *serving) receive() *body {
	s.rule.stripOurs(s.r.Header)
	s.rule.stripOurs(s.r.Trailer)
	stripConnection(s.r.Header)
	return s.rule.wrapBody(s.w, s.r)
}

// admit derives the keys of the request and the ID of its delivery, or returns why it may not hold any key.
func (s *serving) admit() error {
	err := s.permit()
	if err == nil {
		err = s.identify()
	}
	if err == nil && *s.rule.BufferBody && !upgrades(s.r) {
		_, err = bodyBytes(s.r)
	}
	if err == nil {
		err = s.takeFingerprint()
	}
	return err
}

func (s *serving) permit() (err error) {
	if err := grammar.Target(s.r); err != nil {
		return err
	}
	if !s.rule.AllowUpgrade && upgrades(s.r) {
		return errUpgrade
	}
	s.delivery.Secret, err = s.rule.verify(s.r)
	return err
}

func (s *serving) identify() (err error) {
	if s.rule.derive != nil {
		if s.turn.keys, s.turn.most, err = s.rule.deriveKeys(s.r); err == nil {
			s.turn.Key = strings.Join(s.turn.keys, " ")
			if err := s.takeShown(); err != nil {
				return err
			}
		} else if s.rule.OnMissingKey != Pass || s.rule.dedupe == nil || !errors.Is(err, ErrMissingKey) {
			return err
		}
	}
	if s.rule.dedupe != nil {
		if errID := s.identifyDelivery(); errID != nil {
			return errID
		}
	}
	switch {
	case s.delivery.ID != "": // which is locked even where a key is missing, and that is allowed
		return nil
	case err == nil && s.rule.derive == nil:
		return errNoID
	}
	return err
}

func (s *serving) identifyDelivery() (err error) {
	s.delivery.ID, err = s.rule.dedupe(s.r)
	switch {
	case errors.Is(err, ErrMissingKey) && s.rule.IdempotencyKey == required:
		return errMissingID
	case errors.Is(err, ErrMissingKey):
		s.delivery.ID = ""
		return nil
	case err == nil:
		err = s.identifySender()
	}
	if !*s.rule.Fingerprint {
		s.delivery.Place = s.rule.place(s.r)
	}
	if !s.rule.comparesKeys() {
		s.delivery.Keys = s.turn.keys
	}
	if errors.Is(err, ErrMissingKey) {
		return &noScopeError{err}
	}
	return err
}

// acquire takes the locks on the delivery and on the keys, or none. If the response to the delivery is remembered, it returns that.
func (s *serving) acquire(keys []string) (first *remembered.Response, err error) {
	if s.delivery.ID != "" {
		if first, err = s.claim(len(keys) == 0); err != nil || first != nil {
			return first, err
		}
	}
	if len(keys) > 0 {
		s.own, err = s.lock(keys)
	} else {
		s.own = s.turn.claimed
		s.turn.Key = cmp.Or(s.turn.Key, s.turn.claimKey)
	}
	if err != nil {
		s.unlockClaim(nil)()
		return nil, err
	}
	if len(keys) > 0 || s.turn.Lock == nil { // otherwise it is that of the rule around this one, which holds the keys
		s.turn.Lock = s.own
	}
	s.turn.Outcome = OutcomeAcquired
	if s.turn.claimed != nil && s.turn.claimed != s.own {
		s.releaseWith(s.own)
	}
	return nil, nil
}

// lock takes the locks on all keys, which are in order and without duplicates.
func (s *serving) lock(keys []string) (*redlock.Lock, error) {
	opts := s.options
	for key, n := range s.turn.most {
		opts = append(opts, redlock.WithConcurrencyOf(key, n))
	}
	try := func(ctx context.Context) (*redlock.Lock, error) {
		return s.turn.locker.TryLockAll(ctx, keys, opts...)
	}
	if s.rule.Wait == 0 {
		return try(s.r.Context())
	}
	if s.rule.waitsForResponses() { // the request may have waited for its delivery
		opts = append(opts, redlock.WithWait(max(s.rule.Wait-time.Since(s.asked), 0)))
	}
	return s.wait(try, func(ctx context.Context) (*redlock.Lock, error) { return s.turn.locker.LockAll(ctx, keys, opts...) })
}

func (s *serving) setOutcome(outcome Outcome, err error) {
	s.turn.Outcome, s.turn.Detail = outcome, detailOf(outcome, err)
}

// refuseBeforeLock refuses a request that was not admitted, or lets it pass without a lock.
func (s *serving) refuseBeforeLock(err error) error {
	refusal := refusalBeforeLock(s.r.Context(), err)
	s.setOutcome(refusal.Turn.Outcome, err)
	if s.turn.Outcome == OutcomeMissingKey && s.rule.passes(err) {
		return s.pass()
	}
	return s.refuse(refusal)
}

// refuseWithoutLock refuses a request that could not get its lock, or lets it pass without one.
func (s *serving) refuseWithoutLock(refusal *Refusal) error {
	if s.turn.Outcome == OutcomeNoQuorum && s.rule.OnNoQuorum == Pass {
		s.rule.logOutcome("request is served without its lock", s.turn, refusal.Err)
		return s.pass()
	}
	return s.refuse(refusal)
}

func (s *serving) refuse(refusal *Refusal) error {
	refusal.Turn = s.turn
	s.rule.logOutcome("request is refused", s.turn, refusal.Err, slog.Int("status", refusal.Status))
	return refusal
}

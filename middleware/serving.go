package middleware

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// serving is one request on its way through a rule:
//
//	admit: verify the signature, ──► acquire: claim the delivery, ──► run: hand it over with ──► release, and
//	derive the keys                  lock the keys                    a fencing token           remember the response
//	  │                                │                                │ lease lost
//	  ▼                                ▼                                ▼
//	400, 401, 403, 413, …            423, 409, 503, 499,              500
//	                                 or the remembered response
type serving struct {
	rule    *compiled
	w       http.ResponseWriter
	r       *http.Request
	next    func(http.ResponseWriter, *http.Request) error
	arrived time.Time

	turn        Turn                 // doesn't change any more when the handler runs
	delivery    Delivery             // its ID is empty if the request has no ID, or if a rule around this one has locked the delivery
	fingerprint remember.Fingerprint // the fingerprint of the request, if the rule remembers responses
	asksPart    bool                 // the request has Range or a condition (If-…), so its response may be only a part of the whole

	options []redlock.LockOption // the rule's options for locks, and the description of the request for operators

	own       *redlock.Lock      // the lock on the request's keys or, if there are no keys to lock, on its delivery
	claimOnce sync.Once          // for the release of the lock on the delivery
	exchange  *remember.Exchange // nil if the rule remembers no responses, or the request has no ID
	decision  remember.Decision  // the part of the response that the masters are to remember

	span     trace.Span
	asked    time.Time // when the request began to ask for its locks
	acquired time.Time // when the request got its lock; zero if it has none
	ended    Outcome   // OutcomeAcquired, or OutcomeLost if the lock was lost; set when the handler has returned
}

func (s *serving) serve() error {
	s.span = trace.SpanFromContext(s.r.Context())
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
	if len(keys) == 0 && s.delivery.ID == "" { // a rule around this one holds all locks, and will release them
		s.turn.Outcome = OutcomeAcquired
		return s.handOver(s.w)
	}
	s.asked, s.options = time.Now(), append(s.rule.options, inside.WithRequest(s.shownRequest()).(redlock.LockOption))
	s.options = slices.Clip(s.options)
	first, err := s.acquire(keys)
	if first == nil {
		s.exchange.Free() // no response is replayed, so give back the memory that was taken to read one
	}
	s.turn.Waited = time.Since(s.arrived)
	var refusal *refusalError
	switch {
	case first != nil:
		s.turn.Outcome = OutcomeReplayed
	case err != nil:
		refusal = s.rule.refusalOfLock(s.r.Context(), err)
		s.setOutcome(refusal.turn.Outcome, err)
	}
	s.traceOutcome()
	switch {
	case first != nil:
		s.replay(first)
		return nil
	case refusal != nil:
		return s.refuseWithoutLock(refusal)
	}
	return s.run()
}

// The frames of serve and run are on the stack while the handler runs. When a stack is full, its goroutine gets one of twice the size. So what few
// requests need is in functions of its own: replay and refuseLost.

// replay answers with the remembered response.
func (s *serving) replay(first *remember.Response) {
	defer s.exchange.Close()
	if s.rule.OnReplay != nil {
		s.rule.OnReplay(s.r, s.turn)
	}
	s.giveUpBody()
	w, written := response.Wrap(s.w, response.Options{Patience: s.rule.ResponseTimeout})
	first.Write(w, s.r.Method)
	written.End(false)
	s.noteSlowClient(written)
}

// receive removes the headers that a client must not set, and wraps the body: see wrapBody.
func (s *serving) receive() *body {
	if s.r.Header == nil { // the request didn't come from a server
		s.r.Header = make(http.Header)
	}
	s.rule.stripOurs(s.r.Header)
	s.rule.stripOurs(s.r.Trailer)
	stripConnection(s.r.Header)
	return s.rule.wrapBody(s.w, s.r)
}

// admit checks the signature of the request, and derives its keys and the ID of its delivery. It returns the error for which the request gets no
// lock.
func (s *serving) admit() error {
	err := s.permit()
	if err == nil {
		err = s.identify()
	}
	if err == nil && *s.rule.BufferBody && !upgrades(s.r) {
		_, err = bufferBody(s.r)
	}
	if err == nil && s.rule.remembers != nil && s.delivery.ID != "" {
		s.asksPart = asksPart(s.r)
		s.fingerprint, err = s.rule.fingerprint(s.r, s.turn.keys)
	}
	return err
}

func (s *serving) permit() (err error) {
	if err := grammar.Target(s.r); err != nil {
		return err
	}
	if upgrades(s.r) && !(s.rule.AllowUpgrade && isWebSocket(s.r)) {
		return errUpgrade
	}
	s.delivery.Signer, err = s.rule.verify(s.r)
	return err
}

func (s *serving) identify() (err error) {
	if isPreflight(s.r) {
		return errPreflight
	}
	if s.rule.derive != nil {
		if s.turn.keys, s.turn.most, err = s.rule.deriveKeys(s.r); err == nil {
			s.turn.Key = strings.Join(s.turn.keys, " ")
			if err := s.readShown(); err != nil {
				return err
			}
		} else if s.rule.OnMissingKey != Pass || s.rule.dedupe == nil || !errors.Is(err, ErrMissingKey) {
			return err
		}
	}
	if s.rule.dedupe != nil {
		var errID error
		if s.delivery, errID = s.rule.identify(s.r, s.delivery.Signer, s.turn.keys); errID != nil {
			return errID
		}
	}
	switch {
	case s.delivery.ID != "": // even if a key is missing, because OnMissingKey allows that
		return nil
	case err == nil && s.rule.derive == nil:
		return errNoID
	}
	return err
}

// setClaimKey sets the lock key of the delivery, unless a rule around this one has locked that key for the same request. In that case the outer rule
// recognizes repeats and remembers the response.
func (s *serving) setClaimKey() {
	if s.delivery.ID == "" {
		return
	}
	s.turn.claimKey = s.delivery.runningKey()
	if s.rule.Remember > 0 {
		s.turn.claimKey = s.delivery.Key()
	}
	if holder := s.turn.claimer(); holder != nil {
		s.delivery.ID, s.turn.claimKey = "", ""
		if s.turn.Lock == nil {
			s.turn.Lock = holder.Lock
		}
		s.turn.Key = cmp.Or(s.turn.Key, holder.Key)
	}
}

// acquire takes the locks on the delivery and on the keys, or none of them. It returns the delivery's remembered response, if there is one.
func (s *serving) acquire(keys []string) (first *remember.Response, err error) {
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
	if len(keys) > 0 || s.turn.Lock == nil { // otherwise the turn keeps the lock of the outer rule that holds its keys
		s.turn.Lock = s.own
	}
	s.turn.Outcome = OutcomeAcquired
	if s.turn.claimed != nil && s.turn.claimed != s.own {
		s.releaseWith(s.own)
	}
	return nil, nil
}

// claim takes the lock on the delivery. A request that doesn't get this lock is a repeat, and may wait for the response to the first request. The
// request holds this lock beside the lock on its keys, until unlockClaim releases it. claim returns the delivery's remembered response, if there is
// one. alone means that the request has no keys to lock.
func (s *serving) claim(alone bool) (*remember.Response, error) {
	opts := append(s.options, redlock.WithConcurrency(1))
	if !alone { // the lock on the keys has a MaxHold, and when it ends, so does the lock on the delivery
		opts = append(opts, redlock.WithMaxHold(0))
	}
	if s.rule.remembers != nil {
		opts = append(opts, redlock.WithRecall())
		s.exchange = s.rule.remembers.Begin(remember.Request{Key: s.turn.claimKey, Fingerprint: s.fingerprint,
			Sender: s.delivery.User + s.delivery.Scope, Client: s.rule.client(s.r)})
	}
	try := func(ctx context.Context) (*redlock.Lock, error) {
		return s.turn.locker.TryLock(ctx, s.turn.claimKey, opts...)
	}
	for {
		var lock *redlock.Lock
		var err error
		if s.rule.waitsForResponses() {
			lock, err = s.wait(try, func(ctx context.Context) (*redlock.Lock, error) {
				return s.turn.locker.Lock(ctx, s.turn.claimKey, opts...)
			})
		} else {
			lock, err = try(s.r.Context())
		}
		var held *redlock.HeldError
		var done *redlock.DoneError
		switch {
		case errors.As(err, &done):
			first, err := s.exchange.Recall(done.Result)
			if !errors.Is(err, remember.ErrNoRoom) {
				return first, err
			} else if !s.exchange.AwaitRoom(s.r.Context()) {
				return nil, errNoRoom
			}
			continue // ask the masters for the response again, because the request has dropped the response while it waited for room
		case errors.As(err, &held):
			return nil, &duplicateError{held}
		}
		s.turn.claimed = lock
		return nil, err
	}
}

// lock takes the locks on all keys, which are sorted and have no duplicates.
func (s *serving) lock(keys []string) (*redlock.Lock, error) {
	opts := s.options
	for key, n := range s.turn.most {
		opts = append(opts, redlock.WithConcurrency(n, key))
	}
	try := func(ctx context.Context) (*redlock.Lock, error) {
		return s.turn.locker.LockAll(ctx, keys, append(opts, redlock.WithWait(0))...)
	}
	if s.rule.Wait == 0 {
		return try(s.r.Context())
	}
	if s.rule.waitsForResponses() { // the wait for the lock on the delivery is a part of the rule's Wait
		opts = append(opts, redlock.WithWait(max(s.rule.Wait-time.Since(s.asked), 0)))
	}
	return s.wait(try, func(ctx context.Context) (*redlock.Lock, error) { return s.turn.locker.LockAll(ctx, keys, opts...) })
}

func (s *serving) setOutcome(outcome Outcome, err error) {
	s.turn.Outcome, s.turn.Detail = outcome, detailOf(outcome, err)
}

// refuseBeforeLock refuses a request for an error of admit or keysToLock, or serves it without a lock.
func (s *serving) refuseBeforeLock(err error) error {
	refusal := refusalBeforeLock(s.r.Context(), err)
	s.setOutcome(refusal.turn.Outcome, err)
	s.traceOutcome()
	if s.turn.Outcome == OutcomeMissingKey && s.rule.passes(err) {
		return s.pass()
	}
	return s.refuse(refusal)
}

// refuseWithoutLock refuses a request that could not get its lock, or serves it without a lock.
func (s *serving) refuseWithoutLock(refusal *refusalError) error {
	if s.turn.Outcome == OutcomeNoQuorum && s.rule.OnNoQuorum == Pass && s.r.Context().Err() == nil { // a handler around the rule may have set a deadline
		s.rule.logOutcome("request is served without its lock", s.turn, refusal.err)
		return s.pass()
	}
	return s.refuse(refusal)
}

func (s *serving) refuse(refusal *refusalError) error {
	s.giveUpBody()
	refusal.turn = s.turn
	s.rule.logOutcome("request is refused", s.turn, refusal.err, slog.Int("status", refusal.status))
	return refusal
}

func (s *serving) giveUpBody() {
	if b, ok := s.r.Body.(*body); ok {
		b.giveUp()
	}
}

// run serves the request with its lock, and releases the lock before the response ends.
func (s *serving) run() error {
	w, written := s.wrap()
	if s.exchange != nil {
		written.Recorder = s.exchange.Record(s.own.Context(), s.w.Header())
		s.decision.Why = remember.BrokenOff // stays if the handler panics
	}
	brokenOff, panicked := true, true // stay true if the handler panics, as httputil.ReverseProxy does to break off a response
	defer func() {
		written.End(panicked)
		s.noteSlowClient(written)
	}()
	defer func() { s.release(brokenOff) }()
	defer func() { s.rule.holdTimes.add(time.Since(s.acquired)) }()
	s.noteAcquired()
	defer s.traceLoss()()
	if s.exchange != nil {
		defer s.acceptIdentity()()
	}
	err := s.handOver(w)
	panicked = false
	brokenOff = s.brokenOff(written, err)
	lost := s.own.Err()
	s.conclude(written, err != nil || brokenOff, lost)
	if lost == nil {
		return err
	}
	return s.refuseLost(written.Begun, lost, err)
}

// refuseLost refuses a request that lost its lock, unless its response has begun.
func (s *serving) refuseLost(begun bool, lost, err error) error {
	refusal := newRefusal(OutcomeLost, errors.Join(lost, err))
	refusal.turn = s.turn
	refusal.turn.Outcome, refusal.turn.Detail = OutcomeLost, detailOfLost(inside.EndOf(s.own))
	if begun {
		s.rule.logOutcome("request lost its lock after its response had begun", refusal.turn, lost)
		return err
	}
	s.rule.logOutcome("request lost its lock", refusal.turn, lost, slog.Int("status", refusal.status))
	return refusal
}

// acceptIdentity sets Accept-Encoding so that the handler doesn't compress the response, because a repeat may accept other encodings than the first
// request. It returns a function that restores the header.
func (s *serving) acceptIdentity() (undo func()) {
	accepted, sent := s.r.Header["Accept-Encoding"]
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Set("Accept-Encoding", "identity")
	return func() {
		if s.r.Header.Del("Accept-Encoding"); sent { // handOver has replaced s.r.Header by a copy, so change the copy
			s.r.Header["Accept-Encoding"] = accepted
		}
	}
}

// conclude decides, when the handler has returned, which part of the response the masters are to remember.
func (s *serving) conclude(written *response.Writer, broken bool, lost error) {
	switch {
	case s.exchange == nil:
	case lost != nil:
		s.decision = s.exchange.Discard(remember.LostLease)
	case broken:
		s.decision = s.exchange.Discard(remember.BrokenOff)
	case s.asksPart && isPart(written.Status):
		s.decision = s.exchange.Discard(remember.NotFinal)
	default:
		s.decision = s.exchange.Conclude(s.r.Method, written.Header())
		if quota := s.decision.Usage; quota != nil && s.rule.Observer != nil {
			s.rule.Observer.Quota(s.rule.Name, quota.Refusals, quota.Used, quota.Size)
		}
	}
}

// handlerContext returns the context for the handler. It ends with the lock, and with the locks of the rules around this one. It also ends when the
// client leaves, unless the rule runs requests to their end.
func (s *serving) handlerContext() (context.Context, context.CancelFunc) {
	lock := s.own
	if lock == nil { // a rule around this one has the lock
		lock = s.turn.Lock
	}
	if s.rule.runsToEnd() && s.turn.outer == nil { // the lock's context has the values of the request's context, but doesn't end with it
		return context.WithValue(lock.Context(), turnKey{}, &s.turn), func() {}
	}
	ctx := context.WithValue(s.r.Context(), turnKey{}, &s.turn)
	if !s.rule.runsToEnd() {
		return lock.WithContext(ctx)
	}
	ctx, cancel := lock.WithContext(context.WithoutCancel(ctx))
	for outer := s.turn.outer; outer != nil; outer = outer.outer {
		// If the outer lock was released, its request has ended, and this request is background work. So the outer lock doesn't bound it.
		if outer.Lock != nil && !errors.Is(outer.Lock.Err(), context.Canceled) {
			inner := cancel
			var cancelOuter context.CancelFunc
			ctx, cancelOuter = outer.Lock.WithContext(ctx)
			cancel = func() { cancelOuter(); inner() }
		}
	}
	return ctx, cancel
}

// pass serves the request without a lock of this rule.
func (s *serving) pass() error {
	s.turn.Lock = nil // keysToLock may have set an outer rule's lock, which covers only some of the keys
	if s.rule.Observer != nil {
		s.rule.Observer.Passed(s.rule.Name, s.turn.Outcome)
	}
	if s.turn.Outcome == OutcomeNoQuorum && s.rule.Remember > 0 && s.delivery.ID != "" {
		defer s.noteRemembered(0, ReasonNoQuorum, nil)
	}
	s.turn.setOuterFence(s.r, s.rule.FenceHeader)
	s.turn.outer.showSlot(s.r)
	s.showOuterKey()
	return s.next(s.w, s.r.WithContext(context.WithValue(s.r.Context(), turnKey{}, &s.turn)))
}

// brokenOff reports whether work may still go on after the handler has returned. This is so if the handler failed, if it was canceled because its
// client has left, or if the status of its response says that it gave up on an upstream.
func (s *serving) brokenOff(written *response.Writer, err error) bool {
	switch {
	case err != nil:
		return s.rule.Finished == nil || !s.rule.Finished(err)
	case s.r.Context().Err() != nil && !s.rule.runsToEnd():
		return true
	}
	return written.Status == http.StatusBadGateway || written.Status == http.StatusGatewayTimeout
}

// release releases the locks. If the handler has broken off, it releases them only after HoldAfterAbort. Until then the Locker renews the
// lock, and the requests that wait for the lock keep their places. A Locker that closes releases the lock at once.
func (s *serving) release(brokenOff bool) {
	lock := s.own
	s.ended = endOf(lock)
	if !brokenOff || s.rule.HoldAfterAbort == 0 || s.ended == OutcomeLost {
		s.releaseNow()
		return
	}
	free := s.releaseNow
	if s.rule.OnHold != nil {
		done := s.rule.OnHold()
		free = func() { defer done(); s.releaseNow() }
	}
	timer := time.AfterFunc(s.rule.HoldAfterAbort, free)
	context.AfterFunc(lock.Context(), func() { // the lock was lost, the Locker closed, or max_hold is over
		if timer.Stop() {
			free()
		}
	})
}

// releaseNow releases the locks on the keys and on the delivery at once. It tells the log and the Observer only after that, because they may
// block.
func (s *serving) releaseNow() {
	defer s.observeReleased()
	defer s.exchange.Close()
	if s.turn.claimed == nil {
		s.unlock(s.own)()
		return
	}
	var keys sync.WaitGroup
	tellKeys := func() {}
	switch {
	case s.own == s.turn.claimed:
	case s.decision.Result == nil:
		tellKeys = s.unlock(s.own)
	default: // storing the response may take long, so free the keys at the same time
		keys.Go(func() { tellKeys = s.unlock(s.own) })
	}
	tellClaim := s.unlockClaim(s.decision.Result)
	keys.Wait()
	tellKeys()
	tellClaim()
	if s.decision.Result == nil && s.decision.Why != "" {
		s.noteRemembered(0, Reason(s.decision.Why), s.decision.Err)
	}
}

// unlock releases a lock, and returns a function that logs an error of the release.
func (s *serving) unlock(lock *redlock.Lock) (tell func()) {
	err := lock.Unlock()
	return func() { s.logRelease(lock, err) }
}

func (s *serving) logRelease(lock *redlock.Lock, err error) {
	switch inside.EndOf(lock) {
	case inside.EndUnconfirmed:
		s.rule.logSometimes(slog.LevelWarn, "release not confirmed; it is repeated until the lease ends", "release", append([]slog.Attr{slog.Any("error", err)}, s.turn.identity()...)...)
	case inside.EndGone: // if the lock was lost in another way, that was logged when the handler returned
		s.rule.Logger.LogAttrs(context.Background(), slog.LevelError, "lock was lost before the request ended: another request with the same key may have run at the same time",
			append([]slog.Attr{slog.String("rule", s.turn.Rule), slog.Any("error", err)}, s.turn.identity()...)...)
	}
}

// unlockClaim releases the lock on the delivery. result is the response that the masters are to remember, or nil. unlockClaim returns a function that
// tells the log and the Observer whether the masters remember the response.
func (s *serving) unlockClaim(result []byte) (tell func()) {
	tell = func() {}
	if result != nil { // for the case that releaseWith has released this lock, because the lock on the keys was lost
		tell = func() { s.noteRemembered(0, ReasonLostLease, nil) }
	}
	s.claimOnce.Do(func() {
		switch {
		case s.turn.claimed == nil:
		case result == nil:
			tell = s.unlock(s.turn.claimed)
		default:
			tell = s.unlockWith(result)
		}
	})
	return tell
}

// unlockWith releases the lock on the delivery, and makes the masters remember the response. It returns a function that tells the log and the
// Observer whether they do.
func (s *serving) unlockWith(result []byte) (tell func()) {
	err := s.turn.claimed.UnlockWith(result, s.decision.Keep)
	return func() {
		if why := reasonOf(err); why != "" {
			s.noteRemembered(0, why, err)
			return
		}
		s.noteRemembered(len(result), Reason(s.decision.Why), nil)
		s.logRelease(s.turn.claimed, err)
	}
}

// releaseWith makes the lock on the delivery end when the lock on the keys is lost. So the delivery can be repeated even if this request is stuck.
func (s *serving) releaseWith(lock *redlock.Lock) {
	context.AfterFunc(lock.Context(), func() {
		if context.Cause(lock.Context()) != context.Canceled { // otherwise the request has released its lock itself
			s.unlockClaim(nil)()
		}
	})
}

// handOver calls the next handler. It puts the turn into the context, and the fencing token, the slot and the locked values into the headers.
func (s *serving) handOver(w http.ResponseWriter) error {
	s.turn.fenceHeader = s.rule.FenceHeader
	s.turn.setFence(s.r)
	s.turn.showSlot(s.r)
	s.showKey()
	ctx, cancel := s.handlerContext()
	defer cancel()
	err := s.next(w, s.r.WithContext(ctx))
	// Handlers that run after next, such as handlers of errors, have no lock and must not find its token. A goroutine that outlives next, as with
	// http.TimeoutHandler, may still read the old header map, so change a copy.
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Del(s.turn.fenceHeader)
	s.r.Header.Del(SlotHeader)
	s.turn.setOuterFence(s.r, s.turn.fenceHeader)
	s.turn.outer.showSlot(s.r)
	s.showOuterKey()
	return err
}

// wait takes a lock. It calls lock, which may wait for the lock. If the server is about to stop, it calls try instead, which never waits.
func (s *serving) wait(try, lock func(context.Context) (*redlock.Lock, error)) (got *redlock.Lock, err error) {
	if s.rule.stopping() {
		got, err = try(s.r.Context())
	} else {
		got, err = s.waitWhileServing(lock)
	}
	// If Shutdown has ended the wait, the error is ErrHeld or, if no master had replied yet, only Canceled.
	ended := errors.Is(err, context.Canceled) && !errors.Is(err, redlock.ErrNoQuorum) && s.r.Context().Err() == nil
	if (ended || errors.Is(err, redlock.ErrHeld)) && s.rule.stopping() {
		err = errStopping
	}
	return got, err
}

// waitWhileServing calls acquire. If the call takes longer than uncontended, waitWhileServing reads the body ahead meanwhile, and ends the call when
// the server is about to stop.
func (s *serving) waitWhileServing(acquire func(context.Context) (*redlock.Lock, error)) (*redlock.Lock, error) {
	s.rule.observeWaits(1)
	defer s.rule.observeWaits(-1)
	if _, ok := s.r.Body.(*body); !ok && s.rule.Shutdown == nil { // nothing needs to be done during the wait
		return acquire(s.r.Context())
	}
	ctx, cancel := context.WithCancel(s.r.Context())
	defer cancel()
	var waits sync.WaitGroup
	waits.Add(1)
	unhook := func() bool { return false }
	begins := time.AfterFunc(uncontended, func() {
		defer waits.Done()
		if s.rule.Shutdown != nil {
			unhook = context.AfterFunc(s.rule.Shutdown, cancel)
		}
		if b, ok := s.r.Body.(*body); ok {
			b.readAhead(ctx)
		}
	})
	lock, err := acquire(ctx)
	if !begins.Stop() {
		cancel()
		waits.Wait()
		unhook()
	}
	return lock, err
}

// readShown notes the values of the keys that the KeyHeader will show to the upstream.
func (s *serving) readShown() (err error) {
	if s.rule.KeyHeader == "" {
		return nil
	}
	if s.turn.shown, err = s.rule.keys.values(s.r); err != nil {
		return err
	}
	if outer := s.turn.showing(s.rule.KeyHeader); outer != nil { // the header also shows the values that the outer rule has locked
		for name, values := range outer.shown {
			s.turn.shown[name] = append(s.turn.shown[name], values...)
		}
	}
	for name, values := range s.turn.shown {
		slices.Sort(values)
		s.turn.shown[name] = slices.Compact(values)
	}
	if len(showValues(s.turn.shown)) > maxKeyHeader {
		return errKeyHeader
	}
	return nil
}

func (s *serving) showKey() {
	if s.turn.keyHeader = s.rule.KeyHeader; s.turn.keyHeader != "" {
		s.r.Header = maps.Clone(s.r.Header) // a rule around this one has the same header map
		s.r.Header.Set(s.turn.keyHeader, showValues(s.turn.shown))
	}
}

// showOuterKey sets the KeyHeader to the values that a rule around this one has locked, if there are any.
func (s *serving) showOuterKey() {
	if s.rule.KeyHeader == "" {
		return
	}
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Del(s.rule.KeyHeader)
	if outer := s.turn.showing(s.rule.KeyHeader); outer != nil {
		s.r.Header.Set(outer.keyHeader, showValues(outer.shown))
	}
}

// dryRun serves the request without a lock, and notes the outcome that the request would have had with a lock. err is the error of admit, or nil.
func (s *serving) dryRun(err error) error {
	outcome := OutcomeDryRun
	what := "refused"
	if err == nil {
		var done func()
		done, err = s.rule.dryRuns.begin(s)
		defer done()
	}
	var duplicate *duplicateError
	switch {
	case err == nil:
	case errors.As(err, &duplicate):
		outcome = OutcomeDuplicate
		if s.rule.waitsForResponses() {
			what = "delayed"
		}
	case errors.Is(err, redlock.ErrHeld):
		outcome = OutcomeHeld
		if s.rule.Wait > 0 {
			what = "delayed"
		}
	default:
		if outcome = refusalBeforeLock(s.r.Context(), err).turn.Outcome; outcome == OutcomeMissingKey && s.rule.passes(err) {
			what = "served without a lock"
		}
	}
	s.setOutcome(outcome, err)
	s.traceOutcome()
	if err != nil {
		s.rule.Logger.Info("dry run: the request would have been "+what, "rule", s.turn.Rule, "outcome", s.turn.Outcome, "detail", s.turn.Detail)
	}
	return s.pass()
}

// dryRuns counts the requests of a dry run that are running, for each key and delivery that they would have locked.
type dryRuns struct {
	mu      sync.Mutex
	running map[string]int // the number of requests by the name of a key's lock
}

// begin returns the error that the locks would have given a request: nil, ErrHeld or a duplicateError. The request counts as running until done is
// called.
func (d *dryRuns) begin(s *serving) (done func(), err error) {
	var all []string
	for _, key := range s.turn.keys {
		if name := lockname.Of(key); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	keys := all
	if s.delivery.ID != "" {
		all = append(all, s.delivery.Key())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.delivery.ID != "" && d.running[all[len(all)-1]] > 0 {
		err = &duplicateError{}
	} else if i := slices.IndexFunc(keys, func(key string) bool { return d.running[key] >= s.turn.mostOf(key) }); i >= 0 {
		err = &redlock.HeldError{Slots: s.turn.mostOf(keys[i])}
	}
	if d.running == nil {
		d.running = make(map[string]int)
	}
	for _, key := range all {
		d.running[key]++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, key := range all {
			if d.running[key]--; d.running[key] == 0 {
				delete(d.running, key)
			}
		}
	}, err
}

func (s *serving) wrap() (http.ResponseWriter, *response.Writer) {
	o := response.Options{ToEnd: s.rule.runsToEnd(), Patience: s.rule.ResponseTimeout}
	if *s.rule.BufferResponse && s.r.Method != http.MethodHead && !upgrades(s.r) {
		room := s.rule.BodyBudget.bytes.Portion(s.rule.client(s.r), s.rule.MaxBody)
		o.Buffer = &response.Buffer{Most: s.rule.MaxBody, Take: room.TrySpare, Settle: room.Settle}
	}
	return response.Wrap(s.w, o)
}

// noteSlowClient logs if a client took its response so slowly that it was cut off, or that the handler had to wait for it. It logs each of the two
// once within the logPause.
func (s *serving) noteSlowClient(written *response.Writer) {
	message := "client took its response too slowly, and was cut off"
	switch {
	case written.GaveUp():
	case written.HandlerWaited():
		message = "response was too large to be buffered, or body_budget was used up: the lock was held until the client had taken the rest"
	default:
		return
	}
	missed, ok := s.rule.mayLog(message)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("rule", s.turn.Rule)}
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	s.rule.Logger.LogAttrs(context.Background(), slog.LevelInfo, message, attrs...)
}

// noteAcquired tells the log and the Observer that the request has its lock.
func (s *serving) noteAcquired() {
	s.acquired = time.Now()
	got := inside.AcquisitionOf(s.own)
	if s.rule.Observer != nil {
		s.rule.Observer.Acquired(s.rule.Name, got.Waited)
	}
	if ctx := context.Background(); s.rule.Logger.Enabled(ctx, slog.LevelDebug) {
		s.rule.Logger.LogAttrs(ctx, slog.LevelDebug, "request has its lock", append([]slog.Attr{slog.String("rule", s.turn.Rule),
			slog.Duration("waited", got.Waited), slog.Int("position", got.Position), slog.String("via", got.Via)}, s.turn.identity()...)...)
	}
}

// observeUnlocked is called at the end of every request. It counts a request that has had no lock of its own. observeReleased counts all other
// requests.
func (s *serving) observeUnlocked() {
	if s.acquired.IsZero() {
		s.rule.observeDone(cmp.Or(s.turn.Outcome, OutcomeFailed), 0)
	}
}

// observeReleased is called when the lock has been released. Sometimes only the release shows that the lock was lost.
func (s *serving) observeReleased() {
	end := inside.EndOf(s.own)
	if end.Lost() {
		s.ended = OutcomeLost
	}
	if end == inside.EndGone { // traceLoss has noted all other losses
		s.noteLoss()
	}
	s.rule.observeDone(s.ended, max(time.Since(s.acquired), 1))
}

const tracerName = "github.com/caddy-redlock/caddy-redlock/middleware"

// traceOutcome exports a span for the time until the outcome was known, unless the span of the request itself isn't recorded. Only outcomes for
// which the server is to blame are errors. A refusal needs a span even if the request asked for no lock: if handle_errors writes the response, the
// request's span has the status 200.
func (s *serving) traceOutcome() {
	if !s.span.IsRecording() {
		return
	}
	_, span := s.span.TracerProvider().Tracer(tracerName).Start(s.r.Context(), "redlock.acquire", trace.WithTimestamp(s.arrived))
	span.SetAttributes(attribute.String("redlock.rule", s.turn.Rule), attribute.String("redlock.outcome", string(s.turn.Outcome)),
		attribute.Float64("redlock.wait", s.turn.Waited.Seconds()))
	if lock := s.own; s.turn.Outcome == OutcomeAcquired {
		got := inside.AcquisitionOf(lock)
		span.SetAttributes(attribute.Int("redlock.position", got.Position), attribute.String("redlock.via", got.Via), attribute.Int("redlock.granted", got.Granted),
			attribute.Int64("redlock.fence", int64(lock.Fence()))) // a fence is below 2^53
		if slot, ok := s.turn.Slot(); ok {
			span.SetAttributes(attribute.Int("redlock.slot", slot))
		}
	} else if s.turn.Detail != "" {
		span.SetAttributes(attribute.String("redlock.detail", s.turn.Detail))
	}
	if ofServer(s.turn.Outcome) {
		span.SetStatus(codes.Error, s.turn.Detail)
	}
	span.End()
}

// traceLoss adds an event to the request's span if the lock is lost while the handler runs. The returned function must be called when the handler
// has returned, before the lock is released.
func (s *serving) traceLoss() (stop func()) {
	lock := s.own
	if !s.span.IsRecording() {
		return func() {}
	}
	lost := sync.OnceFunc(s.noteLoss)
	unhook := context.AfterFunc(lock.Context(), lost)
	return func() {
		unhook()
		if lock.Err() != nil {
			lost() // adds the event, or waits until the hook has added it
		}
	}
}

func (s *serving) noteLoss() {
	s.span.AddEvent("redlock.lost", trace.WithAttributes(attribute.String("redlock.rule", s.turn.Rule),
		attribute.String("redlock.detail", detailOfLost(inside.EndOf(s.own)))))
}

const (
	maxShownPath = 200 // bytes
	maxShownID   = 64
)

// shownRequest describes the request for operators, without its query, its body and most headers, because these may contain secrets.
func (s *serving) shownRequest() *inside.Request {
	r := s.r
	q := &inside.Request{Method: cut(r.Method, maxShownID), ID: cut(r.Header.Get("X-Request-Id"), maxShownID), Delivery: s.turn.claimKey}
	if s.rule.ShowClient {
		q.Client = s.rule.sender(r)
	}
	if r.URL != nil {
		q.Path = cut(r.URL.Path, maxShownPath)
	}
	if span := s.span.SpanContext(); span.HasTraceID() {
		q.TraceID = span.TraceID().String()
	} else if parent := r.Header.Get("Traceparent"); strings.Count(parent, "-") >= 3 {
		q.TraceID = cut(strings.SplitN(parent, "-", 3)[1], maxShownID)
	}
	return q
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

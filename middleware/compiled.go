package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// waitsForResponses reports whether a repeat waits for the response to the first request.
func (c *compiled) waitsForResponses() bool { return c.OnDuplicate == waits }

func (c *compiled) warnings() (warnings []string) {
	switch {
	case c.Remember == 0:
	case !c.hasScope() && c.Scope != off && len(c.Verify) == 0:
		warnings = append(warnings, "responses are remembered, and whoever sends the same keys and ID gets them, unless authentication has found who it is: set scope, such as {header.X-API-Key}, or scope off if all clients may see them")
	case c.ownScope && c.scopeIsAuthorization():
		warnings = append(warnings, "scope is {header.Authorization}, which changes with a refreshed token, and with each digest or signature: then a repeat runs again; leave scope out where Caddy or the program authenticates, see docs/recipes.md#an-api-with-idempotency-key")
	}
	return warnings
}

func (c *compiled) warn() {
	for _, warning := range c.warnings() {
		c.Logger.Warn(warning, "rule", c.Name)
	}
}

func (c *compiled) global() string {
	for i, template := range c.keys {
		if c.Concurrency.of(i) == 1 && template.Global() {
			return c.Keys[i]
		}
	}
	return ""
}

// stripOurs removes the headers that only a rule or the server may set. It removes each spelling that some server takes for one of these headers,
// such as Fencing_Token.
func (c *compiled) stripOurs(h http.Header) {
	ours := [...]string{c.FenceHeader, c.KeyHeader, SlotHeader, pathHeaders[0], pathHeaders[1]}
	strip(h, ours[:])
}

// wrapBody wraps the body of the request, and returns the wrapper, whose method end the caller must call. It returns nil if the request has no body,
// or if a rule around this one has wrapped the body and will call end.
func (c *compiled) wrapBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b, ok := r.Body.(*body)
	if !ok || !b.untouched() {
		b = newBody(w, r)
	} else if !b.over { // a rule around this one is still at work, and will call end
		b.use(c)
		return nil
	}
	b.use(c)
	b.over, b.writer = false, w
	return b
}

func (c *compiled) clientAddress(r *http.Request) string {
	if c.ClientAddress != nil {
		return c.ClientAddress(r)
	}
	return r.RemoteAddr
}

// client returns the client as a budget counts it: an IPv4 address, or the first 64 bits of an IPv6 address, which all addresses of one subscriber
// share.
func (c *compiled) client(r *http.Request) string {
	text := c.clientAddress(r)
	address, err := netip.ParseAddr(text)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return text // not an IP address, but for example the name of a Unix socket
		}
		address = withPort.Addr()
	}
	if address = address.Unmap().WithZone(""); address.Is4() {
		return address.String()
	}
	network, _ := address.Prefix(64) // never an error for IPv6
	return network.String()
}

func (c *compiled) originalURL(r *http.Request) *url.URL {
	if c.OriginalURL != nil {
		return c.OriginalURL(r)
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u
	}
	return r.URL // the request didn't come from a server
}

// sender returns the sender of a request: the authenticated user, if there is one, and the address.
func (c *compiled) sender(r *http.Request) string {
	address := c.clientAddress(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	user := ""
	if c.User != nil {
		user = cut(c.User(r), maxShownID)
	}
	if user != "" && address != "" {
		user += " at "
	}
	return user + cut(address, maxShownID)
}

// verify returns the name of the sender that has signed the request, or an error if no sender of the rule has.
func (c *compiled) verify(r *http.Request) (signer string, err error) {
	for i, v := range c.verifiers {
		bad := v.Check(r.Header, c.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
		var wrong signature.Error
		switch {
		case bad == nil:
			return c.Verify[i].Name, nil
		case !errors.As(bad, &wrong): // the body can't be read
			return "", bad
		case err == nil, errors.Is(err, signature.ErrUnsigned): // keep the first error that isn't ErrUnsigned
			err = bad
		}
	}
	if err == signature.ErrMismatch && isEncoded(r) { // senders sign the decoded body
		err = errBodyEncoded
	}
	return "", err
}

// deriveKeys returns the keys of a request as they are locked: hashed if they are long, sorted, and without duplicates. If the rule's Concurrency
// has a number for each template, most has the number for each key.
func (c *compiled) deriveKeys(r *http.Request) (keys []string, most map[string]int, err error) {
	keys, from, err := c.derive(r)
	if err != nil {
		return nil, nil, err
	}
	if len(keys) == 0 {
		return nil, nil, ErrMissingKey
	}
	for i, k := range keys {
		if k == "" {
			return nil, nil, ErrMissingKey
		}
		keys[i] = short(k)
	}
	if len(c.Concurrency) > 1 {
		most = c.Concurrency.byKey(keys, from)
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > maxKeys {
		return nil, nil, errTooManyKeys
	}
	return keys, most, nil
}

// short returns a key as it is locked: a hash of it if it is long.
func short(key string) string {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// passes reports whether a request without a key is served without a lock; missing is the error for the key. Whatever OnMissingKey is, a CORS
// preflight is served, and a request without an ID is served if the rule has no keys and its IDs are optional.
func (c *compiled) passes(missing error) bool {
	return errors.Is(missing, errNoID) || errors.Is(missing, errPreflight) || c.OnMissingKey == Pass
}

func (c *compiled) stopping() bool { return c.Shutdown != nil && c.Shutdown.Err() != nil }

func (c *compiled) refusalOfLock(ctx context.Context, err error) *refusalError {
	var held *redlock.HeldError
	var quorum *redlock.QuorumError
	var duplicate *duplicateError
	refuse := func(outcome Outcome, retryAfter time.Duration) *refusalError {
		refusal := newRefusal(outcome, err)
		refusal.retryAfter = retryAfter
		return refusal
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return refusalOfEnd(ctx, err)
	case errors.Is(err, errStopping):
		return refuse(OutcomeStopping, spread(0))
	case errors.As(err, &duplicate):
		return refuse(OutcomeDuplicate, c.holdTimes.retryAfter(duplicate.held.RetryAfter, 1))
	case errors.Is(err, remember.ErrMismatch):
		return refuse(OutcomeMismatch, 0)
	case errors.Is(err, redlock.ErrUnreadable): // not OutcomeNoQuorum, with which on_no_quorum may serve the request again
		return refuse(OutcomeUnreadable, spread(0))
	case errors.Is(err, redlock.ErrHeldByCaller): // no Retry-After, because a repeat would get the same error
		return refuse(OutcomeFailed, 0)
	case errors.Is(err, redlock.ErrTooManyWaiters) && !errors.As(err, &quorum):
		return refuse(OutcomeTooManyWaiters, c.holdTimes.retryAfter(0, 1))
	case errors.As(err, &held):
		refusal := refuse(OutcomeHeld, c.holdTimes.retryAfter(held.RetryAfter, max(held.Slots, 1)))
		refusal.status = c.HeldStatus
		return refusal
	case errors.As(err, &quorum):
		refusal := refuse(OutcomeNoQuorum, spread(quorum.RetryAfter))
		refusal.status = c.NoQuorumStatus
		return refusal
	case errors.Is(err, redlock.ErrClosed), errors.Is(err, redlock.ErrBusy), errors.Is(err, context.DeadlineExceeded):
		// No master was asked, so another request may have the lock. So don't use OutcomeNoQuorum, with which on_no_quorum may serve this request.
		refusal := refuse(OutcomeFailed, spread(0))
		refusal.status = http.StatusServiceUnavailable
		return refusal
	}
	return refuse(OutcomeFailed, 0)
}

func (c *compiled) observeBegin() {
	if c.Observer != nil {
		c.Observer.Begin(c.Name, possibleOf(c))
	}
}

func (c *compiled) observeWaits(n int) {
	if c.Observer != nil {
		c.Observer.Waits(c.Name, n)
	}
}

func (c *compiled) observeDone(outcome Outcome, held time.Duration) {
	if c.Observer != nil {
		c.Observer.Done(c.Name, outcome, held)
	}
}

// mayLog reports whether the rule may log a line about this subject now, and how many requests got no line since the last line. At the debug level
// every request gets its line.
func (c *compiled) mayLog(about string) (missed int, ok bool) {
	if c.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return 0, true
	}
	return c.logPauses.due(about, time.Now())
}

// logSometimes logs a line about the rule, unless a line of this kind was logged within the logPause. It leaves out attributes with a nil error.
func (c *compiled) logSometimes(level slog.Level, message, kind string, attrs ...slog.Attr) {
	if !c.Logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := c.mayLog("about " + kind)
	if !ok {
		return
	}
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindAny && a.Value.Any() == nil })
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	c.Logger.LogAttrs(context.Background(), level, message, append([]slog.Attr{slog.String("rule", c.Name)}, attrs...)...)
}

// logOutcome logs the outcome of a request, unless a request with the same outcome was logged within the logPause. The line has the hash of the key,
// but neither the key nor a value of the request. It has err, which may name masters, only if the server is to blame.
func (c *compiled) logOutcome(message string, turn Turn, err error, more ...slog.Attr) {
	c.logOutcomeOf(string(turn.Outcome), message, turn, err, more...)
}

// logOutcomeOf is logOutcome with a pause for each subject in place of each outcome. For example, each first segment of a path has lines of its own.
func (c *compiled) logOutcomeOf(about, message string, turn Turn, err error, more ...slog.Attr) {
	logger, level := c.Logger, outcomes[turn.Outcome].level
	if !logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := c.mayLog(about)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("rule", turn.Rule), slog.String("outcome", string(turn.Outcome)), slog.String("detail", turn.Detail)}
	attrs = append(attrs, turn.identity()...)
	attrs = append(attrs, more...)
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	if ofServer(turn.Outcome) {
		attrs = append(attrs, slog.Any("error", err))
	}
	logger.LogAttrs(context.Background(), level, message, attrs...)
}

package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Serializer is a Rule that was checked, and serves requests by it.
type Serializer struct {
	// Rule is as it was given, with the settings of its preset and the defaults.
	Rule

	keys      templates // nil if derive isn't theirs
	derive    keysFunc  // nil if the rule locks only the IDs of requests
	dedupe    KeyFunc   // nil for none
	scope     KeyFunc   // nil for none
	ownScope  bool      // the rule itself has set the scope, and not its preset
	byUser    bool      // the scope is whom authentication has found, if it has
	final     func(status int) bool
	verifier  *signature.Verifier // nil for none
	readsBody bool

	options []redlock.LockOption // of the locks on keys
	quota   *quota               // nil if nothing is remembered
	pace    pace
	lines   lines
	dryRuns dryRuns
}

// Compile returns what serves requests by a rule: for programs with a configuration of their own, as New is for those that have a
// handler. The placeholders of templates are compiled by the given function, which may be (*Rule).Placeholder. Errors begin with the
// name that the setting has in a configuration. A TTL that the Locker doesn't allow is found by Serve.
func Compile(rule Rule, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*Serializer, error) {
	return compile(rule, nil, placeholder)
}

// compile takes the keys from derive, if there is one, and from the rule's templates otherwise.
func compile(rule Rule, derive keysFunc, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*Serializer, error) {
	s := &Serializer{Rule: rule, derive: derive}
	s.Name = rule.RuleName()
	var preset Preset
	var err error
	if rule.Preset != "" {
		if preset, err = LookupPreset(rule.Preset); err != nil {
			return nil, err
		}
	}
	s.ownScope = rule.hasScope()
	s.byUser = rule.User != nil && rule.Scope == ""
	s.setPreset(preset)
	s.setDefaults()
	if err := s.compileTemplates(func(name string) (KeyFunc, error) { return placeholder(&s.Rule, name) }); err != nil {
		return nil, err
	}
	if s.Verify != nil {
		if s.verifier, err = signature.New(s.Verify.Scheme, s.Verify.Secrets); err != nil {
			return nil, err
		}
		s.readsBody = true
	}
	s.readsBody = s.readsBody || *s.BufferBody || s.Remember > 0
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := rule.checkNeeds(s.Remember > 0); err != nil {
		return nil, err
	}
	if s.TTL > 0 {
		s.options = append(s.options, redlock.WithTTL(s.TTL))
	}
	s.options = append(s.options, redlock.WithLabel(s.Name), redlock.WithWait(s.Wait), redlock.WithMaxHold(s.MaxHold), redlock.WithConcurrency(s.Concurrency[0]))
	if s.MaxWaiters > 0 {
		s.options = append(s.options, redlock.WithMaxWaiters(s.MaxWaiters))
	}
	s.options = slices.Clip(s.options)
	if s.Observer != nil {
		s.Observe(s.Observer)
	}
	return s, nil
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

// byDefault returns what has no keys, and serves no requests.
func byDefault(rule Rule) *Serializer {
	rule.setDefaults()
	return &Serializer{Rule: rule}
}

// compileTemplates reads the templates of the keys, of the ID and of who has sent it.
func (rule *Serializer) compileTemplates(placeholder PlaceholderFunc) (err error) {
	set := new(fieldSet)
	switch {
	case rule.derive != nil && len(rule.Keys) > 0:
		return errors.New("key: the keys come from a function, and from templates or a preset: want one of them")
	case len(rule.Keys) > 0:
		if rule.keys, err = parseTemplates(rule.Keys, placeholder); err != nil {
			return err
		}
		for _, t := range rule.keys {
			set.take(t)
		}
		rule.derive, rule.readsBody = rule.keys.Keys, slices.ContainsFunc(rule.keys, (*Template).ReadsBody)
	}
	if err := rule.compileID(placeholder, set); err != nil {
		return err
	}
	if rule.derive == nil && !rule.identifiesByHeader() {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}; a first value that begins with / or @ is taken for a matcher")
	}
	if rule.hasScope() {
		scope, err := parseScope(rule.Scope, placeholder)
		if err != nil {
			return err
		}
		set.take(scope)
		rule.scope, rule.readsBody = scope.exactKey(), rule.readsBody || scope.ReadsBody()
	}
	rule.final = isFinal
	if rule.RememberStatus != nil {
		rule.final, err = parseStatuses(rule.RememberStatus)
	}
	return err
}

// compileID finds out how the ID of a delivery is found.
func (rule *Serializer) compileID(placeholder PlaceholderFunc, set *fieldSet) error {
	switch rule.IdempotencyKey {
	case "", off, required, optional:
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", rule.IdempotencyKey)
	}
	switch {
	case rule.identifiesByHeader() && rule.Dedupe != "" && rule.Dedupe != off:
		return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
	case rule.identifiesByHeader():
		rule.dedupe = IdempotencyKey
	case rule.hasID():
		id, err := parseDedupe(rule.Dedupe, placeholder)
		if err != nil {
			return err
		}
		set.take(id)
		rule.dedupe, rule.readsBody = id.exactKey(), rule.readsBody || id.ReadsBody()
	}
	return nil
}

// check returns what else is wrong with a rule.
func (rule *Serializer) check() error {
	if err := checkName(rule.Name); err != nil {
		return err
	}
	for _, choice := range []struct{ setting, value, otherwise, special string }{
		{"on_missing_key", rule.OnMissingKey, "refuse", Pass},
		{"on_no_quorum", rule.OnNoQuorum, "refuse", Pass},
		{"on_duplicate", rule.OnDuplicate, "refuse", waits},
		{"on_client_abort", rule.OnClientAbort, Cancel, "run"},
	} {
		if choice.value != choice.otherwise && choice.value != choice.special {
			return fmt.Errorf("%s %q: want %s or %s", choice.setting, choice.value, choice.otherwise, choice.special)
		}
	}
	for _, duration := range []struct {
		setting string
		value   time.Duration
	}{{"max_hold", rule.MaxHold}, {"ttl", rule.TTL}, {"body_timeout", rule.BodyTimeout}, {"response_timeout", rule.ResponseTimeout}, {"replay_window", rule.ReplayWindow}} {
		if duration.value < 0 {
			return fmt.Errorf("%s: want a duration above 0 such as 500ms, 2s or 1m", duration.setting)
		}
	}
	switch {
	case rule.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", rule.MaxWaiters)
	case !isRefusal(rule.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", rule.HeldStatus)
	case !isRefusal(rule.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", rule.NoQuorumStatus)
	case rule.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", rule.MaxBody)
	case rule.MaxBody > rule.BodyBudget.size:
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", rule.MaxBody, rule.BodyBudget.size)
	case rule.scope != nil && rule.dedupe == nil:
		return errors.New("scope needs dedupe or idempotency_key: it tells apart the IDs of different senders")
	}
	if err := rule.checkConcurrency(); err != nil {
		return err
	}
	if err := rule.checkHeaders(); err != nil {
		return err
	}
	if err := rule.checkQuota(); err != nil {
		return err
	}
	return rule.checkRemember()
}

func isRefusal(status int) bool { return 400 <= status && status <= 599 }

// ReadsBody reports whether bodies are read before a lock is taken.
func (rule *Serializer) ReadsBody() bool { return rule.readsBody }

// Global returns the first template that makes one key of all requests, which is hardly ever meant where one holds it at a time, or "".
func (rule *Serializer) Global() string {
	for i, template := range rule.keys {
		if rule.Concurrency.of(i) == 1 && template.Global() {
			return rule.Keys[i]
		}
	}
	return ""
}

// maxName is how long the name of a rule may be, in bytes: it is in each line of the access log and in each series of metrics.
const maxName = 128

// checkName returns an error unless a name fits into logs and metrics.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("name %.20q…: longer than %d bytes", name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isUnprintable):
		return fmt.Errorf("name %q: has characters that can't be printed", name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("name %q: must not begin or end with a space", name)
	}
	return nil
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// defaultName returns the name of a rule that is given none: its key templates as they are written, and its preset. It is cut
// where it would be longer than a name may be.
func defaultName(templates []string, preset string) string {
	name := strings.Join(templates, " ")
	switch {
	case preset != "" && name != "":
		name += " (preset " + preset + ")"
	case preset != "":
		name = "preset " + preset
	}
	name = strings.Map(func(r rune) rune {
		if isUnprintable(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.TrimSpace(name))
	const more = "…"
	if len(name) > maxName {
		end := maxName - len(more)
		for !utf8.RuneStart(name[end]) {
			end--
		}
		name = strings.TrimRight(name[:end], " ") + more
	}
	return name
}

// nameOfFunc returns the default name of a rule whose keys come from a function: that function's, such as main.orderKey.
func nameOfFunc(key KeyFunc) string {
	name := runtime.FuncForPC(reflect.ValueOf(key).Pointer()).Name()
	return defaultName([]string{name[strings.LastIndexByte(name, '/')+1:]}, "")
}

// checkConcurrency returns why a rule can't have its Concurrency.
func (rule *Serializer) checkConcurrency() error {
	if err := rule.Concurrency.Check(len(rule.keys)); err != nil {
		return err
	}
	if rule.derive == nil && slices.Max(rule.Concurrency) > 1 {
		return errors.New("concurrency: needs a key; an ID is locked for one request at a time")
	}
	return nil
}

// checkHeaders checks the names of the headers that are set for the upstream.
func (rule *Serializer) checkHeaders() error {
	if fold.SameHeader(rule.FenceHeader, SlotHeader) {
		return fmt.Errorf("fence_header %q: is the header of the slot; want another header, such as %s", rule.FenceHeader, DefaultFenceHeader)
	}
	if err := rule.checkHeader("fence_header", rule.FenceHeader, DefaultFenceHeader); err != nil || rule.KeyHeader == "" {
		return err
	}
	switch {
	case fold.SameHeader(rule.KeyHeader, SlotHeader):
		return fmt.Errorf("key_header %q: is the header of the slot; want another header, such as %s", rule.KeyHeader, bestKeyHeader)
	case rule.keys == nil:
		return errors.New("key_header: needs the template of a key, whose values it shows")
	case fold.SameHeader(rule.KeyHeader, rule.FenceHeader):
		return fmt.Errorf("key_header %q: is the fence_header; want another header, such as %s", rule.KeyHeader, bestKeyHeader)
	}
	return rule.checkHeader("key_header", rule.KeyHeader, bestKeyHeader)
}

func (rule *Serializer) checkHeader(setting, name, better string) error {
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%s %q: not the name of a header", setting, name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("%s %q: has a meaning of its own in HTTP; want another header, such as %s", setting, name, better)
	case rule.verifier != nil && slices.ContainsFunc(rule.verifier.Headers(), same):
		return fmt.Errorf("%s %q: the signature is read from this header; want another one, such as %s", setting, name, better)
	}
	return nil
}

func (rule *Serializer) checkRemember() error {
	switch {
	case rule.Remember != 0 && rule.Remember < leastRemember:
		return fmt.Errorf("remember %v: must be at least %v", rule.Remember, leastRemember)
	case rule.Remember > 0 && rule.dedupe == nil:
		return errors.New("remember needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	case rule.waitsForResponses() && (rule.Remember == 0 || rule.Wait == 0):
		return errors.New("on_duplicate wait: needs remember, for the response that a repeat waits for, and wait, for how long")
	case rule.Remember > 0 && !rule.runsToEnd():
		return errors.New("on_client_abort cancel: remember needs requests that run to their end: a client that has left is the one that repeats")
	case rule.RememberSize < 0 || rule.RememberSize > MaxRememberSize:
		return fmt.Errorf("remember_size %d: must be from 1 to %d bytes", rule.RememberSize, MaxRememberSize)
	}
	return nil
}

func (rule *Serializer) checkQuota() error {
	switch {
	case rule.RememberQuota < 0 || rule.RememberQuota > math.MaxInt32:
		return fmt.Errorf("remember_quota %d: must be from 1 to %d bytes", rule.RememberQuota, math.MaxInt32)
	case rule.Remember > 0:
		rule.quota = newQuota(rule.RememberQuota, rule.Remember)
	}
	return nil
}

func (rule *Serializer) sealer() *remembered.Sealer {
	if rule.Sealer == nil {
		return nil
	}
	return rule.Sealer.sealer
}

// waitsForResponses reports whether a repeat waits for the first to be answered.
func (rule *Serializer) waitsForResponses() bool { return rule.OnDuplicate == waits }

// Warnings returns what is valid in how the rule remembers responses, but hardly ever meant.
func (rule *Serializer) Warnings() (warnings []string) {
	switch {
	case rule.Remember == 0:
	case !rule.hasScope() && rule.Verify == nil:
		warnings = append(warnings, "responses are remembered, and whoever sends the same keys and ID gets them, unless authentication has found who it is: set scope, such as {header.X-API-Key}, unless all clients may see them")
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

// stripOurs removes what only this side may set, in every spelling that a server may take for it.
func (rule *Serializer) stripOurs(h http.Header) {
	ours := [...]string{rule.FenceHeader, rule.KeyHeader, SlotHeader, "Script-Name", "Path-Info"} // gunicorn takes a part of the path from the last two
	for sent := range h {
		if slices.ContainsFunc(ours[:], func(name string) bool { return fold.SameHeader(sent, name) }) {
			delete(h, sent)
		}
	}
}

// wrapBody puts a body into the request and returns it, or nil if there is none to end.
func (rule *Serializer) wrapBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if b, ok := r.Body.(*body); ok && b.untouched() { // that of a rule around this one, which will end it
		b.enter(rule)
		return nil
	}
	b := newBody(w, r)
	b.enter(rule)
	return b
}

func (rule *Serializer) clientAddress(r *http.Request) string {
	if rule.ClientAddress != nil {
		return rule.ClientAddress(r)
	}
	return r.RemoteAddr
}

// client returns for whom the room in a budget is counted: an IPv4 address, or the IPv6 network that one subscriber has.
func (rule *Serializer) client(r *http.Request) string {
	text := rule.clientAddress(r)
	address, err := netip.ParseAddr(text)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return text // that of a Unix socket, for example
		}
		address = withPort.Addr()
	}
	if address = address.Unmap().WithZone(""); address.Is4() {
		return address.String()
	}
	network, _ := address.Prefix(64) // valid for IPv6
	return network.String()
}

func (rule *Serializer) originalURL(r *http.Request) *url.URL {
	if rule.OriginalURL != nil {
		return rule.OriginalURL(r)
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u
	}
	return r.URL // no server has received it
}

// sender returns who has sent a request: whom authentication has found, if it has, and from where.
func (rule *Serializer) sender(r *http.Request) string {
	address := rule.clientAddress(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	user := ""
	if rule.User != nil {
		user = cut(rule.User(r), maxShownID)
	}
	if user != "" && address != "" {
		user += " at "
	}
	return user + cut(address, maxShownID)
}

// verify returns the secret with which the request is signed, or an error unless it is signed as the rule demands.
func (rule *Serializer) verify(r *http.Request) (secret string, err error) {
	if rule.verifier == nil {
		return "", nil
	}
	i, err := rule.verifier.Check(r.Header, rule.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
	if err != nil {
		return "", err
	}
	return rule.Verify.Secrets[i], nil
}

// deriveKeys returns the keys of a request as they are locked: hashed if they are long, in order, and
// without duplicates; and how many requests may hold each, if the rule has a number for each.
func (rule *Serializer) deriveKeys(r *http.Request) (keys []string, most map[string]int, err error) {
	keys, from, err := rule.derive(r)
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
		if len(k) > maxKey {
			sum := sha256.Sum256([]byte(k))
			keys[i] = "sha256:" + hex.EncodeToString(sum[:])
		}
	}
	if len(rule.Concurrency) > 1 {
		most = rule.Concurrency.byKey(keys, from)
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > maxKeys {
		return nil, nil, errTooManyKeys
	}
	return keys, most, nil
}

// place returns where a request goes. A sender that delivers one event to two places gives both deliveries the same ID: the second
// is no repeat of the first. Nor is the response to one method that to another.
func (rule *Serializer) place(r *http.Request) string {
	u := rule.originalURL(r)
	place := r.Method + " " + r.Host + u.EscapedPath()
	if u.RawQuery != "" {
		place += "?" + u.RawQuery
	}
	return place
}

// comparesKeys reports whether an ID that was used with other keys belongs to another request. One in the header Idempotency-Key is its
// client's for all that it does; one of dedupe is only known to be the only one of its kind for a key.
func (rule *Serializer) comparesKeys() bool {
	return rule.identifiesByHeader() && rule.Remember > 0 && *rule.Fingerprint
}

// passes reports whether a request is served without a lock although it lacks a part of its key. One that has an ID never is, as its
// client counts on it.
func (rule *Serializer) passes(missing error) bool {
	var noScope *noScopeError
	return errors.Is(missing, errNoID) || rule.OnMissingKey == Pass && !errors.As(missing, &noScope)
}

func (rule *Serializer) stopping() bool { return rule.Shutdown != nil && rule.Shutdown.Err() != nil }

// refusalOfLock returns the refusal of a request that could not get its lock.
func (rule *Serializer) refusalOfLock(ctx context.Context, err error) *Refusal {
	refusal := &Refusal{Err: err, RetryAfter: spread(0)}
	var held *redlock.HeldError
	var quorum *redlock.QuorumError
	var duplicate *duplicateError
	switch {
	case ctx.Err() != nil:
		refusal.Status, refusal.Turn.Outcome, refusal.RetryAfter = statusClientClosed, OutcomeCanceled, 0
	case errors.Is(err, errStopping):
		refusal.Status, refusal.Turn.Outcome = http.StatusServiceUnavailable, OutcomeStopping
	case errors.As(err, &duplicate):
		refusal.Status, refusal.Turn.Outcome = http.StatusConflict, OutcomeDuplicate
		refusal.RetryAfter = rule.pace.retryAfter(duplicate.held.RetryAfter, 1)
	case errors.Is(err, errMismatch):
		refusal.Status, refusal.Turn.Outcome, refusal.RetryAfter = http.StatusUnprocessableEntity, OutcomeMismatch, 0
	case errors.Is(err, redlock.ErrUnreadable): // never taken for a missing quorum, for which the request might be served
		refusal.Status, refusal.Turn.Outcome = http.StatusServiceUnavailable, OutcomeUnreadable
	case errors.As(err, &held):
		refusal.Status, refusal.Turn.Outcome = rule.HeldStatus, OutcomeHeld
		refusal.RetryAfter = rule.pace.retryAfter(held.RetryAfter, max(held.Slots, 1))
	case errors.As(err, &quorum):
		refusal.Status, refusal.Turn.Outcome = rule.NoQuorumStatus, OutcomeNoQuorum
		refusal.RetryAfter = spread(quorum.RetryAfter)
	case errors.Is(err, context.DeadlineExceeded): // the wait was over before the first attempt could end
		refusal.Status, refusal.Turn.Outcome = rule.NoQuorumStatus, OutcomeNoQuorum
	case errors.Is(err, redlock.ErrClosed):
		refusal.Status, refusal.Turn.Outcome = http.StatusServiceUnavailable, OutcomeFailed
	default:
		refusal.Status, refusal.Turn.Outcome, refusal.RetryAfter = http.StatusInternalServerError, OutcomeFailed, 0
	}
	return refusal
}

// Observe sets the Observer of the rule, before the first request.
func (rule *Serializer) Observe(o Observer) {
	rule.Observer = o
	o.Concurrency(rule.Name, slices.Max(rule.Concurrency))
}

func (rule *Serializer) observeWaits(n int) {
	if rule.Observer != nil {
		rule.Observer.Waits(rule.Name, n)
	}
}

func (rule *Serializer) observeDone(outcome Outcome, held time.Duration) {
	if rule.Observer != nil {
		rule.Observer.Done(rule.Name, outcome, held)
	}
}

// logSometimes logs a line about the rule, unless one of this kind was logged just now. Attributes with a nil error are left out.
func (rule *Serializer) logSometimes(level slog.Level, message, kind string, attrs ...slog.Attr) {
	if !rule.Logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := rule.lines.due("about "+kind, time.Now())
	if !ok {
		return
	}
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindAny && a.Value.Any() == nil })
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	rule.Logger.LogAttrs(context.Background(), level, message, append([]slog.Attr{slog.String("rule", rule.Name)}, attrs...)...)
}

// logOutcome logs what became of a request, unless that was logged just now for another one. The line has neither the key, but for its hash, nor
// a value of the request; err, which may name masters, is logged only if they are to blame.
func (rule *Serializer) logOutcome(message string, turn Turn, err error, more ...slog.Attr) {
	logger, level := rule.Logger, levelOf(turn.Outcome)
	if !logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := rule.lines.due(string(turn.Outcome), time.Now())
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

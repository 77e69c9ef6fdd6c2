package middleware

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Serializer is a Rule that was checked, and serves requests by it.
type Serializer struct {
	// Rule is as it was given, with the settings of its preset and the defaults.
	Rule

	keys      templates             // nil if derive isn't theirs
	derive    keysFunc              // nil if the rule locks only the IDs of requests
	dedupe    KeyFunc               // nil for none
	scope     KeyFunc               // nil for none
	ownScope  bool                  // the rule itself has set the scope, and not its preset
	byUser    bool                  // the scope is whom authentication has found, if it has
	verifiers []*signature.Verifier // those of Verify
	readsBody bool

	remembers *remember.Policy     // nil if no responses are remembered
	options   []redlock.LockOption // of the locks on keys
	pace      pace
	logPauses logPauses
	dryRuns   dryRuns
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
	if err := s.compileVerify(); err != nil {
		return nil, err
	}
	s.readsBody = s.readsBody || len(s.verifiers) > 0 || *s.BufferBody || s.Remember > 0
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := rule.checkNeeds(s.Remember > 0); err != nil {
		return nil, err
	}
	if s.TTL > 0 {
		s.options = append(s.options, redlock.WithTTL(s.TTL))
	}
	s.options = append(s.options, redlock.WithLabel(s.Name), redlock.WithWait(s.Wait), redlock.WithMastersWait(s.MastersWait), redlock.WithMaxHold(s.MaxHold), redlock.WithConcurrency(s.Concurrency[0]))
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
// the body can still be read until the request's context ends, unless the client has stopped sending it.
func (s *Serializer) Serve(locker *redlock.Locker, w http.ResponseWriter, r *http.Request, next HandlerFunc) error {
	req := &serving{rule: s, w: w, r: r, next: next, arrived: time.Now()}
	req.turn.locker, req.turn.Rule, req.turn.concurrency = locker, s.Name, s.Concurrency[0]
	req.turn.outer, _ = r.Context().Value(turnKey{}).(*Turn)
	defer req.observeUnlocked()
	if note, ok := r.Context().Value(noteKey{}).(*note); ok {
		defer note.set(&req.turn)
	}
	if body := req.receive(); body != nil {
		defer body.end()
	}
	return req.serve()
}

// byDefault returns what has no keys, and serves no requests.
func byDefault(rule Rule) *Serializer {
	rule.setDefaults()
	return &Serializer{Rule: rule}
}

// compileTemplates reads the templates of the keys, of the ID and of who has sent it.
func (s *Serializer) compileTemplates(placeholder PlaceholderFunc) (err error) {
	set := new(fieldSet)
	switch {
	case s.derive != nil && len(s.Keys) > 0:
		return errors.New("key: the keys come from a function, and from templates or a preset: want one of them")
	case len(s.Keys) > 0:
		if s.keys, err = parseTemplates(s.Keys, placeholder); err != nil {
			return err
		}
		for _, t := range s.keys {
			set.add(t)
		}
		s.derive, s.readsBody = s.keys.Keys, slices.ContainsFunc(s.keys, (*Template).ReadsBody)
	}
	if err := s.compileID(placeholder, set); err != nil {
		return err
	}
	if s.derive == nil && !s.identifiesByHeader() {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}; a first value that begins with / or @ is taken for a matcher")
	}
	if s.hasScope() {
		scope, err := parseScope(s.Scope, placeholder)
		if err != nil {
			return err
		}
		set.add(scope)
		s.scope, s.readsBody = scope.exactKey(), s.readsBody || scope.ReadsBody()
	}
	return nil
}

// compileID finds out how the ID of a delivery is found.
func (s *Serializer) compileID(placeholder PlaceholderFunc, set *fieldSet) error {
	switch s.IdempotencyKey {
	case "", off, required, optional:
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", s.IdempotencyKey)
	}
	switch {
	case s.identifiesByHeader() && s.Dedupe != "" && s.Dedupe != off:
		return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
	case s.identifiesByHeader():
		s.dedupe = IdempotencyKey
	case s.hasID():
		id, err := parseDedupe(s.Dedupe, placeholder)
		if err != nil {
			return err
		}
		set.add(id)
		s.dedupe, s.readsBody = id.exactKey(), s.readsBody || id.ReadsBody()
	}
	return nil
}

// compileVerify reads who may sign. Whoever has signed must be known by the secret: no two senders may have one in common, or a name.
func (s *Serializer) compileVerify() error {
	for _, v := range s.Verify {
		verifier, err := signature.New(v.Scheme, v.Secrets)
		if err == nil && strings.ContainsAny(v.Name, "{}") {
			err = errors.New("the name has no placeholders")
		}
		if err = cmp.Or(err, checkName("name", v.Name)); err != nil {
			return fmt.Errorf("%v: %w", v, err)
		}
		for j, other := range s.verifiers {
			switch o := s.Verify[j]; {
			case v.Name == "" && o.Name == "":
				return fmt.Errorf("%v: another verify has no name either, and its deliveries must be told from these: secrets of one sender belong into one verify, and a different sender needs a name, as in verify %s as acme", v, v.Scheme)
			case v.Name == o.Name:
				return fmt.Errorf("%v: another verify has this name, too: secrets of one sender belong into one verify", v)
			case verifier.SharesSecret(other):
				return fmt.Errorf("%v: has a secret of %v, too, so that it doesn't tell who has signed; want a secret of its own for each sender", v, o)
			}
		}
		s.verifiers = append(s.verifiers, verifier)
	}
	return nil
}

// check returns what else is wrong with a rule. What responses are remembered comes last, as it needs the ID.
func (s *Serializer) check() error {
	if err := cmp.Or(checkName("name", s.Name), s.checkSite()); err != nil {
		return err
	}
	for _, choice := range []struct{ setting, value, otherwise, special string }{
		{"on_missing_key", s.OnMissingKey, "refuse", Pass},
		{"on_no_quorum", s.OnNoQuorum, "refuse", Pass},
		{"on_duplicate", s.OnDuplicate, "refuse", waits},
		{"on_client_abort", s.OnClientAbort, Cancel, "run"},
	} {
		if choice.value != choice.otherwise && choice.value != choice.special {
			return fmt.Errorf("%s %q: want %s or %s", choice.setting, choice.value, choice.otherwise, choice.special)
		}
	}
	if s.BodyFormat != "" && s.BodyFormat != grammar.JSON && s.BodyFormat != grammar.Urlencoded {
		return fmt.Errorf("body_format %q: want json or form", s.BodyFormat)
	}
	for _, duration := range []struct {
		setting string
		value   time.Duration
	}{{"max_hold", s.MaxHold}, {"ttl", s.TTL}, {"body_timeout", s.BodyTimeout}, {"response_timeout", s.ResponseTimeout}, {"replay_window", s.ReplayWindow}} {
		if duration.value < 0 {
			return fmt.Errorf("%s: want a duration above 0 such as 500ms, 2s or 1m", duration.setting)
		}
	}
	switch {
	case s.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", s.MaxWaiters)
	case !isRefusal(s.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", s.HeldStatus)
	case !isRefusal(s.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", s.NoQuorumStatus)
	case s.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", s.MaxBody)
	case s.MaxBody > s.BodyBudget.bytes.Size():
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", s.MaxBody, s.BodyBudget.bytes.Size())
	case s.scope != nil && s.dedupe == nil:
		return errors.New("scope needs dedupe or idempotency_key: it tells apart the IDs of different senders")
	}
	if err := s.checkConcurrency(); err != nil {
		return err
	}
	if err := s.checkHeaders(); err != nil {
		return err
	}
	return s.compileRemember()
}

func isRefusal(status int) bool { return 400 <= status && status <= 599 }

// ReadsBody reports whether bodies are read before a lock is taken.
func (s *Serializer) ReadsBody() bool { return s.readsBody }

// Global returns the first template that makes one key of all requests, which is hardly ever meant where one holds it at a time, or "".
func (s *Serializer) Global() string {
	for i, template := range s.keys {
		if s.Concurrency.of(i) == 1 && template.Global() {
			return s.Keys[i]
		}
	}
	return ""
}

// maxName is how long the name of a rule may be, in bytes: it is in each line of the access log and in each series of metrics.
const maxName = 128

// checkName returns an error unless a name, which is set by a setting, fits into logs and metrics.
func checkName(setting, name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("%s %.20q…: longer than %d bytes", setting, name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isUnprintable):
		return fmt.Errorf("%s %q: has characters that can't be printed", setting, name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("%s %q: must not begin or end with a space", setting, name)
	}
	return nil
}

// checkSite returns why a rule can't have its Site.
func (s *Serializer) checkSite() error {
	switch {
	case s.Site == "":
		return nil
	case strings.ContainsAny(s.Site, "{}"):
		return fmt.Errorf("site %q: is the same name for all requests, and has no placeholders", s.Site)
	case s.dedupe == nil:
		return errors.New("site needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	}
	return checkName("site", s.Site)
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
func (s *Serializer) checkConcurrency() error {
	if err := s.Concurrency.Check(len(s.keys)); err != nil {
		return err
	}
	if s.derive == nil && slices.Max(s.Concurrency) > 1 {
		return errors.New("concurrency: needs a key; an ID is locked for one request at a time")
	}
	return nil
}

// checkHeaders checks the names of the headers that are set for the upstream.
func (s *Serializer) checkHeaders() error {
	if fold.SameHeader(s.FenceHeader, SlotHeader) {
		return fmt.Errorf("fence_header %q: is the header of the slot; want another header, such as %s", s.FenceHeader, DefaultFenceHeader)
	}
	if err := s.checkHeader("fence_header", s.FenceHeader, DefaultFenceHeader); err != nil || s.KeyHeader == "" {
		return err
	}
	switch {
	case fold.SameHeader(s.KeyHeader, SlotHeader):
		return fmt.Errorf("key_header %q: is the header of the slot; want another header, such as %s", s.KeyHeader, bestKeyHeader)
	case s.keys == nil:
		return errors.New("key_header: needs the template of a key, whose values it shows")
	case fold.SameHeader(s.KeyHeader, s.FenceHeader):
		return fmt.Errorf("key_header %q: is the fence_header; want another header, such as %s", s.KeyHeader, bestKeyHeader)
	}
	return s.checkHeader("key_header", s.KeyHeader, bestKeyHeader)
}

func (s *Serializer) checkHeader(setting, name, better string) error {
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%s %q: not the name of a header", setting, name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("%s %q: has a meaning of its own in HTTP; want another header, such as %s", setting, name, better)
	case slices.ContainsFunc(s.verifiers, func(v *signature.Verifier) bool { return slices.ContainsFunc(v.Headers(), same) }):
		return fmt.Errorf("%s %q: the signature is read from this header; want another one, such as %s", setting, name, better)
	}
	return nil
}

// compileRemember reads how responses are remembered.
func (s *Serializer) compileRemember() (err error) {
	settings := remember.Settings{Keep: s.Remember, Size: s.RememberSize, Quota: s.RememberQuota, Statuses: s.RememberStatus, MaxResult: redlock.MaxResult}
	if s.Sealer != nil {
		settings.Sealer = s.Sealer.sealer
	}
	if s.remembers, err = settings.Compile(); err != nil {
		return err
	}
	switch {
	case s.Remember > 0 && s.dedupe == nil:
		return errors.New("remember needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	case s.waitsForResponses() && (s.Remember == 0 || s.Wait == 0):
		return errors.New("on_duplicate wait: needs remember, for the response that a repeat waits for, and wait, for how long")
	case s.Remember > 0 && !s.runsToEnd():
		return errors.New("on_client_abort cancel: remember needs requests that run to their end: a client that has left is the one that repeats")
	}
	return nil
}

// waitsForResponses reports whether a repeat waits for the first to be answered.
func (s *Serializer) waitsForResponses() bool { return s.OnDuplicate == waits }

// Warnings returns what is valid in how the rule remembers responses, but hardly ever meant.
func (s *Serializer) Warnings() (warnings []string) {
	switch {
	case s.Remember == 0:
	case !s.hasScope() && s.Scope != off && len(s.Verify) == 0:
		warnings = append(warnings, "responses are remembered, and whoever sends the same keys and ID gets them, unless authentication has found who it is: set scope, such as {header.X-API-Key}, or scope off if all clients may see them")
	case s.ownScope && s.scopeIsAuthorization():
		warnings = append(warnings, "scope is {header.Authorization}, which changes with a refreshed token, and with each digest or signature: then a repeat runs again; leave scope out where Caddy or the program authenticates, see docs/recipes.md#an-api-with-idempotency-key")
	}
	return warnings
}

func (s *Serializer) warn() {
	for _, warning := range s.Warnings() {
		s.Logger.Warn(warning, "rule", s.Name)
	}
}

// stripOurs removes what only this side may set, in every spelling that a server may take for it.
func (s *Serializer) stripOurs(h http.Header) {
	ours := [...]string{s.FenceHeader, s.KeyHeader, SlotHeader, pathHeaders[0], pathHeaders[1]}
	strip(h, ours[:])
}

// UpstreamHeaders returns the headers that the rule may set for its upstream.
func (s *Serializer) UpstreamHeaders() []string {
	if s.KeyHeader == "" {
		return []string{s.FenceHeader, SlotHeader}
	}
	return []string{s.FenceHeader, SlotHeader, s.KeyHeader}
}

// StripHeaders removes from a request what a client has sent under these names, in every spelling that some server takes for them, and
// in its trailers as well. A rule does this to the requests that it takes. A program that has others go to the same upstream calls it around
// its router:
//
//	middleware.StripHeaders(r, middleware.DefaultFenceHeader, middleware.SlotHeader)
func StripHeaders(r *http.Request, names ...string) {
	strip(r.Header, names)
	if r.Trailer == nil {
		return // then a handler sees none
	}
	strip(r.Trailer, names)
	if r.Body != nil {
		r.Body = &strippedTrailers{r.Body, r.Trailer, names}
	}
}

// strippedTrailers is a body behind which trailers with some names are removed, as a client may send other ones than it has announced.
type strippedTrailers struct {
	io.ReadCloser
	trailers http.Header
	names    []string
}

func (b *strippedTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		strip(b.trailers, b.names)
	}
	return n, err
}

func strip(h http.Header, names []string) {
	for sent := range h {
		if isHeader(sent, names) {
			delete(h, sent)
		}
	}
}

// wrapBody puts a body into the request and returns it, or nil if there is none to end.
func (s *Serializer) wrapBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b, ok := r.Body.(*body)
	if !ok || !b.untouched() {
		b = newBody(w, r)
	} else if !b.over { // that of a rule around this one, which will end it
		b.use(s)
		return nil
	}
	b.use(s)
	b.over, b.writer = false, w
	return b
}

func (s *Serializer) clientAddress(r *http.Request) string {
	if s.ClientAddress != nil {
		return s.ClientAddress(r)
	}
	return r.RemoteAddr
}

// client returns for whom the room in a budget is counted: an IPv4 address, or the IPv6 network that one subscriber has.
func (s *Serializer) client(r *http.Request) string {
	text := s.clientAddress(r)
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

func (s *Serializer) originalURL(r *http.Request) *url.URL {
	if s.OriginalURL != nil {
		return s.OriginalURL(r)
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u
	}
	return r.URL // no server has received it
}

// sender returns who has sent a request: whom authentication has found, if it has, and from where.
func (s *Serializer) sender(r *http.Request) string {
	address := s.clientAddress(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	user := ""
	if s.User != nil {
		user = cut(s.User(r), maxShownID)
	}
	if user != "" && address != "" {
		user += " at "
	}
	return user + cut(address, maxShownID)
}

// verify returns the name of whoever has signed the request, or an error unless that is a sender of the rule.
func (s *Serializer) verify(r *http.Request) (signer string, err error) {
	for i, v := range s.verifiers {
		bad := v.Check(r.Header, s.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
		var wrong signature.Error
		switch {
		case bad == nil:
			return s.Verify[i].Name, nil
		case !errors.As(bad, &wrong): // the body can't be read
			return "", bad
		case err == nil, errors.Is(err, signature.ErrUnsigned): // as another scheme sees it
			err = bad
		}
	}
	return "", err
}

// deriveKeys returns the keys of a request as they are locked: hashed if they are long, in order, and
// without duplicates; and how many requests may hold each, if the rule has a number for each.
func (s *Serializer) deriveKeys(r *http.Request) (keys []string, most map[string]int, err error) {
	keys, from, err := s.derive(r)
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
	if len(s.Concurrency) > 1 {
		most = s.Concurrency.byKey(keys, from)
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > maxKeys {
		return nil, nil, errTooManyKeys
	}
	return keys, most, nil
}

// place returns where on its site a request goes. A sender that delivers one event to two places gives both deliveries the same ID: the second
// is no repeat of the first. Nor is the response to one method that to another.
func (s *Serializer) place(r *http.Request) string {
	u := s.originalURL(r)
	place := r.Method + " " + u.EscapedPath()
	if u.RawQuery != "" {
		place += "?" + u.RawQuery
	}
	return place
}

// comparesKeys reports whether an ID that was used with other keys belongs to another request. One in the header Idempotency-Key is its
// client's for all that it does; one of dedupe is only known to be the only one of its kind for a key.
func (s *Serializer) comparesKeys() bool {
	return s.identifiesByHeader() && s.Remember > 0 && *s.Fingerprint
}

// passes reports whether a request is served without a lock although it lacks a part of its key. One that has an ID never is, as its
// client counts on it.
func (s *Serializer) passes(missing error) bool {
	var noScope *noScopeError
	return errors.Is(missing, errNoID) || errors.Is(missing, errPreflight) || s.OnMissingKey == Pass && !errors.As(missing, &noScope)
}

func (s *Serializer) stopping() bool { return s.Shutdown != nil && s.Shutdown.Err() != nil }

// refusalOfLock returns the refusal of a request that could not get its lock.
func (s *Serializer) refusalOfLock(ctx context.Context, err error) *Refusal {
	var held *redlock.HeldError
	var quorum *redlock.QuorumError
	var duplicate *duplicateError
	refuse := func(outcome Outcome, retryAfter time.Duration) *Refusal {
		refusal := newRefusal(outcome, err)
		refusal.RetryAfter = retryAfter
		return refusal
	}
	switch {
	case ctx.Err() != nil:
		return refuse(OutcomeCanceled, 0)
	case errors.Is(err, errStopping):
		return refuse(OutcomeStopping, spread(0))
	case errors.As(err, &duplicate):
		return refuse(OutcomeDuplicate, s.pace.retryAfter(duplicate.held.RetryAfter, 1))
	case errors.Is(err, remember.ErrMismatch):
		return refuse(OutcomeMismatch, 0)
	case errors.Is(err, redlock.ErrUnreadable): // never taken for a missing quorum, for which the request might be served
		return refuse(OutcomeUnreadable, spread(0))
	case errors.Is(err, redlock.ErrHeldByCaller): // a client that tried again would get this again
		return refuse(OutcomeFailed, 0)
	case errors.As(err, &held):
		refusal := refuse(OutcomeHeld, s.pace.retryAfter(held.RetryAfter, max(held.Slots, 1)))
		refusal.Status = s.HeldStatus
		return refusal
	case errors.As(err, &quorum):
		refusal := refuse(OutcomeNoQuorum, spread(quorum.RetryAfter))
		refusal.Status = s.NoQuorumStatus
		return refusal
	case errors.Is(err, redlock.ErrClosed), errors.Is(err, redlock.ErrBusy), errors.Is(err, context.DeadlineExceeded):
		// Nothing was seen: somebody may have the lock, so that this is no reason to serve the request without it.
		refusal := refuse(OutcomeFailed, spread(0))
		refusal.Status = http.StatusServiceUnavailable
		return refusal
	}
	return refuse(OutcomeFailed, 0)
}

// Observe sets the Observer of the rule, before the first request.
func (s *Serializer) Observe(o Observer) {
	s.Observer = o
	o.Begin(s.Name, possibleOf(s))
}

func (s *Serializer) observeWaits(n int) {
	if s.Observer != nil {
		s.Observer.Waits(s.Name, n)
	}
}

func (s *Serializer) observeDone(outcome Outcome, held time.Duration) {
	if s.Observer != nil {
		s.Observer.Done(s.Name, outcome, held)
	}
}

// mayLog reports whether a line about something may be logged now, and about how many requests none was since the last one. Somebody
// who has turned on the debug level looks for every request.
func (s *Serializer) mayLog(about string) (missed int, ok bool) {
	if s.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return 0, true
	}
	return s.logPauses.due(about, time.Now())
}

// logSometimes logs a line about the rule, unless one of this kind was logged just now. Attributes with a nil error are left out.
func (s *Serializer) logSometimes(level slog.Level, message, kind string, attrs ...slog.Attr) {
	if !s.Logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := s.mayLog("about " + kind)
	if !ok {
		return
	}
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindAny && a.Value.Any() == nil })
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	s.Logger.LogAttrs(context.Background(), level, message, append([]slog.Attr{slog.String("rule", s.Name)}, attrs...)...)
}

// logOutcome logs what became of a request, unless that was logged just now for another one. The line has neither the key, but for its hash, nor
// a value of the request; err, which may name masters, is logged only if they are to blame.
func (s *Serializer) logOutcome(message string, turn Turn, err error, more ...slog.Attr) {
	logger, level := s.Logger, outcomes[turn.Outcome].level
	if !logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := s.mayLog(string(turn.Outcome))
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

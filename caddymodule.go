// Package caddyredlock is a Caddy module that serializes HTTP requests by key: the handler http.handlers.redlock takes a
// lock on a majority of independent Redis masters (Redlock) before the next handler runs, and releases it when that handler
// has returned.
//
// The lock itself is package redlock, and what happens to a request is package middleware. This package adds what Caddy
// needs: configuration, placeholders, errors, and masters that outlive a reload. Read it in this order:
//
//   - caddymodule.go: the handler http.handlers.redlock: its settings, what happens to a request, and its placeholders
//   - errorroutes.go: which error routes a server with a rule may have, as they run without the lock
//   - reads.go: which rules refuse requests that only read
//   - forgedheaders.go: the headers that no client may set
//   - guard.go: the handler http.handlers.redlock_guard
//   - require.go: the handler http.handlers.redlock_require, and which handlers stand behind none
//   - app.go: the app redlock, which is the global option: the masters, TLS to them, metrics, and what all rules share
//   - pool.go: lockers that outlive a reload
//   - caddyfile.go: the Caddyfile syntax
//
// The commands "caddy redlock …" are internal/programs/caddycli.
package caddyredlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/text/unicode/norm"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/explain"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler serializes requests by key. It takes the lock of the request, runs the next handlers, and
// releases the lock when they have returned. The masters are those of the app redlock (the global
// option redlock).
//
// A request that is not served ends in an error with a status and, where a retry makes sense, the header
// Retry-After, for handle_errors: 423 if another request holds the lock, 409 if too few masters answer,
// 400 if a part of the key is missing, 500 if the lease was lost before anything was written.
//
// It sets these placeholders, for log_append, header, handle_errors and so on:
//
// Placeholder | Description
// ------------|-------------
// `{http.redlock.key}` | The lock key, or its hash if the key is hashed
// `{http.redlock.fence}` | The fencing token: a number larger than that of every earlier lock on the key
// `{http.redlock.slot}` | Which slot the request has, from 0 on, if the rule has a concurrency above 1
// `{http.redlock.wait}` | How long the request waited for its lock, in seconds
// `{http.redlock.outcome}` | `acquired`, `held` and so on; docs/problems.md lists them
// `{http.redlock.detail}` | Why the request has no lock, such as the part of the key that is missing; safe for clients, and in JSON between quotes
// `{http.redlock.rule}` | The name of the rule
type Handler struct {
	middleware.Rule

	// Where the Caddyfile has the settings that can only be checked when the configuration is loaded, for error messages.
	Source source `json:"source,omitempty"`

	app        *App
	serializer engine.Serializer
	hideRule   func() // removes the rule from the metrics; nil if the metrics don't show it
	lines      *notices.Queue[notices.Line]
}

// UnmarshalJSON reads the settings as Caddy does, with durations such as "2s" and "1d". Numbers are refused, because a person who writes 5 means
// seconds, and Caddy would read nanoseconds.
func (h *Handler) UnmarshalJSON(text []byte) error {
	type plain Handler // without this method
	return rule.Unmarshal(text, (*plain)(h))
}

// MarshalJSON writes what UnmarshalJSON reads.
func (h Handler) MarshalJSON() ([]byte, error) {
	type plain Handler
	return rule.Marshal(plain(h))
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.redlock",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision checks the configuration and finds the masters.
func (h *Handler) Provision(ctx caddy.Context) error {
	if err := h.provision(ctx); err != nil {
		return fmt.Errorf("redlock %s: %w", engine.Name(h.Rule), h.Source.at(err))
	}
	h.warn(ctx.Logger())
	return nil
}

func (h *Handler) provision(ctx caddy.Context) error {
	if err := h.check(); err != nil {
		return err
	}
	app, err := ctx.App("redlock")
	if err != nil {
		return fmt.Errorf("getting the redlock app: %w", err)
	}
	h.app = app.(*App)
	if err := h.app.checkTTL(h.TTL); err != nil {
		return err
	}
	rule := h.Rule // a copy, so that the settings of h stay as they were given
	rule.Finished = finished
	h.lines, rule.Logger = queuedLog(ctx)
	rule.BodyBudget = h.app.bodies
	rule.ClientAddress = clientIP
	rule.Shutdown = exiting
	rule.Sealer = h.app.sealer
	rule.OriginalURL = originalURL
	rule.User = authenticated
	rule.OnReplay = func(r *http.Request, turn middleware.Turn) { show(r, h, turn, false) }
	rule.OnHold = h.remain
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnShutdown(noticeExit)
	}
	if rule.Verify, err = withSecrets(h.Verify); err != nil {
		return err
	}
	rule.Observer, h.hideRule = series.Rule(engine.Name(rule))
	if h.serializer, err = engine.Compile(rule, placeholderOf); err != nil {
		return err
	}
	return h.app.register(ctx, h.serializer)
}

// Cleanup ends the series of the rule, unless another configuration or handler has a rule of this name.
func (h *Handler) Cleanup() error {
	if h.hideRule != nil {
		h.hideRule()
	}
	if h.lines != nil {
		h.lines.Close()
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)

// ServeHTTP serves the request while it holds the lock.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if e := explain.Of(r); e != nil {
		h.explain(e, r)
		return next.ServeHTTP(w, r)
	}
	locker, err := h.app.join(r.Context())
	if errors.Is(err, errChangeover) {
		w.Header().Set("Retry-After", "1")
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	if err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	defer h.leave()
	err = h.serializer.Serve(locker, w, r, func(w http.ResponseWriter, inner *http.Request) error {
		h.showTurn(r, inner)
		return serveInPlace(w, r, inner, next)
	})
	refusal, refused := err.(engine.Refusal) //nolint:errorlint // a wrapped refusal comes from another rule, which has made a response of it
	if !refused {
		return err
	}
	return refuse(w, r, h, refusal)
}

// The next three functions are not inlined. What they copy would be on the stack while the next handler runs, and would double the stack
// of most requests.

// explain adds what the rule says of the request.
//
//go:noinline
func (h *Handler) explain(e *explain.Explanation, r *http.Request) {
	e.Add(engine.Name(h.Rule), h.placeholders(), h.serializer.Explain(r))
}

// showTurn shows the turn of the inner request.
//
//go:noinline
func (h *Handler) showTurn(r, inner *http.Request) {
	turn, _ := middleware.TurnFromContext(inner.Context())
	show(r, h, turn, false)
}

// replace copies the inner request over the outer one.
//
//go:noinline
func replace(outer, inner *http.Request) *insideContext {
	ctx := &insideContext{inside: inner.Context(), outside: outer.Context()}
	*outer = *inner.WithContext(ctx)
	return ctx
}

// refuse shows a refusal and returns it as an error for handle_errors. A server without handle_errors would send an empty response
// for the error, so refuse writes the response there.
func refuse(w http.ResponseWriter, r *http.Request, by caddyhttp.MiddlewareHandler, refusal engine.Refusal) error {
	show(r, by, refusal.Turn(), true)
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && (server.Errors == nil || len(server.Errors.Routes) == 0) {
		refusal.Write(w)
		return nil
	}
	engine.StripRoute(r) // an error route may ask an upstream for a page
	refusal.SetHeaders(w.Header())
	// Don't pass the refusal: caddyhttp.Error would take the status of a HandlerError that it wraps.
	response := caddyhttp.Error(refusal.Status(), nil)
	response.Err = publicError{refusal}
	return response
}

// originalURL returns the URL before other handlers have changed it, as handle_path does.
func originalURL(r *http.Request) *url.URL {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		return original.URL
	}
	return r.URL
}

// authenticated returns the user that Caddy's authentication has found, or "".
func authenticated(r *http.Request) string {
	id, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).GetString("http.auth.user.id")
	return id
}

// clientIP returns the client's address as Caddy determines it by trusted_proxies, or else the address of the connection.
func clientIP(r *http.Request) string {
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return cmp.Or(ip, r.RemoteAddr)
}

// publicError is a refusal whose message names no master, because handle_errors may send {err.message} to clients.
type publicError struct{ refusal engine.Refusal }

func (e publicError) Error() string { return e.refusal.Turn().Detail }

func (e publicError) Unwrap() error { return e.refusal }

// serveInPlace copies the inner request over the outer request, and serves the outer one, because Caddy's placeholders are bound
// to it: they put back a body that they have read, and show what other handlers change. When the next handler has returned, the
// request has its former context again, because the context of the lock has ended. Nothing else is put back, because a proxy may
// still be reading the request.
func serveInPlace(w http.ResponseWriter, outer, inner *http.Request, next caddyhttp.Handler) error {
	ctx := replace(outer, inner)
	defer ctx.left.Store(true)
	return next.ServeHTTP(w, outer)
}

// insideContext is the context inside until left is set, and then the context outside.
type insideContext struct {
	inside, outside context.Context
	left            atomic.Bool
}

func (c *insideContext) now() context.Context {
	if c.left.Load() {
		return c.outside
	}
	return c.inside
}

func (c *insideContext) Deadline() (time.Time, bool) { return c.now().Deadline() }

func (c *insideContext) Done() <-chan struct{} { return c.now().Done() }

func (c *insideContext) Err() error { return c.now().Err() }

func (c *insideContext) Value(key any) any { return c.now().Value(key) }

// remain adds a user to the locker, for as long as hold_after_abort holds the keys of a request that has ended.
func (h *Handler) remain() (leave func()) {
	_, _ = h.app.settings.join() // this can't fail: the request still is a user of the locker
	return h.leave
}

// leave gives the locker back. The last request of a configuration that has been replaced closes it.
func (h *Handler) leave() {
	if err := h.app.settings.leave(); err != nil {
		h.serializer.Rule().Logger.Warn("closing the masters", "error", err)
	}
}

// check returns an error in the configuration that can be found without the app and the secrets: the Caddyfile's parser calls it,
// too.
func (h *Handler) check() error {
	_, err := h.compiled()
	return err
}

func (h *Handler) compiled() (engine.Serializer, error) {
	rule := h.Rule
	rule.BodyBudget = middleware.NewBudget(math.MaxInt64) // the app's budget is not known yet
	rule.Verify = anySecrets(h.Verify)
	return engine.Compile(rule, placeholderOf)
}

// finished reports whether the next handlers are certainly done, although they returned an error. A proxy that gave up on its upstream returns a
// status of 499, if the client has left, or a higher one.
func finished(err error) bool {
	var response caddyhttp.HandlerError
	return errors.As(err, &response) && response.StatusCode > 0 && response.StatusCode < 499
}

// anySecrets returns the senders with made-up secrets, which every scheme accepts, and which differ between senders.
func anySecrets(senders []middleware.Verify) []middleware.Verify {
	senders = slices.Clone(senders)
	for i, v := range senders {
		senders[i].Secrets = slices.Repeat([]string{fmt.Sprintf("%08d", i)}, len(v.Secrets))
	}
	return senders
}

// withSecrets returns the senders with the placeholders of their secrets replaced. Its errors show no secrets.
func withSecrets(senders []middleware.Verify) ([]middleware.Verify, error) {
	replaced := anySecrets(senders)
	for i, v := range senders {
		for j, text := range v.Secrets {
			secret, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
			if err != nil {
				return nil, fmt.Errorf("%v: the placeholder of secret %d is unknown or empty (is the variable set? does the file exist, and is its path absolute?)", v, j+1)
			}
			replaced[i].Secrets[j] = secret
		}
	}
	return replaced, nil
}

// strict maps Caddy's families of placeholders to those of package middleware, for values that a client may send more than once
// or escape in several ways. Caddy joins or decodes such values. Package middleware refuses ambiguous values, so that the lock is
// never on one value while the upstream acts on another.
var strict = map[string]string{
	"http.request.header.":    "header.",
	"http.request.cookie.":    "cookie.",
	"http.request.uri.query.": "query.",
	"http.request.uri.path.":  "path.",
}

// isStrict reports whether package middleware reads a name in one of these families. In the family of the path, it reads only
// segments.
func isStrict(family, arg string) bool {
	return family != "path." || strings.Trim(arg, "-0123456789") == ""
}

// strictName returns package middleware's name for one of Caddy's placeholders, if that package reads the value.
func strictName(name string) (string, bool) {
	for caddys, ours := range strict {
		arg, ok := strings.CutPrefix(name, caddys)
		if !ok {
			arg, ok = strings.CutPrefix(name, ours)
		}
		if ok && isStrict(ours, arg) {
			return ours + arg, true
		}
	}
	return "", false
}

var shortNames = httpcaddyfile.NewShorthandReplacer()

// fullName returns Caddy's name of a placeholder, given the short one of the Caddyfile.
func fullName(name string) string {
	segment := caddyfile.Segment{{Text: "{" + name + "}"}}
	shortNames.ApplyToSegment(&segment)
	return strings.Trim(segment[0].Text, "{}")
}

// placeholder returns the function that reads the value of a Caddy placeholder in a key template. It also knows the short names
// of the Caddyfile, which Caddy does not expand in {header.A|query.b}.
func placeholder(name string) (middleware.KeyFunc, error) {
	switch name = fullName(name); name {
	case "http.request.host", "http.request.method":
		return engine.Placeholder(strings.TrimPrefix(name, "http.request."))
	case "http.request.uri.path":
		return engine.Placeholder("path")
	}
	if name == "body" || strings.HasPrefix(name, "http.request.body") {
		return nil, fmt.Errorf("{%s} is the whole body, without limit; name a field, such as {body.order.id}", name)
	}
	if !strings.Contains(name, ".") {
		return nil, fmt.Errorf("unknown placeholder {%s}; Caddy placeholders contain a dot, such as {http.request.uri.path.1} or, in a Caddyfile, {path.1}", name)
	}
	if ours, ok := strictName(name); ok {
		return engine.Placeholder(ours)
	}
	if number, ok := strings.CutPrefix(name, "http.request.host.labels."); ok {
		return hostLabel(number)
	}
	if part, ok := strings.CutPrefix(name, "http.request.uri.path."); ok {
		return pathPart(part)
	}
	return func(r *http.Request) (string, error) {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		switch value, _ := repl.Get(name); value := value.(type) {
		case nil: // the placeholder is unknown, perhaps because the handler that sets it was not run
			return "", middleware.ErrMissingKey
		case error:
			return "", value
		default:
			return caddy.ToString(value), nil
		}
	}, nil
}

// placeholderOf is the function placeholder for the templates of a rule.
func placeholderOf(rule *middleware.Rule, name string) (middleware.KeyFunc, error) {
	if ours, ok := strictName(fullName(name)); ok {
		return engine.PlaceholderOf(rule, ours)
	}
	return placeholder(name)
}

// hostLabel returns the function that reads a label of the host, counted from the right. Caddy would count the empty label behind
// a trailing dot as well, so that a client could choose between two labels.
func hostLabel(number string) (middleware.KeyFunc, error) {
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("{labels.%s}: want a number: the labels of a host are counted from the right, starting at 0", number)
	}
	host, err := engine.Placeholder("host")
	return func(r *http.Request) (string, error) {
		name, err := host(r)
		labels := strings.Split(name, ".")
		if err != nil || int(n) >= len(labels) {
			return "", cmp.Or(err, middleware.ErrMissingKey)
		}
		return labels[len(labels)-1-int(n)], nil
	}, err
}

// pathPart returns the function that reads one of Caddy's parts of the path. Caddy would keep text that upstreams strip, such as
// ";v=1".
func pathPart(name string) (middleware.KeyFunc, error) {
	read, ok := map[string]func(dir, file string) string{
		"dir":       func(dir, _ string) string { return dir },
		"file":      func(_, file string) string { return file },
		"file.base": func(_, file string) string { return strings.TrimSuffix(file, path.Ext(file)) },
		"file.ext":  func(_, file string) string { return path.Ext(file) },
	}[name]
	if !ok {
		return nil, fmt.Errorf("unknown placeholder {http.request.uri.path.%s}; a path has segments (.0, .1 and so on), dir, file, file.base and file.ext", name)
	}
	whole, err := engine.Placeholder("path")
	return func(r *http.Request) (string, error) {
		text, err := whole(r)
		return read(path.Split(norm.NFKC.String(text))), err // keys are folded in this way, too: a wide dot becomes a dot
	}, err
}

// turnVar is the variable of a request whose value is the *shown of the request.
const turnVar = "http.redlock"

// shown has the turns that the placeholders and the access log show of a request. It computes a value only when the value is
// read.
type shown struct {
	turns []ruleTurn // of the rules that the request has reached, the latest last
	room  [1]ruleTurn
}

type ruleTurn struct {
	middleware.Turn
	by      caddyhttp.MiddlewareHandler // a rule, or the guard
	refused bool
}

// show makes the placeholders show this turn from now on, and adds it to the access log.
func show(r *http.Request, by caddyhttp.MiddlewareHandler, turn middleware.Turn, refused bool) {
	ctx := r.Context()
	s, ok := caddyhttp.GetVar(ctx, turnVar).(*shown)
	if !ok {
		s = new(shown)
		s.turns = s.room[:0]
		caddyhttp.SetVar(ctx, turnVar, s)
		ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer).Map(s.get)
		server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
		if extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok && server != nil && server.Logs != nil {
			extra.Add(zap.Object("redlock", s))
		}
	}
	s.turns = slices.DeleteFunc(s.turns, func(t ruleTurn) bool { return t.by == by })
	s.turns = append(s.turns, ruleTurn{turn, by, refused})
}

func (s *shown) latest() middleware.Turn { return engine.Now(s.turns[len(s.turns)-1].Turn) }

func (s *shown) get(name string) (any, bool) {
	switch name {
	case "http.redlock.key":
		return s.latest().Key, true
	case "http.redlock.fence":
		if fence, ok := s.latest().Fence(); ok {
			return fence, true
		}
	case "http.redlock.slot":
		if slot, ok := s.latest().Slot(); ok {
			return slot, true
		}
	case "http.redlock.wait":
		return s.latest().Waited.Seconds(), true
	case "http.redlock.outcome":
		return s.String(), true
	case "http.redlock.detail":
		return inJSON.Replace(s.latest().Detail), true
	case "http.redlock.rule":
		return s.latest().Rule, true
	}
	return nil, false
}

// inJSON makes a text fit between quotes.
var inJSON = strings.NewReplacer(`"`, "'", `\`, "/")

// String returns the outcome alone: {http.vars.http.redlock} shows it, and must not show the key.
func (s *shown) String() string { return string(s.latest().Outcome) }

// MarshalLogObject writes the group redlock of the access log: the rule that has refused the request, or else the latest, which
// is the innermost. The other rules that the request has reached follow in a list.
func (s *shown) MarshalLogObject(into zapcore.ObjectEncoder) error {
	decided := slices.IndexFunc(s.turns, func(t ruleTurn) bool { return t.refused })
	if decided < 0 {
		decided = len(s.turns) - 1
	}
	addTurn(into, s.turns[decided].Turn)
	if len(s.turns) == 1 {
		return nil
	}
	return into.AddArray("others", zapcore.ArrayMarshalerFunc(func(list zapcore.ArrayEncoder) error {
		for i, t := range s.turns {
			if i == decided {
				continue
			}
			_ = list.AppendObject(zapcore.ObjectMarshalerFunc(func(into zapcore.ObjectEncoder) error {
				addTurn(into, t.Turn)
				return nil
			}))
		}
		return nil
	}))
}

func addTurn(into zapcore.ObjectEncoder, turn middleware.Turn) {
	for _, attr := range turn.LogValue().Group() {
		switch value := attr.Value; value.Kind() {
		case slog.KindFloat64:
			into.AddFloat64(attr.Key, value.Float64())
		case slog.KindInt64:
			into.AddInt64(attr.Key, value.Int64())
		case slog.KindUint64:
			into.AddUint64(attr.Key, value.Uint64())
		default:
			into.AddString(attr.Key, value.String())
		}
	}
}

func (h *Handler) warn(log *zap.Logger) {
	rule := []zap.Field{zap.String("rule", engine.Name(h.Rule)), zap.String("at", h.Source["key"])}
	for _, template := range h.templates() {
		for _, name := range unknownNames(template) {
			log.Warn("key has a placeholder that Caddy does not know: no request has a key, unless another handler sets it", append(rule, zap.String("placeholder", name))...)
		}
	}
	for _, template := range h.Keys {
		if parsed, err := engine.ParseTemplate(template, placeholder); err == nil && parsed.WithoutKind() != nil {
			log.Info("key has a placeholder without a kind; if the value is an identifier, say which, as in {path.1:int}, :int64, :uuid or :id: no upstream reads another value then (docs/keys.md#say-what-you-expect)",
				append(rule, zap.Strings("placeholders", parsed.WithoutKind()))...)
		}
	}
	for _, warning := range h.serializer.Warnings() {
		log.Warn(warning, rule...)
	}
	if global := h.serializer.Global(); global != "" {
		log.Warn("key has no placeholder: all requests of this rule share one lock; a matcher begins with @, / or *", append(rule, zap.String("key", global))...)
	}
	if h.serializer.Rule().Remember > 0 && h.app.inMemory() {
		log.Warn("responses are remembered in this process's memory: after a restart, and in other processes, a repeat runs again", rule...)
	}
}

func (h *Handler) templates() []string {
	return append(h.Keys[:len(h.Keys):len(h.Keys)], h.Dedupe, h.Scope)
}

func (h *Handler) placeholders() (names []string) {
	for _, template := range h.templates() {
		names = append(names, placeholderNames(template)...)
	}
	return names
}

// jsonIndex finds the index of a list as JavaScript writes it: to a reader of JSON, items[0] is one name, and items.0 the first item.
var jsonIndex = regexp.MustCompile(`\b(?:body|json|payload)\.[^{}|&:]*\[[0-9]+\]`)

// unknownNames returns the placeholders of a template that have no value, whatever the request is.
func unknownNames(template string) (unknown []string) {
	r := &http.Request{Method: http.MethodGet, URL: new(url.URL), Header: make(http.Header), TLS: new(tls.ConnectionState)}
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
	for _, name := range placeholderNames(template) {
		if _, ours := strictName(name); strings.Contains(name, ".") && !ours && !setByOthers(name) && !isKnown(repl, name) {
			unknown = append(unknown, name)
		}
	}
	for _, family := range []string{"body", "json", "form"} {
		if strings.Contains(template, family+".$.") { // JSONPath begins that way
			unknown = append(unknown, family+".$")
		}
	}
	return append(unknown, jsonIndex.FindAllString(template, -1)...)
}

// placeholderNames returns the placeholders of a template, without the fields of the body.
func placeholderNames(template string) (names []string) {
	_, _ = engine.ParseTemplate(template, func(name string) (middleware.KeyFunc, error) {
		names = append(names, fullName(name))
		return placeholder(name)
	})
	return names
}

func isKnown(repl *caddy.Replacer, name string) (known bool) {
	defer func() {
		if recover() != nil { // it needs a real request, so there is such a placeholder
			known = true
		}
	}()
	_, known = repl.Get(name)
	return known
}

// setByOthers reports whether a name belongs to a family that other handlers may set, or that only some requests have.
func setByOthers(name string) bool {
	if strings.HasPrefix(name, "http.request.") {
		return strings.HasPrefix(name, "http.request.tls.client.")
	}
	return strings.HasPrefix(name, "http.")
}

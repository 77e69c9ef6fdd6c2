// Package middleware serializes HTTP requests by key: no two requests with the same key, such as an order number, run at once,
// in any process that shares the masters. It works around any http.Handler.
//
// # Getting started
//
// New takes a Locker of package redlock, and a template that derives the key from the request:
//
//	locker, err := redlock.Open([]string{"redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"})
//	…
//	serialize := middleware.New(locker, "order:{path.id:int}", middleware.Rule{Wait: 2 * time.Second})
//	mux.Handle("POST /orders/{id}/pay", serialize(pay))
//
// The middleware takes the lock before the handler runs, renews it while the handler runs (for five minutes at most: MaxHold), and
// releases it when the handler has returned. A second request with the same key waits for at most two seconds, and is then refused
// with 423. Without Wait it is refused at once. A key can be made of the path, headers, cookies, the query and fields of the body:
// see Key templates. NewFunc takes a function in place of a template.
//
// # Key templates
//
// A template is text with placeholders in braces, such as "order:{path.1:int}". A literal brace is written \{ or \}. Without a body to read there are:
//
//	{path.NAME}  the wildcard NAME of the pattern that matched (http.ServeMux, chi, …)
//	{path.N}     segment N of the path, from 0: {path.1} of /orders/42 is 42. A path that is not clean,
//	             such as /orders//42 or /./orders/42, has no key
//	{path}       the whole path
//	{header.X}   the header X
//	{query.X}    the parameter X of the query
//	{cookie.X}   the cookie X
//	{method}     the method
//	{host}       the requested host, without its port
//
// These make the middleware read the body:
//
//	{body.a.b}          the field b of the object a in JSON, or the field a.b or a[b] of a form;
//	                    a number is the index of an element of an array
//	{body.items[].id}   the field id of each element of the list items. Each value makes a key of its own.
//	                    It is an error if only some of the elements have the field
//	{json.a} {form.a}   the same, but only in JSON, or only in a form
//	{payload.a}         a field of the JSON in the field payload of a form, as GitHub and Slack send it
//
// And every placeholder can be combined:
//
//	{a|b}        the first of a and b that the request has
//	{a|name=b}   the same, with "name=" before the value of b, so that it can't equal a value of a
//	{a&b}        all of a and b that the request has. Each value makes a key of its own. It is for senders that
//	             you trust: a client that leaves out a or b locks fewer keys
//	{a:int}      a, if it is a whole number; other kinds are int64, uuid and id
//
// All texts that upstreams may take for the same value make one key (docs/keys.md has the table), and different values make different keys: every
// byte of a value except letters, digits and "-._~" is written as %XX. A "-", ".", "_" or "~" is written as %XX, too, if it separates two placeholders
// of the template. So "{query.a}:{query.b}" makes "x%3Ay:z" of "x:y" and "z", and "x:y%3Az" of "x" and "y:z".
//
// # In the handler
//
// The context of the request ends when the lock is lost. TurnFromContext returns the key and the fencing token. A database that
// refuses a token which is smaller than the last one is safe even from a process that was paused for longer than its lease:
//
//	turn, _ := middleware.TurnFromContext(r.Context())
//	fence, ok := turn.Fence()
//
// # Responses
//
// A request that is not served is answered with application/problem+json: 423 if another request holds its lock, 409 if too few
// masters answer, 400 if a part of the key is missing, 500 if the lease was lost before the handler wrote anything.
// docs/problems.md has the other statuses. Each of these responses has the Outcome in the header Redlock-Outcome.
//
// # Logs and traces
//
// NoteTurn gives an access log the Outcome of each request and the reason for it, also if the request was refused. The Logger gets lines about
// refused requests: for each Outcome of a rule, one line in 10 s at most. The lines have the rule's Name. Keys are never logged.
//
// If a handler around the middleware, such as otelhttp's, has started an OpenTelemetry span that is recorded, each request gets a child span named
// redlock.acquire, from its arrival until its Outcome is known. If the lock is lost, the handler's span has an event redlock.lost.
//
// # Webhooks
//
// A Preset has the settings for a sender of webhooks, such as Stripe. Verify checks the sender's signatures, so that nobody
// without the secret can hold a key:
//
//	serialize := middleware.New(locker, "", middleware.Rule{
//		Preset: "stripe",
//		Verify: []middleware.Verify{{Scheme: "stripe", Secrets: []string{os.Getenv("STRIPE_SECRET")}}},
//	})
//
// # Testing
//
// Package redlocktest has Lockers that need no server. To see how a request is refused, let the test hold its key:
//
//	locker := redlocktest.New(t)
//	lock, err := locker.TryLock(t.Context(), "order:42")
//
// A handler can also be called without the middleware: then TurnFromContext and Turn.Fence report false.
//
// # Shutdown
//
// Close the Locker after http.Server.Shutdown has returned. Without Rule.Shutdown, http.Server.Shutdown waits until all requests that wait for a lock
// were served.
package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"runtime"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// New returns a middleware that serializes requests by the key that a template makes of them; see Key templates above. Rule.Keys
// may add templates.
//
//	serialize := middleware.New(locker, "order:{path.id:int}", middleware.Rule{Wait: 2 * time.Second})
//	mux.Handle("POST /orders/{id}/pay", serialize(pay))
//
// Put the middleware around the handler, inside the router: {path.NAME} is known only after routing. Pass "" as the template if the preset
// has one, or if the rule locks IDs alone. New panics if the Locker is nil, or if the template or the rule is wrong, as http.ServeMux does
// for a wrong pattern; Check returns an error instead.
//
// The middleware reads the body only if the template or a setting of the rule needs it: up to MaxBody, and before the lock is taken. The
// handler can read the same bytes again.
func New(locker *redlock.Locker, template string, rule Rule) func(http.Handler) http.Handler {
	c := mustCompile(rule.withKey(template).of(locker), nil)
	if global := c.global(); global != "" {
		c.Logger.Warn("key template has no placeholder: all requests share one lock", "rule", c.Name, "template", global)
	}
	return c.middleware(locker)
}

// Check returns the error with which New would panic for this template and rule, or nil. It is for rules that come from a configuration. A TTL is
// compared only by New with the max TTL of its Locker.
func Check(template string, rule Rule) error {
	_, err := compile(rule.withKey(template), nil, (*Rule).placeholder)
	return err
}

// NewFunc is New with a function in place of the template. Requests that must not run at once need the same key. The function may not read the body.
// It runs before the request waits, for each request of the rule. NewFunc panics where New does, and if the function is nil.
func NewFunc(locker *redlock.Locker, key KeyFunc, rule Rule) func(http.Handler) http.Handler {
	if key == nil {
		panic("middleware: the KeyFunc is nil")
	}
	rule.Name = cmp.Or(rule.Name, nameOfFunc(key))
	return mustCompile(rule.of(locker), onlyKey(key)).middleware(locker)
}

func mustCompile(rule Rule, derive keysFunc) *compiled {
	c, err := compile(rule, derive, (*Rule).placeholder)
	if err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return c
}

func (c *compiled) middleware(locker *redlock.Locker) func(http.Handler) http.Handler {
	c.warn()
	s := serializer{c}
	return func(next http.Handler) http.Handler {
		if runsLater(next) {
			return c.refuseAll(errRunsLater)
		}
		run := func(w http.ResponseWriter, r *http.Request) error {
			next.ServeHTTP(w, r)
			return nil
		}
		return decided{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refusal, ok := errors.AsType[*refusalError](s.Serve(locker, w, r, run)); ok {
				refusal.Write(w)
			}
		})}
	}
}

// errRunsLater is the error for a framework that calls its handler after the middleware has returned. The handler would run without the lock.
var errRunsLater = errors.New("the adapter runs the handler after the middleware has returned, without its lock: " +
	"with Fiber, wrap the handler instead, adaptor.HTTPHandler(middleware.New(…)(handler))")

// runsLater reports whether next is the handler of Fiber's adaptor.HTTPMiddleware, which only notes that it was called. All other handlers are
// assumed to do their work before they return.
func runsLater(next http.Handler) bool {
	f, ok := next.(http.HandlerFunc)
	if !ok {
		return false
	}
	pc := reflect.ValueOf(f).Pointer()
	function := runtime.FuncForPC(pc)
	file, _ := function.FileLine(pc)
	return strings.Contains(function.Name(), "HTTPMiddleware.") && // an inlined function has the name of its caller in front
		strings.Contains(file, "github.com/gofiber/fiber/") && strings.Contains(file, "/adaptor/")
}

// refuseAll returns a handler that refuses all requests, so that none is served without a lock.
func (c *compiled) refuseAll(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refusal := newRefusal(OutcomeFailed, err)
		refusal.turn.Rule, refusal.turn.Detail = c.Name, detailOf(OutcomeFailed, err)
		c.logOutcome("request is refused", refusal.turn, err, slog.Int("status", refusal.status))
		c.observeDone(OutcomeFailed, 0)
		refusal.Write(w)
	})
}

package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// TestDetail looks for why a request is not served, or is served without a lock, in the response and in the turn: in words that
// show neither a value of the request nor a master.
func TestDetail(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(name, value) }
	}
	l, closed := newLocker(t, live), newLocker(t, live)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	noQuorum := newLocker(t, dead)
	hold(t, l, "held:post")
	stopping, stop := context.WithCancel(t.Context())
	stop()
	wait := time.Millisecond
	foreign := func(*http.Request) (string, error) { return "", errors.New("no customer " + secret) }
	failing := func(err error) func(*http.Request) {
		return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(brokenReader{err}), -1 }
	}
	buffered := new(true)

	for name, test := range map[string]struct {
		with func(middleware.Rule) func(http.Handler) http.Handler
		rule middleware.Rule
		body string
		send func(*http.Request)
		want string
	}{
		"missing":         {body: `{"account":{"no":"s3cret"}}`, with: of(l, "c:{body.account.id}"), want: "key part {body.account.id}: missing or empty"},
		"missing, passed": {with: of(l, "c:{header.A}"), rule: middleware.Rule{OnMissingKey: middleware.Pass}, want: "key part {header.A}: missing or empty"},
		"missing, dry":    {with: of(l, "c:{header.A}"), rule: middleware.Rule{DryRun: true}, want: "key part {header.A}: missing or empty"},
		"twice":           {send: func(r *http.Request) { r.Header["A"] = []string{secret, "b"} }, with: of(l, "c:{header.A}"), want: "key part {header.A}: given more than once, or under a name or in a place that some upstreams take for this one"},
		"kind":            {send: header("A", secret), with: of(l, "c:{header.A:int}"), want: `key part {header.A:int}: not a whole number below 2^53 that is written as 42 is, without a plus sign or zeros in front`},
		"no text":         {send: header("A", secret+"\xff"), with: of(l, "c:{header.A}"), want: "key part {header.A}: not valid UTF-8, or with a character that controls, is private, or is newer than Unicode 15"},
		"path":            {send: func(r *http.Request) { r.URL.Path = "/s3cret//a" }, with: of(l, "c:{path.1}"), want: `key part {path.1}: path has an empty, ".", ".." or "+" segment, an escaped slash, or what is escaped twice`},
		"object":          {body: `{"a":{"s3cret":1}}`, with: of(l, "c:{body.a}"), want: "key part {body.a}: is an object or array; want a string, number or boolean"},
		"no JSON":         {body: `{"a":s3cret}`, with: of(l, "c:{body.a}"), want: "key part {body.a}: body is not valid JSON, in UTF-8 without a byte order mark"},
		"some elements":   {body: `{"a":[{"id":"s3cret"},{}]}`, with: of(l, "c:{body.a[].id}"), want: "key part {body.a[].id}: missing or empty in some of the elements only"},
		"two readers":     {body: `{"x":"&a=s3cret&"}`, with: of(l, "c:{body.a}"), want: "key part {body.a}: given more than once, or under a name or in a place that some upstreams take for this one"},
		"type":            {body: secret, send: func(r *http.Request) { r.Header.Set("Content-Type", "text/s3cret") }, with: of(l, "c:{body.a}"), want: "key part {body.a}: body is neither JSON nor application/x-www-form-urlencoded, in UTF-8"},
		"no form":         {body: "{}", with: of(l, "c:{form.a}"), want: "key part {form.a}: body is JSON; want a form, application/x-www-form-urlencoded"},
		"no payload":      {body: "{}", with: of(l, "c:{payload.a}"), want: "key part {payload.a}: body is JSON; want a form, application/x-www-form-urlencoded"},
		"a form":          {body: "a=s3cret", send: func(r *http.Request) { r.Header.Set("Content-Type", formType) }, with: of(l, "c:{json.a}"), want: "key part {json.a}: body is a form; want JSON"},
		"JSON as a form":  {body: ` {"a":"s3cret"}`, send: func(r *http.Request) { r.Header.Set("Content-Type", formType) }, with: of(l, "c:{json.a:int}"), want: "key part {json.a:int}: body looks like JSON, but its Content-Type is application/x-www-form-urlencoded: send application/json"},
		"JSON for a form": {body: `{"a":"s3cret"}`, send: func(r *http.Request) { r.Header.Set("Content-Type", formType) }, with: of(l, "c:{form.a}"), want: "key part {form.a}: form or query has a name that is empty, has other characters than letters, digits, spaces and -_.:~@$*/,()'[], or begins with one behind the $"},
		"always a form":   {body: `[]`, send: func(r *http.Request) { r.Header.Set("Content-Type", formType) }, with: of(l, "c:{body.a}"), rule: middleware.Rule{BodyFormat: "form"}, want: "key part {body.a}: form or query has a name that is empty, has other characters than letters, digits, spaces and -_.:~@$*/,()'[], or begins with one behind the $"},
		"no router":       {with: of(l, "c:{path.id}"), want: "key part {path.id}: missing or empty; no router has named it: put the middleware inside the router, around the handler"},
		"no wildcard":     {send: func(r *http.Request) { r.Pattern = "POST /orders/{id}/{file...}" }, with: of(l, "c:{path.ids:int}"), want: "key part {path.ids:int}: missing or empty; the pattern of the route has no wildcard of this name"},
		"empty wildcard":  {send: func(r *http.Request) { r.Pattern = "/orders/{id...}" }, with: of(l, "c:{path.id}"), want: "key part {path.id}: missing or empty"},
		"chi's wildcard":  {send: func(r *http.Request) { r.Pattern = "/orders/{id:[0-9]*}" }, with: of(l, "c:{path.id}"), want: "key part {path.id}: missing or empty"},
		"no ID":           {with: of(l, "c:{method}"), rule: middleware.Rule{IdempotencyKey: "required"}, want: "the request must have the header Idempotency-Key, by which a repeat is told from a new request"},
		"no sender":       {send: header("Id", secret), with: of(l, "c:{method}"), rule: middleware.Rule{Dedupe: "{header.Id}", Scope: "{header.X-Api-Key}"}, want: "scope {header.X-Api-Key}: missing or empty"},
		"two hosts": {send: func(r *http.Request) {
			r.Header["Id"], r.Header["Forwarded"] = []string{secret}, []string{"host=s3cret"}
		}, with: of(l, "c:{method}"), rule: middleware.Rule{Dedupe: "{header.Id}"}, want: "the request has no host, or the header Forwarded names a second one: if all are one site, the rule needs its name (site)"},
		"signed, encoded": {body: secret, send: func(r *http.Request) {
			r.Header["X-Hub-Signature-256"], r.Header["Content-Encoding"] = []string{"sha256=" + strings.Repeat("0", 64)}, []string{"gzip"}
		}, with: of(l, "c:{method}"), rule: middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"key"}}}}, want: "body has a Content-Encoding: it would have to be decoded first"},
		"encoded":        {body: secret, send: header("Content-Encoding", "gzip"), with: of(l, "c:{body.a}"), want: "key part {body.a}: body has a Content-Encoding: it would have to be decoded first"},
		"too large":      {body: secret, with: of(l, "c:{method}"), rule: middleware.Rule{BufferBody: buffered, MaxBody: 3}, want: "body is larger than max_body"},
		"broken":         {send: failing(errors.New(secret)), with: of(l, "c:{method}"), rule: middleware.Rule{BufferBody: buffered}, want: "body can't be read to its end"},
		"upgrade":        {send: func(r *http.Request) { r.Header.Set("Connection", "upgrade"); r.Header.Set("Upgrade", secret) }, with: of(l, "c:{method}"), want: "request asks for another protocol, which would hold the lock for as long as it lasts"},
		"signature":      {send: header("X-Hub-Signature-256", "sha256="+secret), with: of(l, "c:{method}"), rule: middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"key"}}}}, want: "signature is missing or can't be read"},
		"foreign":        {with: ofFunc(l, foreign), want: "no certain key can be made of the request"},
		"foreign, empty": {with: ofFunc(l, func(*http.Request) (string, error) { return "", nil }), want: "key: missing or empty"},
		"held":           {with: of(l, "held:{method}"), want: "another request holds the lock"},
		"held, waited":   {with: of(l, "held:{method}"), rule: middleware.Rule{Wait: wait}, want: "another request held the lock for the whole wait"},
		"stopping":       {with: of(l, "held:{method}"), rule: middleware.Rule{Wait: wait, Shutdown: stopping}, want: "the lock is held, and the server is about to stop"},
		"duplicate":      {send: func(r *http.Request) { r.URL.Path = "/again" }, with: of(l, "d:{method}"), rule: middleware.Rule{Dedupe: "{method}"}, want: "the same delivery is in progress"},
		"no quorum":      {with: of(noQuorum, "c:{method}"), want: "too few masters are usable"},
		"unprotected":    {with: of(noQuorum, "c:{method}"), rule: middleware.Rule{OnNoQuorum: middleware.Pass}, want: "too few masters are usable"},
		"max hold":       {with: of(l, "m:{method}"), rule: middleware.Rule{MaxHold: time.Millisecond}, send: func(r *http.Request) { r.URL.Path = "/hold" }, want: "the request held its lock for max_hold"},
		"forced":         {with: of(l, "f:{method}"), send: func(r *http.Request) { r.URL.Path = "/force" }, want: "the lock was released by force"},
		"closed":         {with: of(closed, "c:{method}"), want: "the server has closed its locks"},
		"acquired":       {with: of(l, "c:{method}"), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			var handler http.Handler
			var served *middleware.Turn
			handler = test.with(test.rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				turn, _ := middleware.TurnFromContext(r.Context())
				served = &turn
				switch r.URL.Path {
				case "/again": // the same delivery again, while this one runs
					r = httptest.NewRequest(http.MethodPost, "/", nil)
					handler.ServeHTTP(w, r)
				case "/force":
					force(t, l, r)
					<-r.Context().Done()
				case "/hold":
					<-r.Context().Done()
				}
			}))
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
			r.Header.Set("Content-Type", "application/json")
			if test.send != nil {
				test.send(r)
			}
			ctx, noted := middleware.NoteTurn(r.Context())
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r.WithContext(ctx))
			var problem struct{ Detail string }
			if w.Code >= 400 {
				if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
					t.Fatal(err)
				}
			} else if served != nil {
				problem.Detail = served.Detail
			}
			if problem.Detail != test.want {
				t.Errorf("detail %q, want %q", problem.Detail, test.want)
			}
			if turn, ok := noted(); name != "duplicate" && (!ok || turn.Detail != test.want) {
				t.Errorf("noted %q, %v, want %q", turn.Detail, ok, test.want)
			}
			if text := w.Body.String(); strings.Contains(text, secret) || strings.Contains(text, "127.0.0.1") {
				t.Errorf("the response shows too much: %s", text)
			}
		})
	}
}

type brokenReader struct{ error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.error }

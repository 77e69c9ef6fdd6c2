package middleware_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func required(t *testing.T, want middleware.Requirement, next http.HandlerFunc) http.Handler {
	t.Helper()
	q, err := middleware.NewRequired(middleware.Rule{Logger: slog.New(slog.DiscardHandler)}, want)
	if err != nil {
		t.Fatal(err)
	}
	return q(next)
}

// served says under which fence a handler was served.
func served(w http.ResponseWriter, r *http.Request) {
	seen := r.Header.Get("Fencing-Token") + r.Header.Get("Fencing_token") + r.Header.Get("X-Other-Fence") + r.Header.Get("Upgrade")
	if len(seen) > 9 {
		seen = "a fence"
	}
	w.Header().Set("Seen", seen)
	w.WriteHeader(http.StatusAccepted)
}

// ask sends "METHOD TARGET[ HEADER: VALUE]...", of which a header "body" or "stream" is the body, and returns the status and the outcome.
func ask(t *testing.T, h http.Handler, request string) (got string, w *httptest.ResponseRecorder) {
	t.Helper()
	fields := strings.Split(request, " ")
	r := httptest.NewRequest("POST", "/", nil)
	r.Method, r.RequestURI = fields[0], fields[1]
	var err error
	if r.URL, err = r.URL.Parse(fields[1]); err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Forged", "1")
	for _, header := range fields[2:] {
		name, value, _ := strings.Cut(header, ":")
		if name == "body" || name == "stream" {
			r.Body, r.ContentLength = http.MaxBytesReader(nil, httptest.NewRequest("POST", "/", strings.NewReader(value)).Body, 99), int64(len(value))
			if name == "stream" {
				r.ContentLength = -1
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			continue
		}
		r.Header[name] = []string{value}
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return strings.TrimSpace(fmt.Sprint(w.Code, " ", w.Header().Get("Redlock-Outcome"))), w
}

// Each kind of rule, inside of a router that misses what it misses.
func TestRequire(t *testing.T) {
	t.Parallel()
	site := func(t *testing.T, want middleware.Requirement) http.Handler {
		locker := newLocker(t, live) // the cases have the same keys
		app := required(t, want, served)
		mux := http.NewServeMux()
		rule := func(pattern, template string, rule middleware.Rule) {
			rule.Name = strings.Fields(pattern)[len(strings.Fields(pattern))-1]
			mux.Handle(pattern, middleware.New(locker, template, rule)(app))
		}
		rule("POST /orders/{id}/pay", "order:{path.id:int}", middleware.Rule{})
		rule("GET /orders/{id}/pay", "order:{path.id:int}", middleware.Rule{})
		rule("POST /dry/{id}", "order:{path.id:int}", middleware.Rule{DryRun: true})
		rule("POST /pass", "order:{header.X-Order}", middleware.Rule{OnMissingKey: middleware.Pass})
		rule("POST /limit/{id}", "order:{path.id:int}", middleware.Rule{Concurrency: []int{2}})
		rule("POST /limit", "order:{header.X-Order}", middleware.Rule{Concurrency: []int{2}, OnMissingKey: middleware.Pass})
		rule("POST /once", "", middleware.Rule{IdempotencyKey: "optional", Scope: "off"})
		rule("POST /both", "order:{header.X-Order}", middleware.Rule{IdempotencyKey: "optional", Scope: "off", OnMissingKey: middleware.Pass})
		inner := middleware.New(locker, "order:{header.X-Order}", middleware.Rule{Name: "inner", OnMissingKey: middleware.Pass})(app)
		mux.Handle("POST /nested/{id}", middleware.New(locker, "outer:{path.id:int}", middleware.Rule{Name: "outer", FenceHeader: "X-Other-Fence"})(inner))
		mux.Handle("POST /files/{path...}", middleware.New(locker, "file:{path}", middleware.Rule{Name: "file"})(app))
		mux.Handle("/", app)
		return mux
	}
	for name, c := range map[string]struct {
		want     middleware.Requirement
		requests map[string]string
	}{
		"by default": {middleware.Requirement{}, map[string]string{
			"POST /orders/42/pay": "202", "POST /orders/42/pay/": "403 unlocked", "POST /ORDERS/42/pay": "403 unlocked",
			"post /orders/42/pay": "403 unlocked", "POST /orders/42%2fpay": "403 unlocked", "POST /index.php/orders/42/pay": "403 unlocked",
			"PROPFIND /": "403 unlocked", "QUERY /": "403 unlocked", "TRACE /": "403 unlocked", "DELETE /x": "403 unlocked", "CONNECT /x": "403 unlocked",
			"POST /dry/42": "202", "POST /dry/x": "202",
			"POST /pass": "403 unlocked", "POST /pass X-Order:1": "202",
			"POST /limit/1": "403 unlocked", "POST /limit": "403 unlocked",
			"POST /once": "403 unlocked", "POST /once Idempotency-Key:1": "403 unlocked",
			"POST /both Idempotency-Key:2": "403 unlocked", "POST /both Idempotency-Key:3 X-Order:7": "202",
			"POST /nested/1": "202", "POST /nested/1 X-Order:8": "202",
			"GET /": "202", "HEAD /x.php/y": "202", "OPTIONS /": "202", "GET /orders/42/pay": "202",
			"GET / X-Http-Method-Override:POST": "403 unlocked", "GET /?_method=POST": "403 unlocked", "GET / body:_method=POST": "403 unlocked", "GET / stream:_method=POST": "403 unlocked", "GET / stream:": "202",
			"GET / Connection:Upgrade Upgrade:websocket": "403 unlocked", "GET / Connection:Upgrade Upgrade:h2c": "202",
			"POST /files/a": "202", "POST /files/v1.2": "202", "POST /files/a~b_c-d@e:f=g,h": "202", "POST /files/a/": "202",
			"POST /files/a.b": "400 unclear_target", "POST /files/.1": "400 unclear_target", "POST /files/index.php": "400 unclear_target", "POST /files/a%41": "400 unclear_target", "POST /files/caf%C3%A9": "400 unclear_target",
			"POST /files/a+b": "400 unclear_target", "POST /files/a*": "400 unclear_target", "POST /files/a$": "400 unclear_target", "POST /files/(a)": "400 unclear_target",
			"POST /files/a?rest_route=/orders/42/pay": "400 unclear_target", "POST /files/a?q=a/b": "202", "POST /files/a X-Original-Url:/orders/42/pay": "400 unclear_target",
		}},
		"all": {middleware.Requirement{All: true, Except: []string{"GET HEAD /health /orders/*?page,limit,filter[state] /robots.txt /.well-known/x", "OPTIONS /orders/*/pay"}}, map[string]string{
			"GET /": "403 unlocked", "HEAD /": "403 unlocked", "OPTIONS /": "403 unlocked", "GET /orders/42/pay": "202",
			"GET /health": "202", "HEAD /health": "202", "POST /health": "403 unlocked", "GET /health/": "403 unlocked", "GET /Health": "403 unlocked", "GET /health?x": "403 unlocked",
			"GET /orders/4?page=2&limit=3": "202", "GET /orders/4?page=2&x=3": "403 unlocked", "GET /orders/4?Page=2": "403 unlocked", "GET /orders/4?page=1;x=2": "403 unlocked", "GET /orders/4?pag%65=1": "202", "GET /orders/4?filter%5Bstate%5D=a%20b": "202",
			"GET /orders/4?pag%2565=1": "403 unlocked", "GET /orders/4?page%00=1": "403 unlocked", "GET /orders/4?page%26_method=POST": "403 unlocked", "GET /orders/4?page%3D=1": "403 unlocked",
			"GET /robots.txt": "202", "GET /.well-known/x": "202", "GET /robots.txt/x": "403 unlocked", "GET /robots%2Etxt": "403 unlocked", "GET /x/../robots.txt": "403 unlocked", "GET /robots.txt;x": "403 unlocked",
			"GET /health stream:": "202", "GET /health stream:_method=POST": "403 unlocked",
			"GET /health body:_method=POST": "403 unlocked", "GET /health X-Method-Override:POST": "400 unclear_target", "OPTIONS /orders/42/pay": "202",
		}},
		"exceptions": {middleware.Requirement{Except: []string{"/login?next", "/cart/*", "/users/{id}", "/ws", "/"}}, map[string]string{
			"POST /login": "202", "PUT /login": "202", "POST /login?next=/a/b": "202", "POST /login?rest_route=/a": "403 unlocked", "POST /login?next=1&_method=PUT": "403 unlocked", "POST /login/": "403 unlocked", "post /login": "400 unclear_target",
			"POST /cart/add": "202", "POST /cart/a_b-9": "202", "POST /cart/Add": "403 unlocked", "POST /cart/": "403 unlocked", "POST /cart/a/b": "403 unlocked", "POST /cart/v1.2": "403 unlocked",
			"POST /cart/..;/orders/42/pay": "403 unlocked", "POST /cart/%2e%2e/orders": "403 unlocked", "POST /cart/a;x": "403 unlocked", "POST /cart/public/index.php/orders/42/pay": "403 unlocked",
			"POST /users/Ab~9": "202", "POST /users/a.9": "403 unlocked", "POST /": "202",
			"GET /ws Connection:Upgrade Upgrade:websocket": "202", "GET /ws Connection:Upgrade Upgrade:other": "403 unlocked",
			"POST /login X-Original-Url:/orders/42/pay": "400 unclear_target",
		}},
		"rules": {middleware.Requirement{Rules: []string{"/limit/{id}", "/once"}}, map[string]string{
			"POST /limit/1": "202", "POST /once Idempotency-Key:4": "202", "POST /once": "403 unlocked", "POST /orders/42/pay": "403 unlocked",
		}},
		"without a key": {middleware.Requirement{OnMissingKey: "pass"}, map[string]string{
			"POST /pass": "202", "POST /once": "403 unlocked", "POST /limit": "403 unlocked", "POST /x": "403 unlocked", "POST /both Idempotency-Key:5": "403 unlocked",
		}},
		"dry run": {middleware.Requirement{DryRun: true}, map[string]string{"POST /": "202", "POST /once": "202"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := site(t, c.want)
			for request, want := range c.requests {
				if got, w := ask(t, h, request); got != want {
					t.Errorf("%s: %s, want %s: %s", request, got, want, w.Body)
				}
			}
		})
	}
}

// A refusal says whether no lock is there, or one that doesn't count.
func TestWhyUnlocked(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, live)
	for _, c := range []struct {
		template, header string
		rule             middleware.Rule
		want             middleware.Requirement
		why              string
	}{
		{"a:{path}", "", middleware.Rule{Concurrency: []int{2}}, middleware.Requirement{}, "only its ID, or a slot"},
		{"", " Idempotency-Key:1", middleware.Rule{IdempotencyKey: "optional", Scope: "off"}, middleware.Requirement{}, "only its ID, or a slot"},
		{"", "", middleware.Rule{IdempotencyKey: "optional", Scope: "off"}, middleware.Requirement{}, "no rule has taken a lock"},
		{"a:{path}", "", middleware.Rule{}, middleware.Requirement{Rules: []string{"other"}}, "none of the required ones"},
		{"a:{path}", " Origin:https://a.example Access-Control-Request-Method:POST", middleware.Rule{}, middleware.Requirement{All: true}, "except OPTIONS"},
		{"a:{header.X}", "", middleware.Rule{OnMissingKey: middleware.Pass}, middleware.Requirement{}, "let it pass without a lock: key part {header.X}"},
	} {
		if got, w := ask(t, middleware.New(locker, c.template, c.rule)(required(t, c.want, served)), map[bool]string{true: "OPTIONS", false: "POST"}[c.want.All]+" /o"+c.header); got != "403 unlocked" || !strings.Contains(w.Body.String(), c.why) {
			t.Errorf("%s: %s, want %q", got, w.Body, c.why)
		}
	}
}

// The byte that shows whether there is a body is not lost.
func TestRequireLeavesBody(t *testing.T) {
	t.Parallel()
	var body []byte
	h := required(t, middleware.Requirement{DryRun: true}, func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) })
	if _, _ = ask(t, h, "GET / stream:abc"); string(body) != "abc" {
		t.Errorf("%q", body)
	}
}

// What a client has forged doesn't get through, and what a rule has set does.
func TestRequireStripsForged(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, live)
	app := required(t, middleware.Requirement{}, served)
	inner := middleware.New(locker, "inner:{header.X-Order}", middleware.Rule{OnMissingKey: middleware.Pass})(app)
	nested := middleware.New(locker, "outer:{path}", middleware.Rule{FenceHeader: "X-Other-Fence"})(inner)
	for _, c := range []struct {
		h             http.Handler
		request, seen string
	}{
		{app, "GET / Fencing-Token:9", ""},
		{app, "GET / Fencing_token:9 X-Other-Fence:9", ""},
		{app, "GET / Connection:Upgrade Upgrade:h2c", ""},
		{nested, "POST /a X-Other-Fence:9 Fencing-Token:9", "a fence"},
	} {
		if got, w := ask(t, c.h, c.request); got != "202" || w.Header().Get("Seen") != c.seen {
			t.Errorf("%s: %s, the upstream sees %q, want %q", c.request, got, w.Header().Get("Seen"), c.seen)
		}
	}
}

// A lock that is lost or released before the request comes to what acts doesn't count.
func TestRequireLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		app := required(t, middleware.Requirement{}, func(http.ResponseWriter, *http.Request) { n++ })
		var kept *http.Request
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kept = r
			time.Sleep(2 * time.Second)
			app.ServeHTTP(w, r)
		})
		h := middleware.New(newLocker(t, live), "order:{path}", middleware.Rule{MaxHold: time.Second})(slow)
		if got, w := ask(t, h, "POST /o"); n != 0 || got != "500 lost" {
			t.Errorf("served %d times, %s: %s", n, got, w.Body)
		}
		w := httptest.NewRecorder()
		app.ServeHTTP(w, kept)
		if n != 0 {
			t.Errorf("served after the release: %d", w.Code)
		}
	})
}

// Masters that don't answer are no reason to refuse what a rule passes.
func TestRequireNoQuorum(t *testing.T) {
	t.Parallel()
	h := middleware.New(newLocker(t, dead), "order:{path}", middleware.Rule{OnNoQuorum: middleware.Pass})(required(t, middleware.Requirement{}, served))
	if got, _ := ask(t, h, "POST /o"); got != "202" {
		t.Error(got)
	}
}

// Each forgotten route has its line, as far as there are few.
func TestRequireLogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		q, err := middleware.NewRequired(middleware.Rule{Logger: slog.New(slog.NewTextHandler(&log, nil))}, middleware.Requirement{})
		if err != nil {
			t.Fatal(err)
		}
		h := q(http.HandlerFunc(served))
		for range 2 {
			for i := range 200 {
				_, _ = ask(t, h, fmt.Sprintf("PUT /r%d/x", i))
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 65 {
			t.Errorf("%d lines, want 65:\n%s", n, &log)
		}
		if want := "level=WARN msg=\"request is refused\" rule=require outcome=unlocked detail=\"no rule has taken a lock for it\" status=403 method=PUT path=/r0/x\n"; !strings.Contains(log.String(), want) {
			t.Errorf("no line %q:\n%s", want, &log)
		}
		time.Sleep(10 * time.Second)
		if _, _ = ask(t, h, "PUT /pay"); !strings.Contains(log.String(), "path=/pay not_logged=335\n") {
			t.Errorf("invented routes still hide a real one, or are not counted:\n%s", log.String()[max(0, log.Len()-300):])
		}
	})
}

func TestRequirementIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                    "want a path",
		"login":               "want a path",
		"/a b":                "plain characters",
		"POST /login":         "HEAD and OPTIONS alone",
		"/cart*":              "whole segments",
		"/cart/{x}":           "whole segments",
		"/cart/a;b":           "plain characters",
		"/cart//a":            "plain characters",
		"/index.php/a":        "plain characters",
		"/index/*":            "plain characters",
		"/a/..":               "plain characters",
		"/a..b":               "plain characters",
		"/a.":                 "plain characters",
		"/a%41":               "plain characters",
		"get /a":              "HEAD and OPTIONS alone",
		"/photos/café":        "plain characters",
		"GET  /a/*/{id}?b,c":  "",
		"GET /v1.2/a/ /":      "",
		"/favicon.ico /a.php": "",
	} {
		_, err := middleware.NewRequired(middleware.Rule{}, middleware.Requirement{Except: []string{text}})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := middleware.NewRequired(middleware.Rule{}, middleware.Requirement{OnMissingKey: "deny"}); err == nil {
		t.Error("on_missing_key deny is taken")
	}
}

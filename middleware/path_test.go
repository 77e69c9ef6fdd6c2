package middleware_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	guarded := middleware.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	opaque := keyRequest("/")
	opaque.RequestURI, opaque.URL.Opaque, opaque.URL.Path = "x:orders/42/pay", "orders/42/pay", ""
	for _, c := range []struct {
		request *http.Request
		want    int
	}{
		{opaque, 400},
		{keyRequest("http://x/orders/42/pay"), 400},
		{keyRequest("//orders/42/pay"), 400},
		{keyRequest("/x/../orders/42/pay"), 400},
		{keyRequest("/x%2F..%2Forders/42/pay"), 400},
		{keyRequest("/;x/orders/42/pay"), 400},
		{keyRequest("/%3Bx/orders/42/pay"), 400},
		{keyRequest("/%5Corders/42/pay"), 400},
		{keyRequest("/Index.PHP/orders/42/pay"), 400},
		{keyRequest("/orders/42", "X-Http-Method-Override", "DELETE"), 400},
		{keyRequest("/orders/42", "X_http_method_override", "DELETE"), 400},
		{keyRequest("/orders/42?_method=DELETE"), 400},
		{keyRequest("/orders/42?x=1&%5fMethod=DELETE"), 400},
		{keyRequest("/orders/42?.method=DELETE"), 400},
		{keyRequest("/orders/42?+_method=DELETE"), 400}, // PHP leaves out spaces before a name
		{keyRequest("/orders/42?_method%00x=DELETE"), 400},
		{keyRequest("/orders/42?_method[]=DELETE"), 400},
		{keyRequest("/orders/42?a;_method=DELETE"), 400},
		{keyRequest("/orders/42?_method=DELETE;x"), 400},
		{keyRequest("/orders/42?_method=DELETE%zz"), 400},
		{withMethod("post"), 400}, // which Flask, Django and php-fpm behind Caddy take for POST
		{withMethod("Post"), 400},
		{withMethod("pOST"), 400},
		{withMethod("POST_"), 400},
		{withMethod("PO\u017fT"), 400},
		{withMethod("+POST"), 400},
		{keyRequest("/x", "X-Original-URL", "/orders/42/pay"), 400},
		{keyRequest("/x", "X_Rewrite_Url", "/orders/42/pay"), 400},
		{keyRequest("/x", "X-Vhm-Root", "orders/42/pay"), 400},    // Pyramid's
		{keyRequest("/x", "X_Unheard.Of", "/orders/42/pay"), 400}, // of frameworks that we don't know
		{keyRequest("/x", "X-Unheard-Of", "/orders/42/pay/again"), 400},
		{keyRequest("/x/orders/42/pay", "Script_Name", "/x"), 400}, // gunicorn's
		{keyRequest("/x", "PATH_INFO", "/orders/42/pay"), 400},
		{keyRequest("/x/orders/42/pay", "Daphne-Root-Path", "/x"), 400}, // Django's, behind Daphne
		{keyRequest("/x/orders/42/pay", "X_Script_Name", "/x"), 400},    // of Flask's snippet for proxies
		{keyRequest("/?/orders/42/pay"), 400},                           // CodeIgniter's
		{keyRequest("/?%2Forders/42/pay"), 400},
		{keyRequest("/x?%5Corders/42/pay"), 400},
		{keyRequest("/?orders/42/pay"), 400},
		{keyRequest("/?orders%2F42%2Fpay&x=/y"), 400},
		{keyRequest("/?orders\\42=/y"), 400},
		{keyRequest("/app.cgi/orders/42/pay"), 400}, // what a script finds behind it
		{keyRequest("/cgi-bin/app.FCGI/orders/42/pay"), 400},
		{keyRequest("/app.pl/orders/42/pay"), 400},
		{keyRequest("/app.py/orders/42/pay"), 400},
		{keyRequest("/pay.aspx/orders/42"), 400},
		{keyRequest("/index.php5/orders/42/pay"), 400},
		{keyRequest("/index.phtml/orders/42/pay"), 400},
		{keyRequest("/(S(lit3py55t21z5v55vlm25s55))/orders/42/pay"), 400}, // ASP.NET's, without cookies
		{keyRequest("/shop/(a(x)F(y))/orders/42/pay"), 400},
		{keyRequest("/%28S(x))/orders/42/pay"), 400},
		{keyRequest("/%256frders/42/pay"), 400}, // where escapes are undone twice
		{keyRequest("/x%255Corders/42/pay"), 400},
		{keyRequest("/?x=1&rest_route=/wc/v3/orders"), 400}, // of WordPress
		{keyRequest("/?rest.route=/wc/v3/orders"), 400},
		{keyRequest("/?rest[route=/wc/v3/orders"), 400},
		{keyRequest("/?s=/orders/42/pay"), 400}, // of ThinkPHP
		{keyRequest("/?x=1&S[]=orders%2F42%2Fpay"), 400},
		{keyRequest("/?s%00=orders%5C42"), 400},
		{keyRequest("/?_url=/orders/42/pay"), 400}, // of Phalcon
		{keyRequest("/order%C5%BF/42/pay"), 400},   // a long s, which is an s to (?i) of Django and Go
		{keyRequest("/order\u017f/42/pay"), 400},
		{keyRequest("/to%E2%84%AAens/42"), 400}, // a Kelvin sign
		{keyRequest("/l%C4%B1nes/42"), 400},     // an i without a dot, to Python
		{keyRequest("/l%C4%B0nes/42"), 400},
		{keyRequest("/"), 200},
		{keyRequest("/search?q=/a/b"), 200},
		{keyRequest("/?s=shoes&xs=/a&sx=/b&url=/c"), 200}, // a search in WordPress
		{keyRequest("/stra%C3%9Fe/%C3%A9t%C3%A9/%E6%B3%A8/%D7%A9"), 200},
		{keyRequest("/search?route=&r=a/b&url=/x&x[rest_route]=1"), 200},
		{withMethod("POST"), 200},
		{withMethod("M-SEARCH"), 200},
		{withMethod("VERSION-CONTROL"), 200},
		{keyRequest("/orders/42/pay?x=;a//b&method=card&next=/../x"), 200},
		{keyRequest("/groups/a%2Fb/"), 200},
		{keyRequest("/index.php?id=42"), 200},
		{keyRequest("/app.cgi?x=a/b&c/d"), 200},
		{keyRequest("/files/app.py"), 200},
		{keyRequest("/Orders(42)/Lines(1)/Service.svc/x"), 200}, // OData
		{keyRequest("/growth/100%25/2026"), 200},
		{keyRequest("/x", "X-Shopify-Hmac-Sha256", "/9Wj2xgPqE1cKk3gq0oJ3dVb7nS8mQy6h5zLw1Tt0aA="), 200}, // one in 64 begins so
		{keyRequest("/x", "X-Forwarded-Prefix", "/shop", "X-Original-URI", "/shop/x"), 200},
		{keyRequest("/x", "X-Wc-Webhook-Source", "https://shop.example/", "X-Goog-Resource-URI", "https://x/y"), 200},
	} {
		w := httptest.NewRecorder()
		if guarded.ServeHTTP(w, c.request); w.Code != c.want {
			t.Errorf("%s %v: %d %s, want %d", c.request.RequestURI, c.request.Header, w.Code, w.Body, c.want)
		}
	}
}

// A script serves what is behind its name: front controllers of some frameworks without a slash between the two (Symfony, CodeIgniter 3, Yii 2), and
// those of Apache's MultiViews with any suffix, or none. Each of them may be in a folder.
func TestGuardKnowsFrontControllers(t *testing.T) {
	t.Parallel()
	folders := []string{"/", "/shop/", "/shop/public/"}
	slash, glued := []string{"/orders/42/pay", "%2Forders%2F42%2Fpay", "//orders/42/pay", "/%20", "/."}, []string{"orders/42/pay", "pay", "5", "_", "~", "%20/orders", "%0Aorders", "./orders", "."}
	var targets []string
	refuse := func(folders, scripts, suffixes, behind []string) {
		for _, folder := range folders {
			for _, script := range scripts {
				for _, suffix := range suffixes {
					for _, rest := range behind {
						targets = append(targets, folder+script+suffix+rest)
					}
				}
			}
		}
	}
	anyName := []string{"index", "app", "main", "default", "pay", "x-1.2"}
	refuse(folders, anyName, []string{".php", ".phtml", ".php5", ".cgi", ".fcgi"}, slices.Concat(slash, glued))
	refuse(folders, anyName[:5], []string{".phar", ".pl", ".py", ".asp", ".aspx", ".cfm"}, slash)
	refuse(folders[:1], anyName[:4], []string{".pl", ".py", ".asp", ".aspx", ".cfm"}, glued)
	refuse(folders, []string{"index", "index_dev", "app_dev"}, []string{"", ".", ".en", ".html", ".php.en", ".foo.bar", "%20", "::$DATA", "%00x"}, slash)
	for _, target := range targets {
		for _, spelling := range spellings(target) {
			if middleware.CheckTarget(keyRequest(spelling)) == nil {
				t.Errorf("%s isn't refused", spelling)
			}
		}
	}
	honest := []string{
		"/indexes/42", "/index-2/42", "/index_of/42", "/reindex/42", "/app/42", "/main/42", "/default/42", "/dispatch/42", "/api/42", // other words
		"/files/x.pyc", "/users/john.player/pay", "/users/anna.pyle@example.com/pay", "/users/a.aspen/pay", "/php/42", "/x-php/42", "/domains/shop.pharmacy/records",
		"/domains/windows.php.net/records", "/users/anna@php.net/pay", "/users/anna@example.pl/pay", "/users/anna@mail.php.net/pay", // hosts, and addresses
	}
	for _, folder := range folders { // nothing is behind them
		for _, file := range []string{"index", "index/", "index.php", "INDEX.PHP?x=1", "index.html", "index.phtml", "index.aspx", "index.cfml", "app.cgi", "app.js", "app.py", "app.pyc", "main.plist", "Info.plist", "Main.PLX"} {
			honest = append(honest, folder+file)
		}
	}
	for _, target := range honest {
		if err := middleware.CheckTarget(keyRequest(target)); err != nil {
			t.Errorf("%s is honest: %v", target, err)
		}
	}
}

// spellings returns a target as it is, in upper case, and with each of its first 24 signs escaped but the slash at its beginning.
func spellings(target string) []string {
	all := []string{target, strings.ToUpper(target)}
	for i := 1; i < min(len(target), 24) && target[i] != '%'; i++ {
		all = append(all, fmt.Sprintf("%s%%%02x%s", target[:i], target[i], target[i+1:]))
	}
	return all
}

// A refusal is logged, counted and noted as those of a rule, and what changes nothing isn't looked at.
func TestGuardIsSeen(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	seen := new(counts)
	refusalOf := middleware.NewGuard(middleware.Rule{Logger: slog.New(slog.NewTextHandler(&log, nil)), Observer: seen}).Refuse
	refusal := refusalOf(keyRequest("/index.php/orders/42"), middleware.MayChange)
	if refusal == nil || refusal.Status() != http.StatusBadRequest || refusal.Turn().Outcome != middleware.OutcomeUnclearTarget || refusal.Turn().Rule != "guard" || refusal.Turn().Detail == "" {
		t.Fatalf("refusal %+v", refusal)
	}
	if line := log.String(); seen.done.Load() != 1 || !strings.Contains(line, "outcome=unclear_target") || strings.Contains(line, "orders") {
		t.Errorf("%d counted, log %s", seen.done.Load(), line)
	}
	if refusalOf(keyRequest("/orders/42"), middleware.MayChange) != nil || seen.done.Load() != 1 {
		t.Error("a clear target is refused")
	}
	guarded := middleware.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, target := range []string{"/index.php/Main_Page", "/shop;jsessionid=1", "/assets//app.js"} {
		for method, want := range map[string]int{http.MethodGet: 200, http.MethodHead: 200, http.MethodPost: 400, http.MethodDelete: 400, "get": 400} {
			r := keyRequest(target)
			r.Method = method
			w := httptest.NewRecorder()
			if guarded.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s %s: %d %s", method, target, w.Code, w.Body)
			} else if want == 400 && w.Header().Get("Redlock-Outcome") != "unclear_target" {
				t.Errorf("%s %s: %v", method, target, w.Header())
			}
		}
	}
}

// A tunnel of HTTP/2 would carry requests that no rule sees, whatever request asks for it. Some clients offer it with each.
func TestGuardDropsTunnels(t *testing.T) {
	t.Parallel()
	var got http.Header
	guarded := middleware.Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	for offer, want := range map[string]string{"h2c": "", "H2C": "", "h2c,\tH2c": "", "h2c, websocket": "websocket", "websocket,h2c": "websocket", "websocket\nh2c": "websocket", "a, b": "a, b"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r := keyRequest("/static", "Connection", "Upgrade, HTTP2-Settings", "HTTP2-Settings", "AAMAAABkAAQAAP__")
			r.Method, r.Header["Upgrade"] = method, strings.Split(offer, "\n")
			w := httptest.NewRecorder()
			guarded.ServeHTTP(w, r)
			if upgrade := strings.Join(got["Upgrade"], "\n"); w.Code != http.StatusOK || upgrade != want || (got.Get("Http2-Settings") != "") != (offer == "a, b") {
				t.Errorf("%s %q: %d %s, with %q", method, offer, w.Code, w.Body, got)
			}
		}
	}
}

func withMethod(method string) *http.Request {
	r := keyRequest("/orders/42/pay")
	r.Method = method
	return r
}

package caddyredlock_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// shape is one of a site. BACKEND is a proxy to an upstream.
type shape struct {
	name, config string
	gap          string // what stands behind no redlock_require, if the configuration doesn't load
	honest       string // the outcome of a payment of order 42; empty if it is served with its fence
	other        string // the outcome of another POST; "served" if it is served without one
}

const requireRule = "redlock /orders/* order:{path.1:int} {\nkey_header Redlock-Key\n}\n"

// shapes are those of a site that were attacked with real upstreams.
var shapes = []shape{
	{"flat", "RULE redlock_require\nBACKEND", "", "", "unlocked"},
	{"proxies in blocks", "RULE redlock_require\nhandle /orders/* {\nBACKEND}\nhandle {\nBACKEND}\n", "", "", "unlocked"},
	{"rule in a block", "redlock_require\nhandle /orders/* {\nRULE BACKEND}\nhandle {\nBACKEND}\n", "", "unlocked", "unlocked"},
	{"forgotten block", "handle /orders/* {\nRULE redlock_require\nBACKEND}\nhandle {\nBACKEND}\n", "any host: reverse_proxy", "", ""},
	{"before the rule", "route {\nredlock_require\nRULE BACKEND}\n", "", "unlocked", "unlocked"},
	{"behind the proxy", "route {\nRULE BACKEND redlock_require\n}\n", "any host: reverse_proxy", "", ""},
	{"invoke", "RULE redlock_require\ninvoke app\n", "", "", "unlocked"},
	{"invoke of all", "invoke locked\n", "", "", "unlocked"},
	{"invoke of another", "handle /orders* {\ninvoke locked\n}\ninvoke app\n", "any host: reverse_proxy", "", ""},
	{"error route", "RULE redlock_require\nBACKEND handle_errors {\nRULE BACKEND}\n", "would serve, without a lock", "", ""},
	{"error route with a rule", "RULE redlock_require\nBACKEND handle_errors {\nredlock order:{path.1:int}\nBACKEND}\n", "any host: handle_errors: reverse_proxy", "", ""},
	{"error route with a page", "RULE redlock_require\nBACKEND handle_errors {\nrewrite * /errors/{err.status_code}.html?\nBACKEND}\n", "", "", "unlocked"},
	{"error route with one", "RULE redlock_require\nBACKEND handle_errors {\nrewrite * /errors?\nredlock_require\nBACKEND}\n", "", "", "unlocked"},
	{"handle_path", "handle_path /api/* {\nRULE redlock_require\nBACKEND}\nredlock_require\nRULE BACKEND", "", "", "unlocked"},
	{"question before the rule", "forward_auth UPSTREAM {\nuri /auth?\n}\nRULE redlock_require\nBACKEND", "put redlock_guard before it", "", ""},
	{"question behind", "route {\nRULE redlock_require\nforward_auth UPSTREAM {\nuri /auth\n}\nBACKEND}\n", "", "", "unlocked"},
	{"middlewares", "redlock_guard\nforward_auth UPSTREAM {\nuri /auth\n}\nencode\ntemplates\nRULE redlock_require\nBACKEND", "", "", "unlocked"},
	{"intercept in front", "route {\nintercept {\n@e status 404\nhandle_response @e {\nBACKEND}\n}\nredlock_require\nBACKEND}\n", "any host: reverse_proxy", "", ""},
	{"intercept behind", "RULE redlock_require\nroute {\nintercept {\n@e status 404\nhandle_response @e {\nBACKEND}\n}\nBACKEND}\n", "", "", "unlocked"},
	{"response of a proxy", "route {\nreverse_proxy UPSTREAM {\n@e status 404\nhandle_response @e {\nRULE redlock_require\nBACKEND}\n}\n}\n", "any host: reverse_proxy", "", ""},
	{"dry run of the rule", "redlock /orders/* order:{path.1:int} {\ndry_run\n}\nredlock_require\nBACKEND", "", "served", "unlocked"},
	{"dry run", "RULE redlock_require {\ndry_run\n}\nBACKEND", "", "", "served"},
	{"IDs of all", "RULE redlock {\nidempotency_key optional\nscope off\n}\nredlock_require\nBACKEND", "", "", "unlocked"},
	{"a named rule", "redlock /orders/* order:{path.1:int} {\nname order\nkey_header Redlock-Key\n}\nredlock {\nidempotency_key optional\nscope off\nname once\n}\nredlock_require order\nBACKEND", "", "", "unlocked"},
	{"exception that is rewritten", "RULE redlock_require {\nexcept /cart/add\n}\nhandle /cart/add {\nrewrite * /later\nBACKEND}\nBACKEND", "", "", "served"},
	{"replays", "redlock /orders/* order:{path.1:int} {\nidempotency_key optional\nremember 1m\nscope off\nkey_header Redlock-Key\n}\nredlock_require\nBACKEND", "", "", "unlocked"},
	{"nested rules", "RULE redlock /orders/* other:{query.x} {\non_missing_key pass\n}\nredlock_require order:{path.1:int}\nBACKEND", "", "", "unlocked"},
	{"a key of the client's choice", "RULE redlock customer:{header.X-Customer:id} {\non_missing_key pass\n}\nredlock_require\nBACKEND", "any host: the rules order:{path.1:int}, customer:{header.X-Customer:id} stand before it", "", ""},
	{"one name for two keys", "redlock /orders/* order:{path.1:int} {\nname x\n}\nredlock customer:{header.X-Customer:id} {\nname x\non_missing_key pass\n}\nredlock_require\nBACKEND", "any host: two rules with different keys have the name x", "", ""},
	{"one name for a key and an ID", "redlock /orders/* order:{path.1:int} {\nname x\n}\nredlock {\nidempotency_key optional\nscope off\nname x\n}\nredlock_require x\nBACKEND", "any host: two rules with different keys have the name x", "", ""},
	{"one name in blocks of their own", "handle /carts/* {\nredlock cart:{path.1:int} {\nname x\n}\nredlock_require x\nBACKEND}\nhandle {\nredlock /orders/* order:{path.1:int} {\nname x\nkey_header Redlock-Key\n}\nredlock_require x\nBACKEND}\n", "", "", "unlocked"},
	{"a preset beside it", "RULE redlock {\npreset stripe\nverify stripe x\n}\nredlock_require\nBACKEND", "stand before it", "", ""},
	{"rules in blocks of their own", "handle /carts/* {\nredlock cart:{path.0:int}\nredlock_require\nBACKEND}\nhandle {\nRULE redlock_require\nBACKEND}\n", "", "", "unlocked"},
	{"slots beside it", "RULE redlock backend {\nconcurrency 20\n}\nredlock_require\nBACKEND", "", "", "unlocked"},
	{"a name of no rule", "RULE redlock_require oder\nBACKEND", "no rule of the name oder stands before it", "", ""},
	{"PHP", "RULE redlock_require\nphp_fastcgi 127.0.0.1:1\n", "", "served", "unlocked"},
	{"another module", "route {\nRULE acme_server\nredlock_require\nBACKEND}\n", "any host: acme_server", "", ""},
	{"another module, named", "route {\nRULE acme_server\nredlock_require {\nharmless acme_server\n}\nBACKEND}\n", "", "", "unlocked"},
	{"all", "RULE redlock_require {\nall\nexcept GET /orders/*\n}\nBACKEND", "", "", "unlocked"},
}

// in returns the configuration of a server with the site and named routes.
func (s shape) in(address, upstream string) string {
	const named = "&(app) {\nBACKEND}\n&(locked) {\nRULE redlock_require\nBACKEND}\n"
	return strings.NewReplacer("RULE ", requireRule, "BACKEND", "reverse_proxy "+upstream+"\n", "UPSTREAM", upstream).Replace(named + address + " {\n" + s.config + "}\n")
}

// Nothing of a site that may act stands behind no redlock_require.
func TestRequireCoverage(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			err := load(t, s.in("http://:1", "127.0.0.1:1"))
			if s.gap == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			requireError(t, err, []string{s.gap})
		})
	}
	hosts := func(second string) string {
		return "http://a.example:1 {\n" + requireRule + "redlock_require\n" + proxy + "}\n" + second
	}
	for config, gap := range map[string]string{
		hosts("http://b.example:1 {\n" + proxy + "}\n"):                                                                              "", // another site
		hosts("http://:1 {\n" + proxy + "}\n"):                                                                                       "",
		hosts("http://*.example:1 {\nhandle_errors {\n" + requireRule + proxy + "}\n" + proxy + "}\n"):                               "would serve, without a lock",
		"http://*.example:1 {\n@a host a.example\nhandle @a {\n" + requireRule + "redlock_require\n" + proxy + "}\n" + proxy + "}\n": "*.example: reverse_proxy",
	} {
		if err := load(t, config); gap == "" && err != nil || gap != "" && (err == nil || !strings.Contains(err.Error(), gap)) {
			t.Errorf("%v, want %q, of\n%s", err, gap, config)
		}
	}
}

// Caddy warns of each site that leads past the rules of another one to the same upstream.
func TestOtherWays(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	site := func(host, body string) string { return "http://" + host + ":PORT {\n" + body + "}\n" }
	runForged(t, site("pay.example", "redlock_guard\nforward_auth 127.0.0.1:2 {\nuri /auth?\n}\n"+requireRule+"redlock_require\n"+proxy)+
		site("old.example", proxy)+ // past them
		site("same.example", "redlock order:{path.0}\n"+proxy)+
		site("other.example", "forward_auth 127.0.0.1:2 {\nuri /auth?\n}\nreverse_proxy 127.0.0.1:3\n")+
		site("shop.example", "handle /orders/* {\n"+requireRule+proxy+"}\nhandle {\n"+proxy+"}\n"), "log {\noutput file "+log+"\n}\n")
	if text := readFile(t, log); strings.Count(text, "without its rules") != 1 || !strings.Contains(text, `"site":"old.example",`) {
		t.Errorf("want one warning, of old.example:\n%s", text)
	}
}

func TestRequireSettings(t *testing.T) {
	for settings, want := range map[string]string{
		"/orders/*":                           "no matcher",
		"@x":                                  "no matcher",
		"{\nexcept POST /x\n}":                "HEAD and OPTIONS alone",
		"{\nexcept /x*\n}":                    "whole segments",
		"{\nexcept\n}":                        "want a path",
		"{\non_missing_key deny\n}":           "want refuse or pass",
		"{\nrules order\n}":                   `unknown subdirective "rules"`,
		"{\nall\nall\n}":                      "duplicate all",
		"order {\nexcept /x\nexcept /y /z\n}": "",
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://:1 {\nredlock_require "+settings+"\n}\n"), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
}

// odd are targets that some upstream takes for the payment of order 42, by their kinds.
func odd() (targets []string) {
	const path = "/orders/42/pay"
	scripts := []string{"index.php", "index.phtml", "app.php", "index.cgi", "index.pl", "INDEX.PHP", "index%2Ephp", "%69ndex.php", "index", "app_dev", "main.jsp", "x.do"}
	for _, script := range scripts { // front controllers, at the root, in a folder, behind a locked route and behind an exception
		for _, front := range []string{"", "/public", "/tickets/7", "/cart", "/orders/7"} {
			targets = append(targets, front+"/"+script+path, front+"/"+script+"%2F"+path[1:], front+"/"+script+";x"+path)
			if strings.ContainsAny(script, ".%") {
				targets = append(targets, front+"/"+script+path[1:])
			}
		}
	}
	for _, front := range []string{"/.", "/..", "/x/..", "/x/..;", "/;x", "/", "/%2e", "/%2e%2e", "/x/%2e%2e", "/x%2f..", "/x/..%2f", "/x/%2e%2e;", "/%5c..", "/(S(x))", "/cart/..", "/cart/..;", "/cart/%2e%2e", "/cart%2f..", "/tickets/7/../..", "/tickets/7/..;/..;", "/tickets/7/..%2f..", "/api", "/%252e"} {
		targets = append(targets, front+path)
	}
	for i, c := range path { // each character escaped, once and twice
		targets = append(targets, path[:i]+fmt.Sprintf("%%%02x", c)+path[i+1:], path[:i]+fmt.Sprintf("%%25%02x", c)+path[i+1:])
	}
	for i := range len(path) { // each letter as a capital
		if upper := strings.ToUpper(path[i : i+1]); upper != path[i:i+1] {
			targets = append(targets, path[:i]+upper+path[i+1:])
		}
	}
	for _, letter := range []string{"%C5%BF", "%E2%84%AA", "s%CC%81", "%EF%BD%93"} {
		targets = append(targets, "/order"+letter+"/42/pay")
	}
	for _, number := range []string{"042", "+42", "42.0", "42%20", "%2042", "0x2a", "4_2", "%E2%91%AA", "%D9%A4%D9%A2", "%EF%BC%94%EF%BC%92", "42;x", "42,", "42%00", "42%0a"} {
		targets = append(targets, "/orders/"+number+"/pay")
	}
	for _, end := range []string{"/", ";x=1", "%20", "%00", "%0a", "%23", "%3f", ".json", "//", "/.", "/index.php"} {
		targets = append(targets, path+end, "/x"+path+end)
	}
	for _, query := range []string{"r=orders/42/pay", "s=" + path, "_url=" + path, "rest_route=" + path, path[1:], path, "q=" + path, "route=" + path} {
		for _, front := range []string{"/", "/index.php", "/login", "/tickets/7/close", "/cart/add"} {
			targets = append(targets, front+"?"+query)
		}
	}
	return append(targets, "http://127.0.0.1/index.php"+path, "http://other.example"+path, "ftp://127.0.0.1"+path, "x:"+path[1:], `\orders\42\pay`, path+"#x")
}

// methods are all that a server may take for POST, and the rest.
var methods = strings.Fields("post Post PUT PATCH DELETE PROPFIND QUERY SEARCH LOCK MKCOL TRACE PURGE FOO get Get GET HEAD OPTIONS CONNECT PRI M-SEARCH P0ST REPORT")

// No request is served without the lock of a rule, or the honest one's key, whatever its target, method and headers are: with GET as well where the
// site looks at all.
func TestRequireAttacked(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Served", r.Method+" "+r.RequestURI)
		w.Header().Set("Fence", r.Header.Get("Fencing-Token"))
		w.Header().Set("Key", r.Header.Get("Redlock-Key"))
		for _, value := range r.Header {
			if value[0] == "/orders/42/pay" {
				w.Header().Set("Rewritten", "yes")
			}
		}
	}))
	defer backend.Close()
	upstream := backend.Listener.Addr().String()
	for name, site := range map[string]string{
		"all": requireRule + "redlock /tickets/* ticket:{path.1:int} {\nkey_header Redlock-Key\n}\nredlock_require order:{path.1:int} ticket:{path.1:int} {\nall\nexcept /login\nexcept GET HEAD /cart/*?page\n}\nreverse_proxy " + upstream,
		"broad": "@pay {\nnot method GET HEAD OPTIONS\npath /orders*\n}\nredlock @pay order:{path.1:int} {\non_missing_key pass\nkey_header Redlock-Key\n}\n" +
			"redlock /tickets/* ticket:{path.1:int} {\nkey_header Redlock-Key\n}\nredlock {\nidempotency_key optional\nscope off\n}\nredlock_require order:{path.1:int} ticket:{path.1:int} {\nexcept /login\n}\nreverse_proxy " + upstream,
	} {
		t.Run(name, func(t *testing.T) {
			address := runForged(t, "SITE {\n"+site+"\n}")
			served := 0
			check := func(request, target string, readsFreely bool) {
				t.Helper()
				a := sendRaw(t, address, request)
				what := a.Header.Get("Served")
				if what == "" {
					return
				}
				served++
				method, uri, _ := strings.Cut(what, " ")
				order := strings.HasPrefix(strings.ToLower(uri), "/orders/42/pay") && strings.Contains(a.Header.Get("Key"), `"42"`)
				ticket := strings.HasPrefix(uri, "/tickets/7/close?") && strings.Contains(a.Header.Get("Key"), `"7"`) // a route in a query is left to the upstream
				fenced := a.Header.Get("Fence") != "" && a.Header.Get("Fence") != "999"
				reads := readsFreely && (method == "GET" || method == "HEAD" || method == "OPTIONS")
				if !(fenced && (order || ticket || plainOrder(uri))) && !reads && uri != "/login" || a.Header.Get("Fence") == "999" {
					t.Errorf("%q: served as %s, with the fence %q and the key %s", target, what, a.Header.Get("Fence"), a.Header.Get("Key"))
				}
			}
			const end = " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nFencing-Token: 999\r\nRedlock-Key: {\"path.1\":[\"42\"]}\r\n"
			for _, target := range append(odd(), "/orders/42/pay", "/login", "/", "*") {
				check("POST "+target+end+"Content-Length: 0\r\n\r\n", target, false)
				check("POST "+target+end+"Idempotency-Key: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 11\r\n\r\n_method=PUT", target, false)
				check("GET "+target+end+"\r\n", "GET "+target, name != "all")
			}
			for _, method := range methods {
				for _, target := range []string{"/orders/42/pay", "/index.phporders/42/pay", "/x"} {
					check(method+" "+target+end+"\r\n", method+" "+target, name != "all")
				}
			}
			for _, header := range strings.Fields("X-HTTP-Method-Override X-Method-Override X-HTTP-Method") {
				check("GET /x"+end+header+": POST\r\n\r\n", header, false)
			}
			for _, header := range strings.Fields("X-Original-URL X-Rewrite-URL Script-Name X-Script-Name Path-Info Daphne-Root-Path") {
				for _, path := range []string{"/login", "/tickets/7/close"} {
					if a := sendRaw(t, address, "POST "+path+end+header+": /orders/42/pay\r\nContent-Length: 0\r\n\r\n"); a.Header.Get("Rewritten") != "" {
						t.Errorf("%s at %s is served", header, path)
					}
				}
			}
			for _, more := range []string{"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "Content-Length: 12\r\nContent-Type: application/x-www-form-urlencoded\r\n", "Transfer-Encoding: chunked\r\n"} {
				check("GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\n"+more+"\r\n"+map[byte]string{'C': "_method=POST", 'T': "1\r\na\r\n0\r\n\r\n"}[more[0]], more, strings.Contains(more, "h2c") && name != "all")
			}
			if served < 6 {
				t.Errorf("%d requests were served, the honest ones among them", served)
			}
		})
	}
}

// plainOrder reports whether a path names the order that the rule has locked, whatever is behind it.
func plainOrder(uri string) bool {
	return strings.HasPrefix(uri, "/orders/") && !strings.Contains(uri[8:], "orders")
}

// Each shape that loads serves the honest request, and no other.
func TestRequireShapes(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/auth" && !strings.HasPrefix(r.URL.Path, "/errors") {
			w.Header().Set("Served", "served "+r.Header.Get("Fencing-Token"))
		}
	}))
	defer backend.Close()
	for _, s := range shapes {
		if s.gap != "" || s.name == "PHP" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			address := runForged(t, s.in("SITE", backend.Listener.Addr().String()))
			for path, want := range map[string]string{"/orders/42/pay": s.honest, "/cart/add": s.other} {
				a := sendRaw(t, address, "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nFencing-Token: 999\r\nContent-Length: 0\r\n\r\n")
				got := a.Header.Get("Redlock-Outcome")
				if served := a.Header.Get("Served"); served == "served" {
					got = "served"
				} else if served == "served 999" || got != "" && served != "" {
					got = "forged"
				}
				if got != want {
					t.Errorf("%s: %d %q, want %q", path, a.StatusCode, got, want)
				}
			}
		})
	}
}

// A refusal says which route was forgotten, in the log.
func TestRequireLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	address := runForged(t, "SITE {\n"+requireRule+"redlock_require\nrespond ok\n}", "log {\noutput file "+log+"\n}\n")
	sendRaw(t, address, "PATCH /cart/items HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
	if err := caddy.Stop(); err != nil { // which writes the last lines
		t.Fatal(err)
	}
	if text := readFile(t, log); !strings.Contains(text, `"rule":"require","outcome":"unlocked"`) || !strings.Contains(text, `"method":"PATCH","path":"/cart/items"`) {
		t.Error(text)
	}
}

func sendRaw(t *testing.T, address, request string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	a, err := exchange(t, conn, request)
	if err != nil {
		return &http.Response{Header: make(http.Header)} // refused before any handler
	}
	return a
}

// An error page is asked for without the headers in which the client has named another path or method.
func TestErrorPageOfRefused(t *testing.T) {
	var seen http.Header
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header }))
	defer backend.Close()
	address := runForged(t, "SITE {\nredlock /orders/*/pay order:{path.1:int}\nredlock_require\nreverse_proxy "+backend.Listener.Addr().String()+
		"\nhandle_errors {\nrewrite * /errors/{err.status_code}.html?\nmethod GET\nreverse_proxy "+backend.Listener.Addr().String()+"\n}\n}\n")
	for _, path := range []string{"/x", "/orders/042/pay", "/orders/42/pay"} {
		seen = nil
		sendRaw(t, address, "POST "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Original-URL: /orders/42/pay\r\nX-HTTP-Method-Override: POST\r\nX-New: /a\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n")
		if seen.Get("X-Kept") != "1" || seen.Get("X-Original-Url")+seen.Get("X-Http-Method-Override")+seen.Get("X-New") != "" {
			t.Errorf("%s: the page's server sees %v", path, seen)
		}
	}
}

// A rewrite from text of the client is judged as well.
func TestRequireAfterRewrite(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer backend.Close()
	address := runForged(t, "SITE {\nrewrite /go /go/{query.to}\nrewrite /php /index.php/x?_url=/x\nredlock_require {\nexcept /go?to /php\n}\nreverse_proxy "+backend.Listener.Addr().String()+"\n}\n")
	for target, want := range map[string]int{"/go?to=a": 200, "/php": 200, "/go?to=../orders/42/pay": 400} {
		if a := sendRaw(t, address, "POST "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"); a.StatusCode != want {
			t.Errorf("%s: %d, want %d", target, a.StatusCode, want)
		}
	}
}

package caddyredlock_test

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// load validates a whole Caddyfile.
func load(t *testing.T, caddyfile string) error {
	t.Helper()
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("{\nadmin off\nauto_https off\n}\n"+caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	return loadJSON(t, string(text))
}

func loadJSON(t *testing.T, text string) error {
	t.Helper()
	var config caddy.Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	return caddy.Validate(&config)
}

const (
	aRule = "redlock /orders/*/pay order:{path.1:int}\n"
	proxy = "reverse_proxy 127.0.0.1:1\n"
)

// A request that a rule has refused is not served by an error route, or by anything else that runs without the lock.
func TestRefusedRequestIsServed(t *testing.T) {
	site := func(name, body string) string { return name + " {\n" + body + "}\n" }
	withErrors := func(errors string) string { return site("http://a.example:1", aRule+proxy+errors) }
	inErrors := func(routes string) string { return withErrors("handle_errors {\n" + routes + "}\n") }
	underPath := func(errors string) string {
		return site("http://a.example:1", "handle_path /api/* {\n"+aRule+proxy+"}\nhandle_errors {\n"+errors+"}\n")
	}
	fastCGI := func(env string) string {
		return "reverse_proxy 127.0.0.1:1 {\ntransport fastcgi {\nsplit .php\n" + env + "}\n}\n"
	}
	const own = "rewrite * /errors/{err.status_code}.html?\n"
	for name, test := range map[string]struct {
		config string
		acting string // what the error names, or "" for none
	}{
		"proxy":                        {inErrors(proxy), "handle_errors for a.example: reverse_proxy"},
		"proxy of a status":            {withErrors("handle_errors 502 {\n" + proxy + "}\n"), "reverse_proxy"},
		"proxy of a matcher":           {inErrors("@e expression {err.status_code} == 423\n" + "reverse_proxy @e 127.0.0.1:1\n"), "reverse_proxy"},
		"PHP":                          {inErrors("php_fastcgi 127.0.0.1:1\n"), "reverse_proxy"},
		"PHP with a page":              {inErrors("rewrite * /error.php?\nphp_fastcgi 127.0.0.1:1\n"), "reverse_proxy"}, // REQUEST_URI
		"FastCGI with a page":          {inErrors("rewrite * /error.php?\n" + fastCGI("")), "reverse_proxy"},
		"nested":                       {inErrors("handle /orders/* {\nroute {\n" + proxy + "}\n}\n"), "reverse_proxy"},
		"named":                        {site("&(app)", proxy) + inErrors("invoke app\n"), "reverse_proxy"},
		"unknown handler":              {inErrors("acme_server\n"), "acme_server"},
		"for all hosts":                {site("http://a.example:1", aRule+proxy) + site("http://:1", proxy+"handle_errors {\n"+proxy+"}\n"), "handle_errors for a.example"},
		"for a pattern of the host":    {site("http://a.example:1", aRule+proxy) + site("http://*.example:1", proxy+"handle_errors {\n"+proxy+"}\n"), "handle_errors for a.example"},
		"rule for a pattern":           {site("http://*.example:1", aRule+proxy+"handle_errors {\n"+proxy+"}\n") + site("http://a.example:1", "respond ok\n"), "handle_errors for *.example"},
		"rule in a named route":        {site("&(shop)", aRule+proxy) + site("http://a.example:1", "invoke shop\nhandle_errors {\n"+proxy+"}\n"), "reverse_proxy"},
		"rule in a route":              {site("http://:1", "encode gzip\nroute {\n"+aRule+proxy+"}\nhandle_errors {\n"+proxy+"}\n"), "handle_errors for any host: reverse_proxy"},
		"path of the client":           {inErrors("rewrite * /errors{path}?\n" + proxy), "reverse_proxy"},
		"header of the client":         {inErrors("rewrite * /errors/{header.X}?\n" + proxy), "reverse_proxy"},
		"query of the client":          {inErrors("rewrite * /errors/{err.status_code}.html\n" + proxy), "reverse_proxy"},
		"rewrite of some":              {inErrors("rewrite /cart* /errors?\n" + proxy), "reverse_proxy"},
		"one of two rewrites":          {inErrors("rewrite /cart* /cart{uri}\n" + own + proxy), "reverse_proxy"},
		"rewrite back":                 {inErrors("route {\n" + own + "rewrite * {http.request.orig_uri}?\n" + proxy + "}\n"), "reverse_proxy"},
		"rewrite behind":               {inErrors("route {\n" + proxy + own + "}\n"), "reverse_proxy"},
		"rewrite in another block":     {inErrors("handle /cart* {\n" + own + proxy + "}\nhandle {\n" + proxy + "}\n"), "reverse_proxy"},
		"rule of some":                 {inErrors(aRule + proxy), "reverse_proxy"},
		"rule with more slots":         {inErrors("redlock order:{path.1:int} {\nconcurrency 2\n}\n" + proxy), "reverse_proxy"},
		"rule of the backend":          {inErrors("redlock backend {\nconcurrency 20\n}\n" + proxy), "reverse_proxy"},
		"rule of an ID":                {inErrors("redlock {\nidempotency_key required\nscope off\n}\n" + proxy), "reverse_proxy"},
		"rule with an ID":              {inErrors("redlock order:{path.1:int} {\nidempotency_key required\nscope off\n}\n" + proxy), "reverse_proxy"},
		"rule in a dry run":            {inErrors("redlock order:{path.1:int} {\ndry_run\n}\n" + proxy), "reverse_proxy"},
		"rule of another key":          {inErrors("redlock customer:{path.1:int}\n" + proxy), "reverse_proxy"},
		"rule that passes":             {inErrors("redlock order:{path.1:int} {\non_missing_key pass\n}\n" + proxy), "reverse_proxy"},
		"rule that passes on":          {inErrors("redlock order:{path.1:int} {\non_no_quorum pass\n}\n" + proxy), "reverse_proxy"},
		"rule of one of two":           {site("http://a.example:1", "redlock /carts/* cart:{path.1:int}\n"+aRule+proxy+"handle_errors {\nredlock order:{path.1:int}\n"+proxy+"}\n"), "reverse_proxy"},
		"rule of another path":         {site("http://a.example:1", "handle_path /api/* {\n"+aRule+proxy+"}\nhandle_errors {\nredlock order:{path.1:int}\n"+proxy+"}\n"), "reverse_proxy"},
		"rule of another prefix":       {underPath("handle_path /v1/* {\nredlock order:{path.1:int}\n" + proxy + "}\n"), "reverse_proxy"},
		"rule of the prefix":           {underPath("handle_path /api/* {\nredlock order:{path.1:int}\n" + proxy + "}\n"), ""},
		"rule of a prefix of some":     {underPath("uri /api/* strip_prefix /api\nredlock order:{path.1:int}\n" + proxy), "reverse_proxy"},
		"rule behind a placeholder":    {site("http://a.example:1", "rewrite * /{query.x}\n"+aRule+proxy+"handle_errors {\nrewrite * /{query.x}\nredlock order:{path.1:int}\n"+proxy+"}\n"), "reverse_proxy"},
		"rule behind a rewrite":        {inErrors("route {\nuri strip_prefix /api\nredlock order:{path.1:int}\n" + proxy + "}\n"), "reverse_proxy"},
		"intercept with another rule":  {site("http://a.example:1", "route {\nintercept {\n@e status 4xx\nhandle_response @e {\nredlock order:{path.1:int} {\non_missing_key pass\n}\n"+proxy+"}\n}\n"+aRule+proxy+"}\n"), "a.example: intercept: reverse_proxy"},
		"authentication":               {inErrors("forward_auth 127.0.0.1:1 {\nuri /verify\n}\nrespond no\n"), "reverse_proxy"},
		"GET of a page":                {inErrors("reverse_proxy 127.0.0.1:1 {\nmethod GET\nrewrite /own\n}\n"), "reverse_proxy"},
		"response of a page":           {inErrors("reverse_proxy 127.0.0.1:1 {\nrewrite /errors?\nhandle_response {\n" + proxy + "}\n}\n"), "reverse_proxy"},
		"intercept around":             {site("http://a.example:1", "route {\nintercept {\n@e status 4xx\nhandle_response @e {\n"+proxy+"}\n}\n"+aRule+proxy+"}\n"), "a.example: intercept: reverse_proxy"},
		"intercept around a block":     {site("http://a.example:1", "intercept {\n@e status 4xx\nhandle_response @e {\n"+proxy+"}\n}\nhandle {\n"+aRule+proxy+"}\n"), "intercept: reverse_proxy"},
		"rewrite":                      {inErrors(own + proxy), ""},
		"rewrite by the proxy":         {inErrors("reverse_proxy 127.0.0.1:1 {\nrewrite /errors/{err.status_code}?\n}\n"), ""},
		"two rewrites":                 {inErrors("rewrite /cart* /errors/cart.html?\n" + own + proxy), ""},
		"rewrite in a block":           {inErrors("handle {\n" + own + proxy + "}\n"), ""},
		"rewrite before blocks":        {inErrors(own + "uri strip_prefix /errors\nhandle /404* {\n" + proxy + "}\nhandle {\n" + proxy + "}\n"), ""},
		"PHP that is told the page":    {inErrors("rewrite * /error.php?\n" + fastCGI("env REQUEST_URI /error.php\n")), ""},
		"php_fastcgi that is told":     {inErrors("rewrite * /error.php?\nphp_fastcgi 127.0.0.1:1 {\nenv REQUEST_URI /error.php\n}\n"), ""},
		"authentication, no query":     {inErrors("forward_auth 127.0.0.1:1 {\nuri /verify?\n}\nrespond no\n"), ""},
		"GET of a page, no query":      {inErrors("reverse_proxy 127.0.0.1:1 {\nmethod GET\nrewrite /own?\n}\n"), ""},
		"rules of both":                {site("http://a.example:1", "redlock /carts/* cart:{path.1:int}\n"+aRule+proxy+"handle_errors {\nredlock order:{path.1:int}\nredlock cart:{path.1:int}\n"+proxy+"}\n"), ""},
		"intercept with the rule":      {site("http://a.example:1", "route {\nintercept {\n@e status 4xx\nhandle_response @e {\nredlock order:{path.1:int}\n"+proxy+"}\n}\n"+aRule+proxy+"}\n"), ""},
		"a rule of its own":            {inErrors("redlock order:{path.1:int}\n" + proxy), ""},
		"harmless ones":                {inErrors("header X y\nvars a b\nroot * /srv\nencode gzip\ntemplates\ntry_files {path} /e.html\nfile_server\n"), ""},
		"respond":                      {inErrors("respond {err.status_code}\n"), ""},
		"error":                        {inErrors("error 418\n"), ""},
		"no errors":                    {withErrors(""), ""},
		"no rule":                      {site("http://a.example:1", proxy+"handle_errors {\n"+proxy+"}\n"), ""},
		"no rule for the host":         {site("http://a.example:1", aRule+proxy) + site("http://b.example:1", proxy+"handle_errors {\n"+proxy+"}\n"), ""},
		"errors of its own come first": {site("http://a.example:1", aRule+proxy+"handle_errors {\nrespond no\n}\n") + site("http://*.example:1", proxy+"handle_errors {\n"+proxy+"}\n"), ""},
		"intercept inside":             {site("http://a.example:1", aRule+"intercept {\n@e status 4xx\nhandle_response @e {\n"+proxy+"}\n}\n"+proxy), ""},
		"response inside":              {site("http://a.example:1", aRule+"reverse_proxy 127.0.0.1:1 {\n@e status 4xx\nhandle_response @e {\n"+proxy+"}\n}\n"), ""},
		"intercept that answers":       {site("http://a.example:1", "route {\nintercept {\nhandle_response {\nrespond no\n}\n}\n"+aRule+proxy+"}\n"), ""},
		"named routes in each other":   {site("&(a)", "invoke b\n") + site("&(b)", "invoke a\n") + inErrors("invoke a\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := load(t, test.config)
			if test.acting == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			requireError(t, err, []string{"at Caddyfile:", "redlock order:{path.1:int}: ", test.acting, "would serve", "rewrite * /errors/", "rule of its own"})
		})
	}
}

// In JSON a subroute can have errors of its own.
func TestRefusedRequestIsServedInJSON(t *testing.T) {
	const rule = `{"handler":"redlock","key":["a:{http.request.uri.path.1}"]}`
	config := func(routes, more string) string {
		return `{"admin":{"disabled":true},"apps":{"http":{"servers":{"shop":{"listen":["127.0.0.1:1"],"routes":[{"handle":[` + routes + `]}]` + more + `}}}}}`
	}
	for name, text := range map[string]string{
		"errors of the server":   config(rule, `,"errors":{"routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:1"}]}]}]}`),
		"errors of a subroute":   config(`{"handler":"subroute","routes":[{"handle":[`+rule+`]}],"errors":{"routes":[{"handle":[{"handler":"vars"}]}]}},{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:1"}]}`, ""),
		"errors of a named one":  config(`{"handler":"invoke","name":"x"}`, `,"named_routes":{"x":{"handle":[`+rule+`]}},"errors":{"routes":[{"handle":[{"handler":"subroute","routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:1"}]}]}]}]}]}`),
		"FastCGI of a named one": config(`{"handler":"invoke","name":"x"}`, `,"named_routes":{"x":{"handle":[`+rule+`]}},"errors":{"routes":[{"handle":[{"handler":"rewrite","uri":"/e?"},{"handler":"reverse_proxy","transport":{"protocol":"fastcgi"},"upstreams":[{"dial":"127.0.0.1:1"}]}]}]}`),
		"a part of the URI":      config(rule, `,"errors":{"routes":[{"handle":[{"handler":"rewrite","uri":"/e?","uri_substring":[{"find":"/e","replace":"{http.request.orig_uri.path}"}]},{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:1"}]}]}]}`),
		"a query of the proxy":   config(rule, `,"errors":{"routes":[{"handle":[{"handler":"reverse_proxy","rewrite":{"uri":"/e?","query":{"set":[{"key":"r","val":"{http.request.orig_uri.path}"}]}},"upstreams":[{"dial":"127.0.0.1:1"}]}]}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			requireError(t, loadJSON(t, text), []string{"redlock a:", "would serve"})
		})
	}
	page := `,"named_routes":{"x":{"handle":[` + rule + `]}},"errors":{"routes":[{"handle":[{"handler":"rewrite","uri":"/e?"},{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:1"}]}]}]}`
	if err := loadJSON(t, config(`{"handler":"invoke","name":"x"}`, page)); err != nil {
		t.Error(err)
	}
}

// A rule may stand among the routes for a response: what it refuses comes to the error routes as well.
func TestRuleInHandleResponse(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"reverse_proxy": "http://a.example:1 {\nreverse_proxy 127.0.0.1:2 {\n@ok status 200\nhandle_response @ok {\n" + aRule + proxy + "}\n}\nhandle_errors {\n" + proxy + "}\n}\n",
		"intercept":     "http://a.example:1 {\nintercept {\n@ok status 200\nhandle_response @ok {\n" + aRule + proxy + "}\n}\nfile_server\nhandle_errors {\n" + proxy + "}\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			requireError(t, load(t, config), []string{"handle_errors for a.example: reverse_proxy"})
		})
	}
}

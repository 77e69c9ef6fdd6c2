package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const form = "application/x-www-form-urlencoded"

// honest is a request for which each recipe of docs/recipes.md takes a lock: path, body and headers.
var honest = map[string]struct {
	path, body string
	headers    []string
}{
	"One payment at a time":              {"/payments", `{"order":{"id":42}}`, nil},
	"Webhooks":                           {"/webhooks/stripe", `{"id":"evt_1"}`, nil}, // which isn't signed
	"Amazon's SNS":                       {"/webhooks/sns", `{"MessageId":"8e03978e-40d5-43dd-bc93-6894a57f9324"}`, nil},
	"WooCommerce":                        {"/checkout", `{}`, []string{"Cookie", "wp_woocommerce_session_5d41402abc4b2a76b9719d911017c592=a"}},
	"One refresh of a token":             {"/oauth2/token", "refresh_token=R1&client_id=c", []string{"Content-Type", form}},
	"An API with Idempotency-Key":        {"/payments", `{}`, []string{"Idempotency-Key", "a", "Authorization", "Bearer a"}},
	"Browsers of another origin":         {"/payments", `{"order":{"id":42}}`, []string{"Origin", "https://shop.example.com"}},
	"Several keys at once":               {"/transfers", `{"from":"a","to":"b"}`, nil},
	"A slow backend behind a line":       {"/reports", `{}`, nil},
	"At most N at a time":                {"/x/y", `{}`, []string{"X-Tenant", "a"}},
	"Five calls to an LLM for each user": {"/v1/chat", `{}`, []string{"X-User", "a"}},
	"Responses of your own":              {"/orders/42/pay", `{}`, nil},
	"If the masters are away":            {"/carts/1/pay", `{}`, nil},
}

// TestSpellingsInRecipes: behind each recipe with redlock_guard, as docs/recipes.md asks for, no spelling reaches the upstream
// without a lock.
func TestSpellingsInRecipes(t *testing.T) {
	needTime(t)
	t.Parallel()
	document, err := os.ReadFile(filepath.Join("../..", recipes))
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "fence "+r.Header.Get("Fencing-Token"))
	}))
	t.Cleanup(upstream.Close)
	servers := redistest.Start(t, 3)
	_, sections, _ := strings.Cut(string(document), "\n## ")
	for section := range strings.SplitSeq(sections, "\n## ") {
		heading, text, _ := strings.Cut(section, "\n")
		if !strings.Contains(text, "\n```caddyfile\n") {
			continue
		}
		t.Run(heading, func(t *testing.T) {
			send := honest[heading]
			if send.path == "" {
				t.Fatal("no honest request")
			}
			key := secretFile(t, base64.StdEncoding.EncodeToString(make([]byte, 32)))
			text := strings.NewReplacer("/run/secrets/responses", key, "./run/secrets/stripe", "."+key, "example.com {\n", "example.com {\n\tredlock_guard\n").Replace(recipe(t, heading))
			if !strings.Contains(text, "redlock_guard") {
				t.Fatal("no guard")
			}
			c := runDocumented(t, text, servers, upstream.Listener.Addr().String())
			for i, s := range spellingsOf(send.path) {
				r := withBody(c.url, send.body, send.headers...)
				if content := slices.Index(send.headers, "Content-Type"); content >= 0 {
					r.Header.Set("Content-Type", send.headers[content+1])
				}
				r.Method, r.URL = s.method, &url.URL{Scheme: "http", Host: r.URL.Host, Opaque: s.target} // sent as it is
				if s.header != "" {
					r.Header.Set(s.header, s.value)
				}
				response, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				got := read(t, response)
				fence, reached := strings.CutPrefix(got.body, "fence ")
				locked := reached && fence != ""
				switch {
				case reached && !locked:
					t.Errorf("%+v is served without a lock", s)
				case i == 0 && locked != (heading != "Webhooks"):
					t.Errorf("the honest request: %d %s", got.status, got.body)
				}
			}
		})
	}
}

type spelling struct{ method, target, header, value string }

// spellingsOf returns the path itself, and spellings that some upstream takes for it.
func spellingsOf(path string) (all []spelling) {
	bare, first := strings.TrimPrefix(path, "/"), path[1:2]
	for _, target := range []string{
		path, path + "/", path + ";x=1", path + "?x=1", "/" + fmt.Sprintf("%%%02x", first[0]) + path[2:], strings.ToUpper(path[:2]) + path[2:], strings.ToUpper(path), strings.ReplaceAll(path, "s", "\u017f"),
		strings.ReplaceAll(path, "s", "%C5%BF"), "/index.php" + path, "/index.php" + bare, "/Index.PHP" + path, "/index.php%2F" + bare, "/index" + path, "/index.en" + path, "/shop/index" + path, "/app.pl" + path, "/app_dev" + path, "/cgi-bin/x.fcgi" + path,
		"/;x" + path, "/(S(x))" + path, "/" + path, "/." + path, "/x/.." + path, "/x%2F.." + path, "/%2e" + path, "/%5C" + bare, "/x/%2e%2e" + path, "/%25" + fmt.Sprintf("%02x", first[0]) + path[2:], path + "//", path + "/.", path + "%20", path + "%00", path + "+",
		"/?" + path, "/?" + bare + "/", "/?rest_route=" + path, "/?_url=" + path, "/?s=" + path, "/x?x=1&rest[route=" + path, "/?" + url.QueryEscape(path),
		path + "?_method=GET", path + "?_method=PUT", "/index.php?s=" + path, "*", "x:" + bare, "http://other.example.com" + path,
	} {
		all = append(all, spelling{method: http.MethodPost, target: target})
	}
	for _, method := range []string{"post", "Post", http.MethodPut, http.MethodPatch, "REPORT"} {
		all = append(all, spelling{method: method, target: path})
	}
	for _, header := range []string{"X-Original-URL", "X-Rewrite-URL", "Path-Info", "X-Script-Name", "Daphne-Root-Path"} {
		all = append(all, spelling{http.MethodPost, "/x", header, path})
	}
	for _, header := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"} {
		all = append(all, spelling{http.MethodGet, path, header, http.MethodPost})
	}
	return all
}

// A preflight of CORS takes no lock, and a script of PHP runs for any method: the configuration for PHP has none run for it.
func TestPreflightOfPHP(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(document), "\n### PHP\n")
	_, site, _ := strings.Cut(section, "\n```caddyfile\nshop.example.com {\n")
	site, _, _ = strings.Cut(site, "\n}\n```\n")
	b := newBackend(t, func() {})
	site, fastcgi, found := strings.Cut(site, "\tphp_fastcgi ")
	if !found {
		t.Fatalf("no PHP in %q", fastcgi)
	}
	c := runCaddy(t, caddyfile("", site+b.proxy()))
	r := request(c.url+"/pay.php?order=42", "Origin", "https://shop.example.com", "Access-Control-Request-Method", "POST")
	r.Method = http.MethodOptions
	requireStatus(t, send(t, r), http.StatusNoContent)
	requireStatus(t, send(t, request(c.url+"/pay.php?order=42")), http.StatusOK)
	if n := b.servedTotal(); n != 1 {
		t.Errorf("%d requests came through, want the payment alone", n)
	}
}

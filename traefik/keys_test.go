package traefik

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/keycases"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// keyOf returns the key of a case, or why there is none, as the table has it.
func keyOf(t *testing.T, c *keycases.Case) string {
	tmpl, err := parseTemplate(c.Template)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := tmpl.key(c.Request)
	switch {
	case err == errMissing:
		return keycases.Missing
	case err == errAmbiguous:
		return keycases.Ambiguous
	case err != nil:
		return keycases.Refused
	}
	return got
}

func TestKeyCases(t *testing.T) {
	for i, c := range keycases.All() {
		got, want := keyOf(t, &c), c.Want
		if c.Unstable && got != keycases.Ambiguous {
			want = keycases.Refused
		}
		if got != want {
			t.Errorf("case %d: %q of %s %s with %v: %q, want %q", i, c.Template, c.Request.Host, c.Request.RequestURI, c.Request.Header, got, want)
		}
	}
}

// TestFenceHeadersAreTheMiddlewares: a header that can't carry the fencing token can't do so in any host.
func TestFenceHeadersAreTheMiddlewares(t *testing.T) {
	for name, want := range map[string]bool{
		"Fencing-Token": true, "X-Fence": true, "User-Agent": true,
		"Host": false, "content-length": false, "Transfer_Encoding": false, "Connection": false, "TE": false, "Trailer": false, "Upgrade": false, "Keep-Alive": false, "Expect": false,
		"Proxy-Connection": false, "Proxy-Authenticate": false, "Proxy-Authorization": false, "Content-Type": false, "Content-Encoding": false, "Cookie": false, "Idempotency-Key": false,
		"Forwarded": false, "X-Forwarded-For": false, "X_Forwarded_Host": false, "x-forwarded-proto": false, "Via": false, "X-Forwarded-Fence": true,
		"X Fence": false, "X-Fence ": false, "X-Fence:": false,
	} {
		c := CreateConfig()
		c.Masters, c.Key, c.FenceHeader = []string{"redis://127.0.0.1:1"}, "order:{path.1}", name
		_, _, err := c.read()
		rule := middleware.Rule{FenceHeader: name}
		for host, err := range map[string]error{"Traefik": err, "net/http": rule.Check()} {
			if (err == nil) != want || err != nil && !strings.Contains(err.Error(), strconv.Quote(name)) {
				t.Errorf("%s: %q: error %v", host, name, err)
			}
		}
	}
}

// TestKeysAreTheMiddlewares compares the keys of random requests, made of pieces that readers interpret differently, with those of
// package middleware. For ASCII both packages make the same keys; for other text they do, or the plugin refuses it.
func TestKeysAreTheMiddlewares(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"a", "A", "id", "order", "0", "42", "042", "+", "-", ".", "_", "e", "1", "[", "]", "[]", "[0]", ";", ",", "=", "&", "%20", "%00", "%", "%41", " ", "\t", "\"", "\\", "/", "%2F", "%5C", "..", "#", "j:", "|", ":",
		"ä", "a\u0308", "\u00a0", "\uff14", "٤", "\u2028", "\ufeff", "\x01", "\xff", "İ", "ß", "日"}
	text := func(most int) string {
		var b strings.Builder
		for range random.IntN(most + 1) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		return b.String()
	}
	templates := []string{"{path.1}", "{path}", "{header.X-A}", "{header.X-A:int}|{header.X-B}", "{query.id}", "{query.order.id}", "{query.a.0}", "{query.a_b}", "{cookie.id}", "{cookie.a_b}", "{header.X-A|query.id:id|path.0}:{host}", "{host}:{method}"}
	keys, refused := 0, 0
	for range 20_000 {
		r := httptest.NewRequest(http.MethodPut, "/", nil)
		r.URL = &url.URL{Path: "/" + text(4) + "/" + text(3), RawQuery: text(2) + "=" + text(3) + "&" + []string{"id", "order[id]", "a[0]", "a.b", text(3)}[random.IntN(5)] + "=" + text(3)}
		r.RequestURI = r.URL.String()
		r.Host = text(3)
		r.Header = http.Header{"X-A": {text(4)}, "Cookie": {text(3) + "=" + text(3) + "; " + []string{"id", "a_b", "a.b"}[random.IntN(3)] + "=" + text(3)}}
		if random.IntN(8) == 0 {
			r.Header["X_a"] = []string{"1"}
		}
		source := templates[random.IntN(len(templates))]
		theirs, err := middleware.ParseTemplate(source, middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := theirs.Key(r)
		got := keyOf(t, &keycases.Case{Template: source, Request: r})
		switch {
		case errors.Is(wantErr, middleware.ErrMissingKey):
			want = keycases.Missing
		case errors.Is(wantErr, middleware.ErrAmbiguousKey):
			want = keycases.Ambiguous
		case wantErr != nil:
			want = keycases.Refused
		}
		all := r.RequestURI + r.URL.Path + r.Host + r.Header.Get("X-A") + r.Header.Get("Cookie")
		unescapedAll, _ := url.PathUnescape(strings.ReplaceAll(all, "%00", ""))
		ascii := strings.Trim(all, "\x00-\x7f") == "" || !strings.ContainsFunc(all+unescapedAll, func(r rune) bool { return r > 0x7e })
		same := got == want || want[0] == 0 && got[0] == 0 && want != keycases.Missing && got != keycases.Missing
		if !same && (ascii || got != keycases.Refused && got != keycases.Ambiguous) {
			t.Fatalf("seed %d: %q of %q, host %q, %q: %q, want %q (%v)", seed, source, r.RequestURI, r.Host, r.Header, got, want, wantErr)
		}
		if want[0] != 0 {
			keys++
			if !same {
				refused++
			}
		}
	}
	t.Logf("%d keys, of which the plugin refuses %d", keys, refused)
	if keys < 1000 {
		t.Errorf("seed %d: only %d requests have a key", seed, keys)
	}
}

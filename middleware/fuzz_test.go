package middleware_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// bodyValue returns the value that we read of a field of a body; ok is false if it is refused.
func bodyValue(t *testing.T, field, contentType string, body []byte) (value string, ok bool) {
	template, err := middleware.ParseTemplate("{body."+field+"}", middleware.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	key, err := template.Key(withBody(contentType, string(body)))
	if errors.Is(err, middleware.ErrMissingKey) {
		return "", true
	}
	if err != nil {
		return "", false
	}
	if value, err = url.PathUnescape(key); err != nil {
		t.Fatalf("key %q: %v", key, err)
	}
	if value == "" || len(value) > 4<<10 {
		t.Fatalf("value of %d bytes", len(value))
	}
	return value, true
}

// requireOneValue fails if the same bytes have two values under two types: the client chooses the type.
func requireOneValue(t *testing.T, field string, body []byte) {
	asJSON, ok := bodyValue(t, field, jsonType, body)
	asForm, okForm := bodyValue(t, field, formType, body)
	if ok && okForm && asJSON != asForm {
		t.Errorf("%s of %q: %q in JSON and %q in a form", field, body, asJSON, asForm)
	}
}

// FuzzJSONKey compares us with encoding/json, which takes the last of duplicate names, in any case. A body that it reads
// differently must be refused, even if we find nothing in it, because the key may have an alternative.
func FuzzJSONKey(f *testing.F) {
	for _, body := range []string{`{"id":1}`, `{"id":"x","id":"y"}`, `{"ID":1,"id":2}`, `{"a":{"id":true},"id":null}`, `{"a":{"id":1},"A":{"id":2}}`,
		`{"id":1.0}`, `{"id":12345678901234567890}`, `{"id":1E20}`, `{"id":"\ud800"}`, `{"\u0069d":1}`, `{"id":1} 2`, `[{"id":1}]`, `{"id":{"id":[1]}}`, "{\"id\":\"\xff\"}", `{"a":{"Id":1}}`} {
		f.Add([]byte(body))
	}
	f.Add([]byte(`{"id":42,"x":"&id=7&"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		requireOneValue(t, "id", body)
		var lenient struct {
			ID any `json:"id"`
			A  struct {
				ID any `json:"id"`
			} `json:"a"`
		}
		err := json.Unmarshal(body, &lenient)
		var exact struct {
			ID json.RawMessage `json:"id"`
			A  struct {
				ID json.RawMessage `json:"id"`
			} `json:"a"`
		}
		_ = json.Unmarshal(body, &exact)
		for field, theirs := range map[string]struct {
			value any
			raw   json.RawMessage
		}{"id": {lenient.ID, exact.ID}, "a.id": {lenient.A.ID, exact.A.ID}} {
			ours, ok := bodyValue(t, field, jsonType, body)
			if !ok || err != nil {
				continue // one of the two refuses it
			}
			want := ""
			switch v := theirs.value.(type) {
			case nil:
			case float64:
				if want = strconv.FormatFloat(v+0, 'f', -1, 64); math.Abs(v) >= 1<<53 {
					want = foldOf(t, string(theirs.raw)) // 1E20 is 1e20
				}
			case string:
				want = foldOf(t, v)
			default:
				want = fmt.Sprint(v)
			}
			if ours != want {
				t.Errorf("%s of %q: we read %q, encoding/json %q", field, body, ours, want)
			}
		}
	})
}

// FuzzFormKey compares us with net/url, which takes the first of duplicate names.
func FuzzFormKey(f *testing.F) {
	for _, body := range []string{"id=1", "id=1&id=2", "id=1&ID=2", "id=&id=1", "%69d=1&x=2", "id=1;id=2", "id=%zz", "id[]=1&id=2", "&&id=a+b%26", "id=%ff", "a=1", "id"} {
		f.Add([]byte(body))
	}
	f.Add([]byte(` "&id=7&"`))
	f.Fuzz(func(t *testing.T, body []byte) {
		requireOneValue(t, "id", body)
		ours, ok := bodyValue(t, "id", formType, body)
		theirs, err := url.ParseQuery(string(body))
		if !ok || err != nil {
			return
		}
		if len(theirs["id"]) > 1 || theirs.Get("id") != "" && foldOf(t, theirs.Get("id")) != ours {
			t.Errorf("%q: we read %q, net/url %q", body, ours, theirs["id"])
		}
	})
}

// FuzzBodyTemplate looks for paths and bodies that make the readers panic.
func FuzzBodyTemplate(f *testing.F) {
	f.Add("a.0.b", []byte(`{"a":[{"b":1}]}`))
	f.Add("a[].b[]", []byte(`{"a":[{"b":[1,2]},{"b":[]}]}`))
	f.Add("a[].b|body.a[].c.0", []byte(`{"a":[{"b":1},{"c":[2]}]}`))
	f.Add(`a\.b|body.c`, []byte("a.b=1&c=2"))
	f.Add(" ", []byte("a=1"))
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		template, err := middleware.ParseTemplate("{body."+path+"}", middleware.Placeholder)
		if err != nil {
			return
		}
		for _, contentType := range []string{jsonType, formType} {
			keys, err := template.Keys(withBody(contentType, string(body)))
			if err == nil && (len(keys) == 0 || len(keys) > 16) {
				t.Errorf("%d keys", len(keys))
			}
		}
	})
}

// FuzzSignature: no signature is accepted that was made without the secret.
func FuzzSignature(f *testing.F) {
	for _, v := range vectors {
		header := make([]string, 6)
		copy(header, v.headers)
		f.Add(header[1], header[3], header[5], []byte(v.body))
	}
	f.Add("t=1,t=2,v1=00", "v0=", "v1,", []byte(nil))
	f.Fuzz(func(t *testing.T, first, second, third string, body []byte) {
		for scheme, names := range map[string][3]string{
			"stripe":            {"Stripe-Signature"},
			"github":            {"X-Hub-Signature-256"},
			"shopify":           {"X-Shopify-Hmac-Sha256"},
			"slack":             {"X-Slack-Request-Timestamp", "X-Slack-Signature"},
			"standard-webhooks": {"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"},
		} {
			r := withBody("", string(body))
			for i, value := range []string{first, second, third} {
				if names[i] != "" {
					r.Header.Set(names[i], value)
				}
			}
			e := middleware.Explain("k", r, middleware.Rule{Verify: []middleware.Verify{{Scheme: scheme, Secrets: []string{"bm9ib2R5IGtub3dzIHRoaXM="}}}, ReplayWindow: ages})
			if e.Err == nil {
				t.Errorf("%s takes %q, %q, %q for signed", scheme, first, second, third)
			}
		}
	})
}

// FuzzFold compares us with net/http's own parsers: two requests in which they read the same value have a key in common, and a
// value that they read is never missing.
func FuzzFold(f *testing.F) {
	for _, pair := range [][2]string{{"id=42", "id=%34%32"}, {"id=1&id=42", "id=42"}, {"id=42;x", "id=42"}, {`id="42"`, "id=42"}, {"id=42; id=1", "id = 42"}, {"id=a+b", "id=a%20b"},
		{"ID=42", "id=42&x=%"}, {"x&&id=42#a", "id=42"}, {"a,id=42", "id=%2242%22"}, {"id=42;id", "id=42"}} {
		f.Add(pair[0], pair[1])
	}
	header := func(name string, r *http.Request, text string) *http.Request {
		r.Header[name] = []string{text}
		return r
	}
	places := map[string]struct {
		request func(text string) *http.Request
		value   func(*http.Request) string
	}{
		"{query.id}": {
			func(text string) *http.Request {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.URL.RawQuery = text
				return r
			},
			func(r *http.Request) string { return r.URL.Query().Get("id") },
		},
		"{body.id}": {
			func(text string) *http.Request { return withBody(formType, text) },
			func(r *http.Request) string { return r.PostFormValue("id") },
		},
		"{cookie.id}": {
			func(text string) *http.Request {
				return header("Cookie", httptest.NewRequest(http.MethodGet, "/", nil), text)
			},
			func(r *http.Request) string {
				cookie, err := r.Cookie("id")
				if err != nil {
					return ""
				}
				return cookie.Value
			},
		},
		"{header.Id}": {
			func(text string) *http.Request {
				return header("Id", httptest.NewRequest(http.MethodGet, "/", nil), text)
			},
			func(r *http.Request) string { return r.Header.Get("Id") },
		},
		"{path.id}": {
			func(text string) *http.Request {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.URL.Path = "/" + text
				r.SetPathValue("id", text)
				return r
			},
			func(r *http.Request) string { return r.PathValue("id") },
		},
	}
	parsed := make(map[string]*middleware.Template)
	for template := range places {
		var err error
		if parsed[template], err = middleware.ParseTemplate(template, middleware.Placeholder); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for template, place := range places {
			read := func(text string) (value string, keys []string) {
				keys, err := parsed[template].Keys(place.request(text))
				value = place.value(place.request(text))
				if errors.Is(err, middleware.ErrMissingKey) && foldOf(t, value) != "" {
					t.Errorf("%s of %q is missing, and net/http reads %q", template, text, value)
				}
				return value, keys
			}
			value, keys := read(a)
			other, otherKeys := read(b)
			if value != "" && value == other && keys != nil && otherKeys != nil && !slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(otherKeys, key) }) {
				t.Errorf("%s: net/http reads %q of %q and of %q, and the keys are %q and %q", template, value, a, b, keys, otherKeys)
			}
		}
	})
}

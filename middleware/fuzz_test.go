package middleware_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// bodyValue gives the value of a field of a body as we read it; ok is false where it is refused.
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

// requireOneValue fails if the same bytes have two values under two types: who sends them chooses the type.
func requireOneValue(t *testing.T, field string, body []byte) {
	asJSON, ok := bodyValue(t, field, jsonType, body)
	asForm, okForm := bodyValue(t, field, formType, body)
	if ok && okForm && asJSON != asForm {
		t.Errorf("%s of %q: %q in JSON and %q in a form", field, body, asJSON, asForm)
	}
}

// FuzzJSONKey compares with encoding/json, which takes the last of two names, in any case. What it
// reads otherwise must be refused; also where we read nothing, as the lock may fall back.
func FuzzJSONKey(f *testing.F) {
	for _, body := range []string{`{"id":1}`, `{"id":"x","id":"y"}`, `{"ID":1,"id":2}`, `{"a":{"id":true},"id":null}`, `{"a":{"id":1},"A":{"id":2}}`,
		`{"id":1.0}`, `{"id":12345678901234567890}`, `{"id":"\ud800"}`, `{"\u0069d":1}`, `{"id":1} 2`, `[{"id":1}]`, `{"id":{"id":[1]}}`, "{\"id\":\"\xff\"}", `{"a":{"Id":1}}`} {
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
				want = string(theirs.raw)
			default:
				want = fmt.Sprint(v)
			}
			if ours != want {
				t.Errorf("%s of %q: we read %q, encoding/json %q", field, body, ours, want)
			}
		}
	})
}

// FuzzFormKey compares with net/url, which takes the first of two names.
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
		if len(theirs["id"]) > 1 || theirs.Get("id") != ours {
			t.Errorf("%q: we read %q, net/url %q", body, ours, theirs["id"])
		}
	})
}

// FuzzBodyTemplate looks for paths on which the readers panic.
func FuzzBodyTemplate(f *testing.F) {
	f.Add("a.0.b", []byte(`{"a":[{"b":1}]}`))
	f.Add("a[].b[]", []byte(`{"a":[{"b":[1,2]},{"b":[]}]}`))
	f.Add("a[].b|body.a[].c.0", []byte(`{"a":[{"b":1},{"c":[2]}]}`))
	f.Add(`a\.b|body.c`, []byte("a.b=1&c=2"))
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

// FuzzSignature: without the secret no signature is good.
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
			e := middleware.Explain("k", r, middleware.WithVerify(scheme, "bm9ib2R5IGtub3dzIHRoaXM="), middleware.WithReplayWindow(ages))
			if e.Err == nil {
				t.Errorf("%s takes %q, %q, %q for signed", scheme, first, second, third)
			}
		}
	})
}

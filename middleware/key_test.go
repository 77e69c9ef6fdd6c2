package middleware_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// bearers are requests that have a value where a placeholder reads it.
var bearers = map[string]func(string) *http.Request{
	"path.1":   func(v string) *http.Request { return keyRequest("/x/" + url.PathEscape(v) + "/x") },
	"path.id":  func(v string) *http.Request { return withWildcard(pathOf(v), "id", v) },
	"path":     func(v string) *http.Request { return keyRequest(pathOf(v)) },
	"query.id": func(v string) *http.Request { return keyRequest("/?id=" + url.QueryEscape(v)) },
	"header.X": func(v string) *http.Request {
		r := keyRequest("/")
		r.Header["X"] = []string{v}
		return r
	},
	"cookie.id": func(v string) *http.Request { return keyRequest("/", "Cookie", "id="+url.PathEscape(v)) },
	"host":      keyHost,
	"method": func(v string) *http.Request {
		r := keyRequest("/")
		r.Method = v
		return r
	},
	"form.id":         func(v string) *http.Request { return withBody(formType, "id="+url.QueryEscape(v)) },
	"form.a.b":        func(v string) *http.Request { return withBody(formType, "a[b]="+url.QueryEscape(v)) },
	"form.items[].id": func(v string) *http.Request { return withBody(formType, "items[][id]="+url.QueryEscape(v)) },
	"json.id":         func(v string) *http.Request { return withText(`{"id":`, v, "}") },
	"json.a.b":        func(v string) *http.Request { return withText(`{"a":{"b":`, v, "}}") },
	"json.items[].id": func(v string) *http.Request { return withText(`{"items":[{"id":`, v, "}]}") },
	"json.items.0.id": func(v string) *http.Request { return withText(`{"items":[{"id":`, v, "}]}") },
	`json.a\.b`:       func(v string) *http.Request { return withText(`{"a.b":`, v, "}") },
	"body.id":         func(v string) *http.Request { return withText(`{"id":`, v, "}") },
	"payload.id": func(v string) *http.Request {
		return withBody(formType, "payload="+url.QueryEscape(`{"id":`+inJSON(v)+"}"))
	},
	"body.none|body.id":     func(v string) *http.Request { return withText(`{"id":`, v, "}") },
	"body.none&body.id":     func(v string) *http.Request { return withText(`{"id":`, v, "}") },
	"body.none|org=body.id": func(v string) *http.Request { return withText(`{"id":`, v, "}") },
}

func pathOf(v string) string { return (&url.URL{Path: "/x/" + v}).EscapedPath() }

func inJSON(v string) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func withText(before, v, after string) *http.Request {
	return withBody(jsonType, before+inJSON(v)+after)
}

// valuesOfKeys are the values of the table of keys, and those that only one kind or place takes.
func valuesOfKeys() []string {
	all := []string{"9223372036854775808", "9007199254740991", "-7", "a+b@x.example", "gid://shopify/Order/42", "42;x", "42&id=43", "a%2Fb", "a/b", "..", `a\b`, "a=b?c#d", `"42"`, "j:42",
		"\ufffd", "\xff", "true", "0x2a", "550E8400-E29B-41D4-A716-446655440000", "550E8400e29b41d4a716446655440000", "{550e8400-e29b-41d4-a716-446655440000}", "しみず", "シミズ", "42\u200b", "\u2800",
		"=?utf-8?q?42?=", strings.Repeat("é", 2100), strings.Repeat("a", 2049), strings.Repeat("a", 4097), strings.Repeat("7", 201), "Shop.Example.com:80"}
	for _, c := range keyCases() {
		for _, name := range []string{"X", "X-Order"} {
			all = append(all, c.request.Header.Get(name))
		}
		query, _ := url.ParseQuery(c.request.URL.RawQuery)
		all = append(all, query.Get("order"), query.Get("x"), c.request.Host, c.request.Method)
		all = append(all, strings.Split(c.request.URL.Path, "/")...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestKey compares what Key makes of each value of the table of keys with what a rule makes of a request with it: the same key, or none.
func TestKey(t *testing.T) {
	t.Parallel()
	keys, refusals, values := 0, 0, valuesOfKeys()
	for name, request := range bearers {
		alone := strings.TrimPrefix(name[strings.LastIndexAny(name, "|&")+1:], "org=")
		kinds := []string{"", ":id"}
		if name == "path.1" || name == "json.id" {
			kinds = append(kinds, ":int", ":int64", ":uuid")
		}
		for _, kind := range kinds {
			template := "A_{" + name + kind + "}"
			for _, value := range values {
				if name == "path" {
					if value == "" {
						continue
					}
					value = "/x/" + value
				}
				want := middleware.Explain(template, request(strings.TrimPrefix(value, "/x/")), middleware.Rule{})
				got, err := middleware.Key(template, map[string]string{alone: value})
				switch {
				case want.Err == nil && (err != nil || !slices.Contains(want.Keys, got)):
					t.Errorf("%s of %.80q: %q, %v; a rule locks %q", template, value, got, err, want.Keys)
				case want.Err != nil && err == nil:
					t.Errorf("%s of %.80q: %q; a rule refuses it: %v", template, value, got, want.Err)
				case want.Err != nil && !(errors.As(err, new(*middleware.KeyError))):
					t.Errorf("%s of %.80q: %v is no KeyError", template, value, err)
				case err != nil:
					refusals++
				default:
					keys++
				}
			}
		}
	}
	if keys < 1000 || refusals < 1000 {
		t.Errorf("only %d keys and %d refusals", keys, refusals)
	}
}

func TestKeyOfValues(t *testing.T) {
	t.Parallel()
	type values = map[string]string
	for _, c := range []struct {
		template string
		values   values
		want     string // the key, or a part of the error
	}{
		{"all", nil, "all"},
		{"Customer:{id:id}", values{"id": "CUS_1"}, "Customer:cus_1"},
		{"{header.X}:{query.y}", values{"header.X": "x:y", "query.y": "z"}, "x%3Ay:z"},
		{"{header.X}-{query.y}", values{"header.X": "x-y", "query.y": "z"}, "x%2Dy-z"},
		{"{path.7}:{path.7:int}", values{"path.7": "7"}, "7:7"},
		{"{http.request.uri.path.1}:{http.request.header.X}", values{"http.request.uri.path.1": "a+b", "http.request.header.X": "a+b"}, "a%20b:a%2Bb"},
		{"{http.auth.user.id}", values{"http.auth.user.id": "José"}, "jose"},
		{`{query.a\:b:int}`, values{"query.a:b": "7"}, "7"},
		{"{json.id|org=json.org}", values{"json.org": "7"}, "org=7"},
		{"{json.id|org=json.org}", values{"json.id": "1", "json.org": "7"}, "1"},
		{"{json.items[].a|json.items[].b}", values{"json.items[].b": "7"}, "7"},
		{"{json.a&json.b}", values{"json.b": "7"}, "7"},
		{"{json.a&json.b}", values{"json.a": "8", "json.b": "7"}, "key part {json.a&json.b}: has several values"},
		{"{id}", values{"id": strings.Repeat("x", 201)}, "sha256:84a0678c9"},
		{"{id:int}", values{"id": "042"}, "key part {id:int}: not a whole number"},
		{"{id:int}", values{"id": ""}, "key part {id:int}: missing or empty"},
		{"{path.1}:{path.2}", values{"path.1": "1"}, "key part {path.2}: missing or empty"},
		{"order:{path.1:int}", values{"id": "42"}, `no placeholder reads the value "id"; want values for ["path.1"]`},
		{"{id}{no}", nil, `key template "{id}{no}": nothing separates`},
		{"{header.Host}", nil, "use {host}"},
		{"{json.a[]}:{json.b[]}", nil, "only one placeholder may have [] or &"},
	} {
		got, err := middleware.Key(c.template, c.values)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil && !strings.HasPrefix(c.want, "sha256:") || !strings.Contains(got, c.want)) {
			t.Errorf("%s of %q: %s, want %s", c.template, c.values, got, c.want)
		}
	}
}

func TestKeysShareValues(t *testing.T) {
	t.Parallel()
	templates := []string{"order:{order:int}", "customer:{customer:id}/{order}"}
	keys, err := middleware.Keys(templates, map[string]string{"order": "42", "customer": "C"})
	if want := []string{"order:42", "customer:c/42"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%q, %v; want %q", keys, err, want)
	}
}

func ExampleKey() {
	key, err := middleware.Key("user:{query.name}", map[string]string{"query.name": "José"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(key)
	// Output: user:jose
}

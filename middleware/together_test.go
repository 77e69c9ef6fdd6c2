package middleware_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// {a&b} makes a key of each of a and b that is present.
func TestKeysTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, body, want string }{
		{"{json.a&json.b}", `{"a":1,"b":2}`, "1 2"},
		{"{json.a&json.b}", `{"b":2,"a":null}`, "2"},
		{"{json.a&json.b}", `{"a":2,"b":"2"}`, "2"},
		{"{json.a&json.b}", `{"c":2}`, "missing"},
		{"{json.a&json.b|json.c}", `{"c":3}`, "3"},
		{"{json.items[].id&json.b}", `{"items":[{"id":1},{"id":{"x":7}},{"id":9007199254740993},{}],"b":2}`, "1 2 9007199254740992 9007199254740993"},
		{"{json.a&json.b|json.c}", `{"b":2,"c":3}`, "2"},
		{"{json.c|json.a&json.b}", `{"b":2,"c":3}`, "3"},
		{"{json.a.id&json.a}", `{"a":{"id":1}}`, "1"}, // an object is no value, and is left out
		{"{json.a.id&json.a}", `{"a":1}`, "1"},
		{"{json.a&json.b}", `{"a":1,"a":2,"b":3}`, "ambiguous"},
		{"{json.a[].x&json.a[].y}", `{"a":[{"x":1},{"y":2},{"x":3,"y":1}]}`, "1 2 3"},
		{"{json.a[].x&json.b}", `{"a":[{"x":"A","z":1},{"x":""}],"b":1}`, "1 a"},
		{"k:{json.m}:{json.a&json.b}", `{"m":"x","a":1,"b":2}`, "k:x:1 k:x:2"},
		{"k:{header.X&json.a&method}", `{"a":1}`, "k:1 k:post"},
		{"{body.a&body.b}", `{"a":1,"b":2,"c":"&a=3&"}`, "1 2 3"}, // and read as a form
		{"{body.a&body.b}", `{"a":1,"b":2,"c":"&a=3&b=4&"}`, "1 2 3 4"},
		// what is folded to nothing is as missing as what is empty, and leaves out no other
		{"{json.a[]&json.b}", `{"a":["x"," "],"b":"y"}`, "x y"},
		{"{json.a[]|json.b}", `{"a":["x"," "],"b":"y"}`, "refused: key part {json.a[]|json.b}: missing or empty in some of the elements only"},
		{"{json.a[]|json.b}", `{"a":[" "," "],"b":"y"}`, "y"},
		{"{one=json.a[]&two=json.b}", `{"a":["x"," "],"b":" "}`, "one=x"},
		// missing in all alternatives is missing, of whichever kind they are
		{"{body.a.id|header.X|query.a}", `{}`, "missing"},
		{"{body.a|cookie.X}", `{"b":1}`, "missing"},
		// a label keeps IDs of different things apart
		{"k:{json.a|other=json.b}", `{"a":1,"b":2}`, "k:1"},
		{"k:{json.a|other=json.b}", `{"b":1}`, "k:other=1"},
		{"k:{json.a|other=json.b}", `{"a":"other=1"}`, "k:other%3D1"},
		{"k:{one=json.a&two=json.b}", `{"a":1,"b":1}`, "k:one=1 k:two=1"},
		{"k:{one=body.a[].x|body.a[].y}", `{"a":[{"x":1},{"x":2}]}`, "k:one=1 k:one=2"},
		// a body is refused only if no alternative is of its format
		{"{form.a|header.X}", `{"a":1}`, "refused: key part {form.a|header.X}: body is JSON; want a form, application/x-www-form-urlencoded"},
		{"{form.a|json.a}", `{"a":1}`, "1"},
		{"{form.a|json.a|method}", `{"b":1}`, "post"},
		{"{payload.a|json.a}", `{"payload":{"a":2},"a":1}`, "1"},
	} {
		if got := keysFor(t, c.template, withBody(jsonType, c.body)); !sameKeys(got, c.want) {
			t.Errorf("%s of %s: %s, want %s", c.template, c.body, got, c.want)
		}
	}
	for text, want := range map[string]string{
		"{json.a&json.b}:{json.c&json.d}": "only one placeholder may have [] or &",
		"{json.a[]}:{json.c&json.d}":      "only one placeholder may have [] or &",
		"{json.a&}":                       "unknown placeholder {}",
	} {
		if _, err := middleware.ParseTemplate(text, middleware.Placeholder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if err := wrong(middleware.Rule{Dedupe: "{json.a&json.b}"}); err == nil {
		t.Error("an ID may have several values")
	}
}

// GitHub and Slack send JSON in a field of a form.
func TestKeyOfPayload(t *testing.T) {
	t.Parallel()
	const template = "{payload.a.id|form.b|method}"
	payload := func(json string) string { return "payload=" + url.QueryEscape(json) }
	for _, c := range []struct{ body, want string }{
		{payload(`{"a":{"id":42}}`), "42"},
		{payload(`{"x":"1 + 1 = 2 & \u00e4 ä %41","a":{"id":"4 2%"}}`), "4%202%25"},
		{"b=1&" + payload(`{"a":{"id":42}}`) + "&a.id=7", "42"},
		{"b=1&" + payload(`{"a":{}}`), "1"},
		{"b=1", "1"},
		{"c=1", "post"},
		{"payload=&b=1", "1"},
		{payload(`{"a":{"id":42}`), "refused: key part {payload.a.id|form.b|method}: body is not valid JSON, in UTF-8 without a byte order mark"},
		{payload(`{"a":{"id":42,"id":43}}`), "ambiguous"},
		{payload(`{"a":{"id":42}}`) + "&" + payload(`{"a":{"id":43}}`), "ambiguous"},
		{payload(`{"a":{"id":42}}`) + "&payload[a][id]=43", "ambiguous"},
		{"%70ayload=" + url.QueryEscape(`{"a":{"id":42}}`), "42"},
		{"Payload=" + url.QueryEscape(`{"a":{"id":42}}`), "ambiguous"},
		{"payload=%zz", "refused: key part {payload.a.id|form.b|method}: form or query has other characters than printable ones of ASCII, a \";\", or a \"%\" that begins no escape"},
		{payload(`{"x":"` + strings.Repeat("ä", 100_000) + `","a":{"id":42}}`), "42"},
	} {
		if got := keysFor(t, template, withBody(formType, c.body)); got != c.want {
			t.Errorf("%.200s: %s, want %s", c.body, got, c.want)
		}
	}
}

func sameKeys(a, b string) bool {
	keys, others := strings.Fields(a), strings.Fields(b)
	slices.Sort(keys)
	slices.Sort(others)
	return slices.Equal(keys, others)
}

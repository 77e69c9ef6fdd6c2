package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
)

// formPairs returns a text that is n fields of a form, which begin like one that is named id.
func formPairs(n int) string { return strings.TrimSuffix(strings.Repeat("i=b&", n), "&") }

// Each pair that a reader of forms finds in JSON or in the query next to a form costs time.
func TestManyFieldsForAnotherReader(t *testing.T) {
	t.Parallel()
	text := func(pairs int) *http.Request { return withBody(jsonType, `{"id":1,"x":"`+formPairs(pairs)+`"}`) }
	both := func(pairs int) *http.Request {
		r := withBody(formType, "id=1")
		r.URL.RawQuery = formPairs(pairs)
		return r
	}
	const refused = `refused: key part {body.id}: more than 10000 pairs such as a=b, which some reader takes for the fields of a form; send fewer, or read the field with {json.…}`
	for _, c := range []struct {
		template string
		request  *http.Request
		want     string
	}{
		{"{body.id}", text(10_000), "1"},
		{"{body.id}", text(10_001), refused},
		{"{body.i.y|body.id}", text(10_001), strings.Replace(refused, "body.id", "body.i.y|body.id", 1)},
		{"{json.id}", text(10_001), "1"},
		{"{body.id}", withBody(jsonType, `{"id":1,"x":"`+strings.Repeat("i&i=&;", 20_000)+`"}`), "1"}, // no values
		{"{body.id}", withBody(jsonType, `{"id":1,"x":"`+strings.Repeat("a=b&", 20_000)+`"}`), "1"},
		{"{body.id}", both(10_000), "1"},
		{"{body.id}", both(10_001), "ambiguous"},
		{"{form.id}", both(10_001), "ambiguous"},
	} {
		if got := keysFor(t, c.template, c.request); got != c.want {
			t.Errorf("%s of a body of %d bytes: %s, want %s", c.template, c.request.ContentLength, got, c.want)
		}
	}
}

// PHP reads an object in place of a list as the same array: what is in it must not be missing, so that another key is made.
func TestObjectInPlaceOfList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, body, want string }{
		{"{json.items[].id|header.Content-Type}", `{"items":{"0":{"id":42}}}`, "ambiguous"},
		{"{json.items[].id|json.id}", `{"id":1,"items":{"x":{"name":"y"},"0":{"id":42}}}`, "ambiguous"},
		{"{json.items[].id&json.id}", `{"id":1,"items":{"0":{"id":42}}}`, "ambiguous"},
		{"{json.items[]|json.id}", `{"id":1,"items":{"0":42}}`, "ambiguous"},
		{"{json.items[].id|json.id}", `{"id":1,"items":{"0":{"id":42},"0":{}}}`, "ambiguous"},
		{"{json.items[].id|json.id}", `{"id":1,"items":{"0":{"ID":42}}}`, "ambiguous"},
		{"{json.[].id|header.Content-Type}", `{"0":{"id":42}}`, "ambiguous"},
		{"{json.a[].b[].c|json.id}", `{"id":1,"a":{"0":{"b":[{"c":42}]}}}`, "ambiguous"},
		{"{json.a[].b[].c|json.id}", `{"id":1,"a":[{"b":{"0":{"c":42}}}]}`, "ambiguous"},
		{"{json.a[].b[].c|json.id}", `{"id":1,"a":{"0":{"b":{"0":{"c":42}}}}}`, "ambiguous"},
		{"{json.items[].a|json.items[].b|json.id}", `{"id":1,"items":{"0":{"b":42}}}`, "ambiguous"},
		{"{json.items[].a|json.items[].b|json.id}", `{"id":1,"items":{"0":{"a":null,"b":42}}}`, "ambiguous"},
		{"{json.items[].a|json.items[]|json.id}", `{"id":1,"items":{"0":42}}`, "ambiguous"},

		{"{json.data[].id|json.data.id}", `{"data":{"id":7}}`, "7"},
		{"{json.data[].id|json.data.id}", `{"data":{"id":7,"customer":{"name":"x"},"lines":[{"id":8}]}}`, "7"},
		{"{json.data[].id|json.data.id}", `{"data":[{"id":7},{"id":8}]}`, "7 8"},
		{"{json.items[]|json.id}", `{"id":1,"items":{"0":{"x":42},"1":[],"2":null}}`, "1"},
		{"{json.items[].id|json.id}", `{"id":1,"items":{"0":{"id":{}}}}`, "1"}, // as if it were a list, it has no value
		{"{json.items[].a|json.items[].b|json.id}", `{"id":1,"items":{"0":{"c":42}}}`, "1"},
		{"{json.a[].b[].c|json.id}", `{"id":1,"a":[{"b":{"c":42}}]}`, "1"},
		{"{json.items[].id:int64}", `{"items":{}}`, "missing"},
		{"{json.items[].id&json.data.items.0.id}", `{"items":[{"id":1},{"id":2}],"data":{"items":{"0":{"id":3}}}}`, "1 2 3"},
	} {
		if got := keysFor(t, c.template, withBody(jsonType, c.body)); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.template, c.body, got, c.want)
		}
	}
}

// PHP, Express and node's querystring read 1,000 fields of a form or query, and leave out the rest. Express counts empty ones.
func TestMoreFieldsThanReadersTake(t *testing.T) {
	t.Parallel()
	const refused = "refused: key part {NAME}: form or query has more than 1000 fields"
	for _, c := range []struct{ text, want string }{
		{"id=43&" + strings.Repeat("x&", 998) + "customer=99", "99"},
		{"id=43&" + strings.Repeat("x&", 999) + "customer=99", refused},
		{"id=43&" + strings.Repeat("&", 998) + "customer=99", "99"},
		{"id=43&" + strings.Repeat("&", 999) + "customer=99", refused},
		{"id=43" + strings.Repeat("&", 50_000), refused},
	} {
		query := httptest.NewRequest(http.MethodPost, "/?"+c.text, nil)
		for name, r := range map[string]*http.Request{"query.customer|query.id": query, "form.customer|form.id": withBody(formType, c.text)} {
			if got, want := keysFor(t, "{"+name+"}", r), strings.Replace(c.want, "NAME", name, 1); got != want {
				t.Errorf("%s of %.20s…: %s, want %s", name, c.text, got, want)
			}
		}
	}
}

// Members and elements on the way to a field are looked at, and no others.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	members, elements := strings.Repeat(`,"a":1`, 4_999), strings.Repeat(",1", 20_000)
	const refused = "refused: key part {NAME}: body has more than 5000 members or elements on the way to a field"
	for _, c := range []struct{ name, body, want string }{
		{"body.id", `{"id":1` + members + `}`, "1"},
		{"body.id", `{"id":1,"a":1` + members + `}`, refused},
		{"body.id", `{"id":1,"a":{"a":1` + members + `,"b":[1` + elements + `]}}`, "1"},
		{"body.id|header.Content-Type", `[1` + elements + `]`, "application%2Fjson"},
		{"json.0.id", `[{"id":1}` + elements + `]`, refused},
		{"json.items[]", `{"items":[1` + elements + `]}`, refused},
	} {
		if got, want := keysFor(t, "{"+c.name+"}", withBody(jsonType, c.body)), strings.Replace(c.want, "NAME", c.name, 1); got != want {
			t.Errorf("%s of %.20s…: %s, want %s", c.name, c.body, got, want)
		}
	}
}

// A long name may be that of the field: PHP trims spaces and brackets, and programs in C end it at a NUL.
func TestLongNames(t *testing.T) {
	t.Parallel()
	spaces, nul := strings.Repeat("+", 5_000)+"id=43", "id%00"+strings.Repeat("x", 5_000)+"=43"
	brackets := strings.Repeat("[", 5_000) + "id=43"
	for _, text := range []string{spaces, brackets, nul} {
		beside := withBody(formType, "id=42")
		beside.URL.RawQuery = text
		if got := keysFor(t, "{body.id}", beside); got != "ambiguous" {
			t.Errorf("a form next to the query %.20s…: %s", text, got)
		}
		beside = withBody(formType, text)
		beside.URL.RawQuery = "id=42"
		if got := keysFor(t, "{query.id}", beside); got != "ambiguous" {
			t.Errorf("a query next to the form %.20s…: %s", text, got)
		}
	}
}

// Texts of JSON may be long, with an equals sign in them: who reads them as a form trims nothing.
func TestLongTextsOfJSON(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5_000)
	var many strings.Builder
	for i := range 17 {
		fmt.Fprintf(&many, "&id=%d", i)
	}
	const tooMany = "refused: key part {body.id}: more than 16 different values"
	for body, want := range map[string]string{
		`{"id":1,"x":"` + long + `=2"}`:                          "1",
		`{"id":1,"x":"` + long + `=2&id=42&` + long + `=3"}`:     "1 42",
		`{"id":1,"x":"` + long + `=2` + many.String() + `&"}`:    tooMany, // the key of one of them would be missing
		`{"id":1,"x":"&ID=%ff` + many.String() + `&ID=%ff&"}`:    tooMany,
		`{"id":1,"x":"` + many.String() + `&id=` + long + `&"}`:  tooMany,
		`{"id":1,"x":"&id=` + long + many.String() + `&y=z&"}`:   tooMany,
		`{"id":1,"x":"` + strings.Repeat(long+`=2&`, 100) + `"}`: "1",
	} {
		if got := keysFor(t, "{body.id}", withBody(jsonType, body)); got != want {
			t.Errorf("%.30s… of %d bytes: %s, want %s", body, len(body), got, want)
		}
	}
}

// JavaScript and Python write a text that was cut within an emoji with half of a pair of surrogates, and read it, too. That is no
// reason to refuse a request, unless the half is in a field: some readers put another character in its place, or nothing.
func TestHalvesOfPairs(t *testing.T) {
	t.Parallel()
	const refused = "refused: key part {json.id}: not valid UTF-8, or with a character that controls, is private, or is newer than Unicode 15"
	const notJSON = "refused: key part {json.id}: body is not valid JSON, in UTF-8 without a byte order mark"
	for _, c := range []struct{ body, want string }{
		{`{"id":42,"text":"ab\ud83d"}`, "42"},
		{`{"text":"\udE00","id":42,"x\ud83d":{"\ud83d":["\ud83d"]}}`, "42"},
		{`{"id":"\ud83d\ude00"}`, "%F0%9F%98%80"},
		{`{"id":"42\ud83d"}`, refused},
		{`{"id":"\ude00\ud83d"}`, refused},
		{`{"id":"42\ufffd"}`, refused}, // what Go reads
		{`{"id\ud83d":42}`, "ambiguous"},
		{`{"id":1,"\ud83dI\ud83dd":42}`, "ambiguous"},
		{"{\"id\":42,\"text\":\"ab\xed\xa0\xbd\"}", notJSON},
		{"{\"id\":42,\"text\":\"ab\xff\"}", notJSON},
		{"{\"id\":42,\"text\xff\":1}", notJSON},
	} {
		if got := keysFor(t, "{json.id}", withBody(jsonType, c.body)); got != c.want {
			t.Errorf("%q: %s, want %s", c.body, got, c.want)
		}
		form := withBody(formType, "x=1&payload="+url.QueryEscape(c.body))
		if got, want := keysFor(t, "{payload.id}", form), strings.ReplaceAll(c.want, "json.id", "payload.id"); got != want {
			t.Errorf("%q in a form: %s, want %s", c.body, got, want)
		}
	}
}

// NFKC makes 33 bytes of the three of U+FDFA, and a key 99. Headers have no limit but that of the server, 1 MiB.
func TestMemoryOfLongValues(t *testing.T) {
	const size = 1 << 20
	long := strings.Repeat("\ufdfa", size/3)
	for template, r := range map[string]*http.Request{
		"{header.X}":  {Header: http.Header{"X": {long}}},
		"{cookie.id}": {Header: http.Header{"Cookie": {"id=1; " + long + "=1"}}},
		"{host}":      {Host: long},
		"{path.1}":    {URL: &url.URL{Path: "/orders/" + long}},
		"{path.2}":    {URL: &url.URL{Path: "/orders/42/" + long + ";x"}},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := keysFor(t, template, r)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; !strings.HasPrefix(got, "refused") || taken > 16*size {
			t.Errorf("%s: %.50s with %d bytes for each of the value, want it to be refused with less than 16", template, got, taken/size)
		}
	}
}

package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const (
	jsonType = "application/json"
	formType = "application/x-www-form-urlencoded"
)

func withBody(contentType, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// keysFor returns the keys of a request, or what is wrong with it.
func keysFor(t *testing.T, template string, r *http.Request) string {
	t.Helper()
	parsed, err := middleware.ParseTemplate(template, middleware.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := parsed.Keys(r)
	switch {
	case errors.Is(err, middleware.ErrMissingKey):
		return "missing"
	case errors.Is(err, middleware.ErrAmbiguousKey):
		return "ambiguous"
	case err != nil:
		return "refused: " + err.Error()
	}
	return strings.Join(keys, " ")
}

func TestKeyOfJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, body, want string }{
		{"e:{body.data.object.id}", `{"data":{"object":{"id":"evt_1","x":[{}]}},"id":2}`, "e:evt_1"},
		{"{body.items.0.id}", `{"items":[{"id":7},{"id":8}]}`, "7"},
		{"{body.items.1.id}", `{"items":[{"id":7},{"id":8}]}`, "8"},
		{"{body.items.01.id}", `{"items":[{"id":7},{"id":8}]}`, "missing"},
		{"{body.items.2.id}", `{"items":[{"id":7},{"id":8}]}`, "missing"},
		{"{body.0}", `["a"]`, "a"},
		{"{body.0}", `{"0":"a"}`, "a"},
		{`{body.a\.b}`, `{"a.b":1,"a":{"b":2}}`, "1"},
		{"{body.id}", ` {"id":"a:b\u00e9"} `, "a%3Abe"},
		{"{body.id}", `{"\u0069d":1}`, "1"},
		{"{body.id}", `{"id":true}`, "true 1"},

		{"{body.id}", `{"id":9007199254740993}`, "9007199254740993 9007199254740992"},
		{"{body.id}", `{"id":-0.5}`, "-0.5 0 -1"},
		{"{body.id}", `{"id":42.0}`, "42"},
		{"{body.id}", `{"id":4.2e1}`, "42"},
		{"{body.id}", `{"id":42E0}`, "42"},
		{"{body.id}", `{"id":1.50}`, "1.5 1 2"},
		{"{body.id}", `{"id":-0}`, "0"},
		{"{body.id}", `{"id":42.00000000000000000001}`, "42"}, // as every reader rounds it
		{"{body.id}", `{"id":1e400}`, "refused"},
		{"{body.id:int64}", `{"id":9007199254740993}`, "9007199254740993"},
		{"{body.id:int}", `{"id":9007199254740993}`, "refused"},
		{"{body.id:int}", `{"id":42.0}`, "42"},
		{"{body.id:int}", `{"id":"42"}`, "42"},
		{"{body.id:int}", `{"id":"042"}`, "refused"},
		{"{body.id:int}", `{"id":true}`, "refused"},
		{"{body.items[].id:int}", `{"items":[{"id":1},{"id":"x"}]}`, "refused"},
		{"{body.a:int|body.id}", `{"id":"x"}`, "x"},
		{"{body.a:int|body.id}", `{"a":"y","id":"x"}`, "refused"}, // it must not fall back to the next one
		{"{json.id}", `{"id":"x"}`, "x"},
		{"{form.id}", `{"id":"x"}`, "refused"},

		// A form to readers that ignore the Content-Type.
		{"{body.id}", `{"id":1,"x":"&id=42&"}`, "1 42"},
		{"{body.id}", `{"id":1,"x":"&id=42&id=043&"}`, "1 42 43"},
		{"{body.id}", `{"id":1,"x":"&%69d=%34%32;"}`, "1 42"},
		{"{body.id}", `{"x":"&id=42&"}`, "ambiguous"},
		{"{body.b|body.id}", `{"id":1,"x":"&b=42&"}`, "1 42"},
		{"{json.id}", `{"id":1,"x":"&id=42&"}`, "1"},
		{"{body.shop}:{body.id}", `{"shop":7,"id":1,"x":"&id=42&shop=8&"}`, "7:1 7:42 8:1 8:42"},

		{"{body.id}", `{}`, "missing"},
		{"{body.id}", `{"id":null}`, "missing"},
		{"{body.id}", `{"id":""}`, "missing"},
		{"{body.id.x}", `{"id":1}`, "missing"},
		{"{body.id}", `"id"`, "missing"},
		{"{body.id}", ``, "missing"},
		{"{body.id}", `{"id":{}}`, "refused"},
		{"{body.id}", `{"id":["a"]}`, "refused"},
		{"{body.id}", `{"id":"` + strings.Repeat("x", 4097) + `"}`, "refused"},

		{"{body.id}", `{"id":1,"id":2}`, "ambiguous"},
		{"{body.id}", `{"id":1,"id":1}`, "ambiguous"},
		{"{body.id}", `{"id":1,"\u0069d":2}`, "ambiguous"},
		{"{body.id}", `{"id":1,"id\u0000":2}`, "ambiguous"}, // json-c takes the 2
		{"{body.id}", `{"id\u0000x":2}`, "ambiguous"},
		{"{body.a.id}", `{"a":{"id":1},"a\u0000":{"id":2}}`, "ambiguous"},
		{"{body.a.id}", `{"a":{"id":1,"i\u0000d":2}}`, "ambiguous"},
		{"{body.id}", `{"id":1,"x":{"y\u0000":2}}`, "1"}, // not on the path
		{"{body.id}", `{"id":1,"ID":2}`, "ambiguous"},    // encoding/json takes the 2
		{"{body.id}", `{"Id":1}`, "ambiguous"},
		{"{body.key}", `{"\u212aey":1}`, "ambiguous"}, // the Kelvin sign
		{"{body.a.id}", `{"a":{"id":1},"a":{}}`, "ambiguous"},
		{"{body.a.id}", `{"a":{"id":1},"A":5}`, "ambiguous"},
		{"{body.id}", `{"x":{"y":1,"y":2},"y":1,"y":2,"id":3}`, "3"}, // not on the path

		{"{body.id}", `{"id":1} {"id":2}`, "refused"},
		{"{body.id}", `{"id":1}x`, "refused"},
		{"{body.id}", `{"id":1`, "refused"},
		{"{body.id}", `{"id":1,}`, "refused"},
		{"{body.id}", `{"id":01}`, "refused"},
		{"{body.id}", `{'id':1}`, "refused"},
		{"{body.id}", "\xef\xbb\xbf" + `{"id":1}`, "refused"},
		{"{body.id}", "{\"id\":1,\"x\":\"\xff\"}", "refused"},
		{"{body.id}", `{"id":"\ud800"}`, "refused"},
		{"{body.id}", `{"id":1,"x":` + strings.Repeat("[", 999) + strings.Repeat("]", 999) + `}`, "1"},

		{"p:{body.items[].id}", `{"items":[{"id":"b"},{"id":"a"},{"id":"b"}]}`, "p:b p:a"},
		{"p:{body.items[]}", `{"items":[1,2]}`, "p:1 p:2"},
		{"p:{body.[].id}", `[{"id":1},{"id":2}]`, "p:1 p:2"},
		{"{body.shop}:{body.a[].b[].c}", `{"a":[{"b":[{"c":1}]},{"b":[{"c":2},{"c":3}]}],"shop":"s"}`, "s:1 s:2 s:3"},
		{"{body.items[].id}", `{"items":[]}`, "missing"},
		{"{body.items[].id}", `{"items":{"id":1}}`, "missing"},
		{"{body.items[].id}", `{"items":[{"id":1},{}]}`, "refused"},
		{"{body.items[].id}", `{"items":[{"id":1},{"id":null}]}`, "refused"},
		{"{body.items[].id}", `{"items":[{},{"id":null}]}`, "missing"},
		{"{body.items[].id|body.id}", `{"items":[{},{}],"id":9}`, "9"},
		{"{body.items[].id|body.id}", `{"items":[{"id":1},{}],"id":9}`, "refused"}, // it must not be served without the key of 1
		{"{body.items[].id|header.Content-Type}", `{"items":[{"id":1},{}]}`, "refused"},
		{"{body.a[].b[].c}", `{"a":[{"b":[{"c":1}]},{"b":[]}]}`, "refused"},

		{"{body.items[].a|body.items[].b|body.c}", `{"items":[{"b":1},{"a":2,"b":3},{"a":null,"b":4},{"a":2}],"c":9}`, "1 2 4"},
		{"{body.items[].a|body.items[].b|body.c}", `{"items":[{"b":1},{"a":2},{"c":3}],"c":9}`, "refused"},
		{"{body.items[].a|body.items[].b|body.c}", `{"items":[{},5,[]],"c":9}`, "9"},
		{"{body.items[].a|body.items[].b}", `{"items":[{"b":1},{"a":2,"a":3,"b":4}]}`, "ambiguous"},
		{"{body.items[].a|body.items[].b}", `{"items":[{"b":1},{"a":{},"b":4}]}`, "refused"},
		{"{body.x[].y[].a|body.x[].y[].b.c}", `{"x":[{"y":[{"a":1},{"b":{"c":2}}]},{"y":[{"b":{"c":3}}]}]}`, "1 2 3"},
		{"{body.items[].id|body.items[]}", `{"items":[{"id":1},2]}`, "1 2"},
		{"{body.items[].a|body.others[].b}", `{"items":[{"b":1}],"others":[{"b":2}]}`, "2"},
		{"{body.items[].id}", `{"items":[{"id":1},{"id":[]}]}`, "refused"},
		{"{body.items[]}", `{"items":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,16,1]}`, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"},
		{"{body.items[]}", `{"items":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}`, "refused"},

		{"{body.data.object.customer|body.id}", `{"id":"evt","data":{"object":{"customer":"cus"}}}`, "cus"},
		{"{body.data.object.customer|body.id}", `{"id":"evt","data":{"object":{"customer":null}}}`, "evt"},
		{"{body.data.object.customer|body.id}", `{"id":"evt"}`, "evt"},
		{"{body.data.object.customer|body.id}", `{}`, "missing"},
		{"{body.a|body.id}", `{"a":1,"a":2,"id":3}`, "ambiguous"}, // it must not fall back to the next one
		{"{body.c.id|body.c}", `{"c":{"id":1}}`, "1"},
		{"{body.c.id|body.c}", `{"c":2}`, "2"},
		{"{body.a[]|body.b}", `{"a":[],"b":2}`, "2"},
		{"{header.X|body.id}", `{"id":1}`, "1"},
		{"{body.id|header.Content-Type}", `{}`, "application%2Fjson"},
	} {
		got := keysFor(t, c.template, withBody(jsonType, c.body))
		if got != c.want && (c.want != "refused" || !strings.HasPrefix(got, "refused: ")) {
			t.Errorf("%s of %.200s: %s, want %s", c.template, c.body, got, c.want)
		}
	}
}

func TestKeyOfForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, body, want string }{
		{"{body.CallSid}", "From=%2B1&CallSid=CA1", "ca1"},
		{"{body.a}", "a=1+2%263", "1%202%263"},
		{"{body.a.b}", "a.b=1", "1"},
		{"{body.a}", "b=1", "missing"},
		{"{body.a}", "a=", "missing"},
		{"{body.a}", "a", "missing"},
		{"{body.a|body.b}", "b=1", "1"},
		{"{body.a}", "a=1&a=2", "ambiguous"},
		{"{body.a}", "a=1&a=1", "ambiguous"},
		{"{body.a}", "a=&a=1", "ambiguous"},
		{"{body.a}", "a=1&%61=2", "ambiguous"},
		{"{body.a}", "a=1&A=2", "ambiguous"},
		{"{body.a}", "a=1&a[]=2", "ambiguous"},
		{"{body.a}", "a=1&a[b]=2", "ambiguous"},
		{"{body.a}", "a=1&+a=2", "refused"},
		{"{body.a}", "a=1&a%00b=2", "refused"},
		{"{body.a_b}", "a_b=1&a.b=2", "ambiguous"},
		{"{body.a}", "a=1&ab=2", "1"},
		{"{body.a}", "a=1;a=2", "refused"},
		{"{body.a}", "a=%zz", "refused"},
		{"{body.a}", "a=1&b=%", "refused"},
		{"{body.a}", "a=1&b=%4", "refused"},
		{"{body.a}", "a=1&b=%4&1", "refused"},
		{"{body.a}", "a=%ff", "refused"},
		{"{body.a[]}", "a=1&a=2&b=3", "1 2"},
		{"{body.a[]}", "a[]=1&a=2&a[]=1", "1 2"},
		{"{body.a[]}", "a[0]=1&a=2", "1 2"},
		{"{body.a[]}", "a=1&a=", "refused"},
		{"{body.a}", "x&[a]=2", "refused"},
		{"{body.a}", "a=1&[a]=2", "refused"},
		{"{body.a}", "x&[a][b]=2", "refused"},
		{"{body.a_b}", "a_b=1&a[b=2", "ambiguous"}, // PHP takes the 2
		{"{body.a_b}", "a_b=1&a%5Bb.c=2", "1"},
		{"{body.a}", "&&&a=1&&", "1"},
		{"{body.a}", "a=1&a]=42", "ambiguous"},
		{"{body.a}", "a=1&]a=42", "refused"},
		{"{body.a}", "a=1&[]a=42", "refused"},
		{"{body.a}", "x&[]a=42", "refused"}, // it must not be missing
		{"{body.a}", "a=42%00", "42"},
		{"{body.a}", "a=42+", "42"},
		{"{body.a}", "a=4%002", "refused"},
		{"{body.a}", "a=%D9%A4%D9%A2", "42"}, // Arabic digits, which Python reads
		{"{body.a}", "a=042", "42"},
		{"{body.a}", "a=4_2", "42"},
		{"{body.a}", "a=4__2", "42"},
		{"{body.a:int}", "a=042", "refused"},

		{"{body.order.id}", "order.id=42", "42"},
		{"{body.order.id}", "order[id]=42", "42"},
		{"{body.order.id}", "order%5Bid%5D=42", "42"},
		{"{body.order.id}", "order.id=1&order[id]=42", "ambiguous"},
		{"{body.order.id}", "Order[id]=42", "ambiguous"},
		{"{body.order.id}", "order[id][]=42", "ambiguous"},
		{"{body.order.id}", "order[ id]=42", "ambiguous"},
		{"{body.order.id}", "order[id]x=42", "ambiguous"},
		{"{body.order.id}", "x&[order][id]=42", "refused"},
		{"{body.order.id}", "order.id]x=42", "ambiguous"}, // order.id to Koa
		{"{body.order.id}", "order_id=42", "ambiguous"},   // order.id to PHP
		{"{body.id}", ".id[0]=42", "ambiguous"},           // a list to Koa, as are the next three
		{"{body.id}", "id.0=42", "ambiguous"},
		{"{body.order.id}", ".order[id][1]=42", "ambiguous"},
		{"{body.order.id}", "order.id.0=42", "ambiguous"},
		{"{body.id}", "id.type=x&id=42", "42"},
		{"{body.order.id}", "order[name]=x", "missing"},
		{"{body.order_id}", "order_id=1&order[id]=2", "ambiguous"},
		{"{body.a_b.c}", "a.b[c]=1", "ambiguous"},
		{"{body.items.0.id}", "items[0][id]=1&items[1][id]=2", "1"},
		{"{body.items.0.id}", "items[][id]=1", "ambiguous"},
		{"{body.items[].id}", "items[][id]=1&items[][id]=2", "1 2"},
		{"{body.items[].id}", "items[0][id]=1&items[7][id]=2&items[8][name]=3", "1 2"},
		{"{body.items[].a|body.items[].b}", "items[0][a]=1&items[1][b]=2", "1 2"},
		{"{form.a}", "a=1", "1"},
		{"{json.a}", "a=1", "refused"},

		// JSON has other values: {"a":1,"x":"&a=2&"}
		{"{body.b|body.a}", `{"a":1,"x":"&a=2&"}`, "refused"},
		{"{body.a}", ` {"&a=2`, "refused"},
		{"{body.a}", "\t\r\n[0]&a=2", "refused"},
		{"{body.a}", `"&a=2&"`, "refused"},
		{"{body.a}", "\ufeff{&a=2", "refused"},
		{"{body.a}", "+%7B&a=2", "refused"},
		{"{body.a}", "%20%0a%EF%BB%BF%22&a=2", "refused"},
		{"{body.a}", "x={&a=2", "2"},
		{"{body.a}", `/*&a=1&*/{"a":42}`, "refused"},
		{"{body.a}", `//&a=1&` + "\n" + `{"a":42}`, "refused"},
	} {
		got := keysFor(t, c.template, withBody(formType, c.body))
		if got != c.want && (c.want != "refused" || !strings.HasPrefix(got, "refused: ")) {
			t.Errorf("%s of %s: %s, want %s", c.template, c.body, got, c.want)
		}
	}
}

func BenchmarkKeyOfForm(b *testing.B) {
	template, err := middleware.ParseTemplate("{body.a|body.b|body.c|body.d|body.id}", middleware.Placeholder)
	if err != nil {
		b.Fatal(err)
	}
	for name, filling := range map[string]string{"empty": "&", "short": "x&", "named": "a.b%5B", "value": "%41"} {
		b.Run(name, func(b *testing.B) {
			body := "id=1&x=" + strings.Repeat(filling, 1<<20/len(filling)-8)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				_, _ = template.Key(withBody(formType, body)) // too many fields may be an error
			}
		})
	}
}

func TestBodyFormats(t *testing.T) {
	t.Parallel()
	const bad = "refused: key part {body.id}: body "
	const parameter = "refused: key part {body.id}: Content-Type has a charset other than utf-8, or"
	for _, c := range []struct {
		contentType, body string
		headers           []string
		want              string
	}{
		{"application/json; charset=UTF-8", `{"id":1}`, nil, "1"},
		{"application/json;charset=utf8", `{"id":1}`, nil, "1"},
		{formType + "; charset=UTF8", "id=1", nil, "1"},
		{"application/cloudevents+json", `{"id":1}`, nil, "1"},
		{"APPLICATION/JSON", `{"id":1}`, nil, "1"},
		{formType + "; charset=utf-8", "id=1", nil, "1"},
		{jsonType, `{"id":1}`, []string{"Content-Encoding", "identity"}, "1"},
		{jsonType, `{"id":1}`, []string{"Content-Encoding", "gzip"}, bad + "has a Content-Encoding"},
		{jsonType, `{"id":1}`, []string{"Content-Encoding", "", "Content-Encoding", "br"}, bad + "has a Content-Encoding"},
		{"application/json; charset=utf-16", `{"id":1}`, nil, parameter},
		{"application/json; x=urlencoded", `{"id":1}`, nil, parameter},
		{formType + "; x=multipart; boundary=b", "id=1", nil, parameter},
		{formType + "; charset=utf-8; charset=utf-8", "id=1", nil, parameter},
		{"multipart/form-data; boundary=x", "x", nil, bad + "is neither"},
		{"text/plain", `{"id":1}`, nil, bad + "is neither"},
		{"", `{"id":1}`, nil, bad + "is neither"},
		{jsonType, `{"id":1}`, []string{"Content-Type", formType}, "refused: key part {body.id}: Content-Type is given more than once"},
	} {
		if got := keysFor(t, "{body.id}", withBody(c.contentType, c.body, c.headers...)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s, %s: %s, want %s", c.contentType, c.headers, got, c.want)
		}
	}
	if got := keysFor(t, "{body.id|header.X}", httptest.NewRequest(http.MethodGet, "/", nil)); got != "missing" {
		t.Errorf("without a body: %s", got)
	}
}

// What honest clients write behind application/json is no reason to refuse a body; what some reader takes for another type is.
func TestContentTypesOfJSON(t *testing.T) {
	t.Parallel()
	body := `{"id":42,"name":"José"}`
	for _, media := range []string{jsonType, "application/vnd.api+json", "application/fhir+json", "Application/JSON"} {
		for _, parameters := range []string{"", ";", "; ", ";charset=utf-8", "; charset=\"utf-8\"", "; charset=UTF8;", ";odata.metadata=minimal", ";odata.metadata=minimal;odata.streaming=true;IEEE754Compatible=false;charset=utf-8",
			`; profile="https://example.com/a b;c"`, `; ext="https://jsonapi.org/ext/atomic https://x.example"`, "; fhirVersion=4.0", "; version=1", ";v=2", "; api-version=2026-01-01", "; type=entry", ";q=0.9", "; boundary=x", "; indent=4; charset=utf-8"} {
			if got := keysFor(t, "{json.id}", withBody(media+parameters, body)); got != "42" {
				t.Errorf("%s: %s", media+parameters, got)
			}
		}
		for _, parameters := range []string{";charset=utf-16", "; charset=latin1", ";charset=utf-8;charset=utf-16", ";charset=utf-8; charset=utf-8", "; charset*=utf-16", "; x=charset=utf-16", `; x=";charset=utf-16"`, "; charset =utf-16",
			"; Charset=UTF-16", "; x=urlencoded", "; x=multipart/form-data", "; x=form-data; boundary=b", ";a=octet-stream", ", " + formType, ";x=y, text/xml", ";x=text/plain", ";x=\u00e9", ";charset=us-ascii"} {
			if got := keysFor(t, "{json.id}", withBody(media+parameters, body)); !strings.HasPrefix(got, "refused: ") {
				t.Errorf("%s: %s", media+parameters, got)
			}
		}
	}
	for _, media := range []string{formType + ", application/a+json", formType + "+json", "multipart/form-data+json", "text/plain, a/b+json", formType + " application/a+json", "application/x\tapplication/a+json", "application/a\u00e9+json"} {
		if got := keysFor(t, "{json.id}", withBody(media, body)); !strings.HasPrefix(got, "refused: ") {
			t.Errorf("%s: %s", media, got)
		}
	}
	if got := keysFor(t, "{json.id}", withBody(jsonType+"; charset=us-ascii", `{"id":42}`)); got != "42" {
		t.Errorf("ASCII that is declared: %s", got)
	}
	if got := keysFor(t, "{form.id}", withBody(formType+";", "id=42")); got != "42" {
		t.Errorf("a form with a semicolon: %s", got)
	}
}

// A rule may know better than the Content-Type what a body is.
func TestBodyFormatOfRule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ format, contentType, body, want string }{
		{"json", "text/plain; charset=UTF-8", `{"MessageId":"42"}`, "42"}, // of SNS
		{"json", "", `{"MessageId":"42"}`, "42"},
		{"json", "text/plain; charset=utf-16", `{"MessageId":"42"}`, "refused"},
		{"json", formType, `{"MessageId":"42"}`, "42"},
		{"json", "multipart/form-data; boundary=b", "--b", "refused"},
		{"form", "text/plain", "MessageId=42", "42"},
		{"form", "text/plain; x=json", "MessageId=42", "refused"},
		{"", "text/plain", `{"MessageId":"42"}`, "refused"},
	} {
		e := middleware.Explain("{body.MessageId}", withBody(c.contentType, c.body), middleware.Rule{BodyFormat: c.format})
		if got := strings.Join(e.Keys, " "); got != c.want && (c.want != "refused" || e.Err == nil) {
			t.Errorf("%s as %q: %s (%v), want %s", c.contentType, c.format, got, e.Err, c.want)
		}
	}
}

func TestSeveralTemplates(t *testing.T) {
	t.Parallel()
	templates := []string{"payer:{body.to}", "payer:{body.from}", "i:{body.items[]}"}
	keys, err := middleware.KeysOf(withBody(jsonType, `{"from":"a","to":"b","items":[2,1]}`), templates...)
	if want := []string{"payer:b", "payer:a", "i:2", "i:1"}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("keys %q, %v, want %q", keys, err, want)
	}
	if _, err := middleware.KeysOf(withBody(jsonType, `{"from":"a","items":[1]}`), templates...); !errors.Is(err, middleware.ErrMissingKey) {
		t.Errorf("without one of the fields: %v", err)
	}
}

func TestBadBodyTemplates(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"{body.}":                                "want the name of a field",
		"{body.a..b}":                            "want the name of a field",
		"{body.a.}":                              "want the name of a field",
		"{body}":                                 "unknown placeholder {body}",
		"{body.a|}":                              "unknown placeholder {}",
		"{body.a[]}:{body.b[]}":                  "only one placeholder may have []",
		"{body.a}{body.b}":                       "nothing separates",
		"{body" + strings.Repeat(".a", 17) + "}": "more than 16 names",
	} {
		if _, err := middleware.ParseTemplate(template, middleware.Placeholder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", template, err, want)
		}
	}
}

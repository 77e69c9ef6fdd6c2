package middleware_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// The cost of 1 MiB of the worst bodies known, and of cookies what is read, for one key and for eight, beside that of plain ones.
func BenchmarkWorst(b *testing.B) {
	const size = 1 << 20
	fill := func(before, unit, after string) string {
		return before + strings.Repeat(unit, (size-len(before)-len(after))/len(unit)) + after
	}
	body := func(kind string) func(text string) *http.Request {
		return func(text string) *http.Request { return withBody(kind, text) }
	}
	cookies := func(text string) *http.Request {
		return &http.Request{Header: http.Header{"Cookie": {text[:64<<10]}}, URL: new(url.URL)} // more are refused
	}
	few := func(unit string) string { return unit + strings.Repeat("i", size/1_000-len(unit)) } // 1,000 of 1 MiB
	some := func(unit string) string { return unit + strings.Repeat("i", 68) }
	one, eight := []string{"F"}, []string{"F"}
	for i := range 7 {
		eight = append(eight, fmt.Sprintf("i%d|F", i))
	}
	for _, c := range []struct {
		name, placeholder, text string
		request                 func(text string) *http.Request
	}{
		{"json/plain", "body.id", fill(`{"id":1,"x":"`, "a", `"}`), body(jsonType)},
		{"json/decorated", "body.id", fill(`{"id":1,"x":"`, strings.Repeat("\ufdfa", 40)+"=1&", `"}`), body(jsonType)},
		{"json/novalues", "body.id", fill(`{"id":1,"x":"`, "i=&", `"}`), body(jsonType)},
		{"json/pairs", "body.id", fill(`{"id":1,"x":"`, "a=1&", `"}`), body(jsonType)},
		{"json/candidates", "body.id", fill(`{"id":1,"x":"`, few("id.")+"=1&", `"}`), body(jsonType)},
		{"json/escaped", "body.id", fill(`{"id":1,"x":"`, strings.Repeat("i%41", 50)+"=1&", `"}`), body(jsonType)},
		{"json/escapes", "body.id", fill(`{"id":1,"x":"`, `\n`, `"}`), body(jsonType)},
		{"json/tokens", "body.id", fill(`{"id":1,"x":[1`, ",1", `]}`), body(jsonType)},
		{"json/objects", "body.id", fill(`{"id":1,"x":[1`, ",{}", `]}`), body(jsonType)},
		{"json/members", "body.id", fill(`{"id":1,"x":{"":1`, `,"":1`, `}}`), body(jsonType)},
		{"json/names", "body.id", fill(`{"id":1`, `,"_`+strings.Repeat("i", 205)+`":1`, `}`), body(jsonType)},
		{"json/dotted", "body.id.id", fill(`{"id":{"id":1}`, `,"id`+strings.Repeat(".", 205)+`":1`, `}`), body(jsonType)},
		{"json/list", "body.items[].id", fill(`{"items":[{"id":1}`, `,{"id":1,"a":"`+strings.Repeat("i", 620)+`"}`, `]}`), body(jsonType)},
		{"form/plain", "body.id", fill("id=1&x=", "a", ""), body(formType)},
		{"form/escapes", "body.id", fill("id=1&x=", "%41", ""), body(formType)},
		{"form/names", "body.id", fill("id=1", "&"+few("ii")+"=", ""), body(formType)},
		{"form/escaped", "body.id", fill("id=1", "&"+strings.Repeat("%69", 400)+"=", ""), body(formType)},
		{"cookies/plain", "cookie.id", fill("id=1; x=", "a", ""), cookies},
		{"cookies/pairs", "cookie.id", fill("id=1", ";"+some("id."), ""), cookies},
		{"cookies/signs", "cookie.id", fill("id=1; x=", some("id.")+"=", ""), cookies},
		{"cookies/words", "cookie.id", fill("id=1; x=", some(" i")+"=", ""), cookies},
		{"cookies/commas", "cookie.id", fill("id=1; ", some(",i."), ""), cookies},
	} {
		for _, keys := range [][]string{one, eight} {
			family, field, _ := strings.Cut(c.placeholder, ".")
			templates := make([]string, len(keys))
			for i, key := range keys {
				templates[i] = fmt.Sprintf("k%d:{%s.%s}", i, family, strings.NewReplacer("|", "|"+family+".", "F", field).Replace(key))
			}
			b.Run(fmt.Sprintf("%s/%d", c.name, len(keys)), func(b *testing.B) {
				for b.Loop() {
					if e := middleware.Explain(templates[0], c.request(c.text), middleware.Rule{Keys: templates[1:]}); e.Err != nil {
						b.Fatal(e.Err)
					}
				}
			})
		}
	}
}

// A body is parsed once for all keys, the ID and the scope of a rule: each name in it costs an allocation.
func TestBodyIsParsedOnce(t *testing.T) {
	body := `{"id":1` + strings.Repeat(`,"long_name":1`, 4_000) + `}`
	cost := func(keys ...string) float64 {
		return testing.AllocsPerRun(3, func() {
			r := withBody(jsonType, body)
			if e := middleware.Explain("a:{body.id}", r, middleware.Rule{Keys: keys, Dedupe: "{body.id}"}); e.Err != nil {
				t.Fatal(e.Err)
			}
		})
	}
	var keys []string
	for i := range 7 {
		keys = append(keys, fmt.Sprintf("b%d:{body.f%d|body.id}", i, i))
	}
	if one, eight := cost(), cost(keys...); eight > 2*one {
		t.Errorf("%.0f allocations with eight keys, %.0f with one", eight, one)
	}
}

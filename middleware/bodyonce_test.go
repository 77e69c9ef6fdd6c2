package middleware_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// The cost of 1 MiB of the worst bodies known, beside that of plain ones.
func BenchmarkWorst(b *testing.B) {
	const size = 1 << 20
	fill := func(before, unit, after string) string {
		return before + strings.Repeat(unit, (size-len(before)-len(after))/len(unit)) + after
	}
	for _, c := range []struct{ name, template, kind, body string }{
		{"json/plain", "{body.id}", jsonType, fill(`{"id":1,"x":"`, "a", `"}`)},
		{"json/decorated", "{body.id}", jsonType, fill(`{"id":1,"x":"`, strings.Repeat("\ufdfa", 40)+"=1&", `"}`)},
		{"json/novalues", "{body.id}", jsonType, fill(`{"id":1,"x":"`, "a=&", `"}`)},
		{"json/tokens", "{body.id}", jsonType, fill(`{"id":1,"x":[1`, ",1", `]}`)},
		{"json/names", "{body.id}", jsonType, fill(`{"id":1`, `,"_":1`, `}`)},
		{"form/plain", "{body.id}", formType, fill("id=1&x=", "a", "")},
		{"form/escapes", "{body.id}", formType, fill("id=1&x=", "%41", "")},
	} {
		b.Run(c.name, func(b *testing.B) {
			t, err := middleware.ParseTemplate("a:"+c.template, middleware.Placeholder)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := t.Keys(withBody(c.kind, c.body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A body is parsed once for all keys, the ID and the scope of a rule: each name in it costs an allocation.
func TestBodyIsParsedOnce(t *testing.T) {
	body := `{"id":1` + strings.Repeat(`,"long_name":1`, 10_000) + `}`
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

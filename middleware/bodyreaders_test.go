package middleware_test

import (
	"net/http"
	"strings"
	"testing"
)

// formPairs returns a text that is n fields of a form.
func formPairs(n int) string { return strings.TrimSuffix(strings.Repeat("a=b&", n), "&") }

// Each pair that a reader of forms finds in JSON or in the query next to a form costs time.
func TestManyFieldsForAnotherReader(t *testing.T) {
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
		{"{body.x.y|body.id}", text(10_001), strings.Replace(refused, "body.id", "body.x.y|body.id", 1)},
		{"{json.id}", text(10_001), "1"},
		{"{body.id}", withBody(jsonType, `{"id":1,"x":"`+strings.Repeat("a&b=&;", 20_000)+`"}`), "1"}, // no values
		{"{body.id}", both(10_000), "1"},
		{"{body.id}", both(10_001), "ambiguous"},
		{"{form.id}", both(10_001), "1"},
	} {
		if got := keysFor(t, c.template, c.request); got != c.want {
			t.Errorf("%s of a body of %d bytes: %s, want %s", c.template, c.request.ContentLength, got, c.want)
		}
	}
}

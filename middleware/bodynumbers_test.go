package middleware_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A list of numbers that readers round has the keys of each number once, however often it stands there.
func TestKeysOfLargeNumbers(t *testing.T) {
	t.Parallel()
	const both = "1234567890123456789 1234567890123456800"
	repeat := func(element string) string {
		return `{"items":[` + strings.TrimSuffix(strings.Repeat(element+",", 16), ",") + `]}`
	}
	var neighbors []string // each even one is what an odd one next to it is rounded to
	for i := range 15 {
		neighbors = append(neighbors, fmt.Sprint(1<<53+i))
	}
	for _, c := range []struct{ template, body, want string }{
		{"{json.items[].id}", repeat(`{"id":1234567890123456789}`), both},
		{"{json.items[].a|json.items[].id}", repeat(`{"id":1234567890123456789}`), both},
		{"{json.items[].id:int64}", repeat(`{"id":1234567890123456789}`), "1234567890123456789"},
		{"{json.items[]}", `{"items":["1234567890123456789",1234567890123456789]}`, both}, // a text isn't rounded, a number is
		{"{json.items[]}", `{"items":[1234567890123456789,"1234567890123456789"]}`, both},
		{"{json.items[]}", `{"items":[1234567890123456789,1234567890123456788]}`, "1234567890123456789 1234567890123456788 1234567890123456800"},
		{"{json.items[]}", `{"items":[` + strings.Join(neighbors, ",") + `]}`, strings.Join(neighbors, " ")},
	} {
		if got := keysFor(t, c.template, withBody(jsonType, c.body)); got != c.want {
			t.Errorf("%s of %.100s: %s, want %s", c.template, c.body, got, c.want)
		}
	}
}

func TestSmallNumbers(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"1e-7":   "0.0000001 0",
		"1e-30":  "0.000000000000000000000000000001 0",
		"1e-31":  "refused: key part {json.id}: number is too large, or too close to 0",
		"-1e-31": "refused: key part {json.id}: number is too large, or too close to 0",
		"0e-99":  "0",
		"1e-400": "0", // as every reader rounds it
	} {
		if got := keysFor(t, "{json.id}", withBody(jsonType, `{"id":`+number+`}`)); got != want {
			t.Errorf("%s: %s, want %s", number, got, want)
		}
	}
}

// Binders read a value as the type that the application declares, without a line of its code: what one of them takes for 42, or for 1, has
// the key of that, and none passes the kind int without it.
func TestTypedBinders(t *testing.T) {
	t.Parallel()
	values := map[string]string{"true": "1", `"0x1"`: "1", "false": "0", "-0.4": "0", "-42.9": "-42", `"-0x2a"`: "-42", `"-#2A"`: "-42"}
	for _, fraction := range []string{"42.9", "42.5", "42.1", "41.5", "41.9", "4.29e1", "429e-1", "42.00000000000000000001", "41.99999999999999999999", "42." + strings.Repeat("9", 400)} {
		values[fraction] = "42" // to Jackson's Long, pydantic 1, Gson and PHP's int; or rounded, to JToken of .NET and SQL
	}
	for _, prefix := range []string{"0x", "0X", "#", "&h", "&H"} { // Fastify's schemas, Spring, ASP.NET
		for _, digits := range []string{"2a", "2A", "02a", "000000000000000000002a"} {
			values[`"`+prefix+digits+`"`], values[`" `+prefix+digits+`\t"`] = "42", "42"
		}
	}
	for _, text := range []string{"0b101010", "0B0101010", "0o52", "0O52", "4 2", " 4 2 ", "4.2e 1", "+4_2"} {
		values[`"`+text+`"`] = "42"
	}
	values["9007199254740993.5"], values[`"0x1fffffffffffff"`] = "9007199254740993", "9007199254740991"
	for value, number := range values {
		r := func() *http.Request { return withBody(jsonType, `{"id":`+value+`}`) }
		for _, template := range []string{"{json.id}", "{json.id:int}"} {
			keys := strings.Fields(keysFor(t, template, r()))
			if !slices.Contains(keys, number) && (keys[0] != "refused:" || template == "{json.id}") {
				t.Errorf("%s of %s: %q, want %s among them", template, value, keys, number)
			}
		}
		if text, err := strconv.Unquote(value); err == nil && value[0] == '"' {
			for _, r := range []*http.Request{keyRequest("/?id=" + url.QueryEscape(text)), withBody(formType, "id="+url.QueryEscape(text))} {
				if got := keysFor(t, "{query.id|form.id}", r); got != number {
					t.Errorf("%q in a form or query: %s, want %s", text, got, number)
				}
			}
		}
	}
	for text, key := range map[string]string{ // larger ones are addresses and hashes
		"0x52908400098527886E0F7030069857D2E4169EE7": "0x52908400098527886e0f7030069857d2e4169ee7",
		"0x20000000000000":                           "0x20000000000000", "0x": "0x", "#": "%23", "#x": "%23x", "0x2g": "0x2g", "0b2": "0b2", "&": "%26", "a0x2a": "a0x2a",
	} {
		if got := keysFor(t, "{json.id}", withBody(jsonType, `{"id":"`+text+`"}`)); got != key {
			t.Errorf("%q: %s, want %s", text, got, key)
		}
	}
}

// What is wrong with one value must not be hidden by an object after it: placeholders with & leave out objects.
func TestObjectsHideNoError(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"id":1,"id":{},"order":2}`,
		`{"id":{},"id":1,"order":2}`,
		`{"items":[1e400,{}],"order":2}`,
		`{"items":[{},1e400],"order":2}`,
	} {
		got := keysFor(t, "{json.id&json.items[]&json.order}", withBody(jsonType, body))
		if got != "ambiguous" && !strings.HasPrefix(got, "refused: ") {
			t.Errorf("%s: %s, want it refused", body, got)
		}
	}
}

package middleware_test

import (
	"fmt"
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
		"1e-7":   "0.0000001",
		"1e-30":  "0.000000000000000000000000000001",
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

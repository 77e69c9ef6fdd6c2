package middleware_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// keysOf parses a template with any placeholders, and returns a function that makes the key of their values, given in the order
// of the placeholders.
func keysOf(text string) (key func(values ...string) (string, error), placeholders int, err error) {
	var current []string
	template, err := middleware.ParseTemplate(text, func(string) (middleware.KeyFunc, error) {
		i := placeholders
		placeholders++
		return func(*http.Request) (string, error) { return current[i], nil }, nil
	})
	return func(values ...string) (string, error) {
		current = values
		return template.Key(nil)
	}, placeholders, err
}

func TestTemplateKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template string
		values   []string
		want     string
	}{
		{"order", nil, "order"},
		{"order:{a}", []string{"42"}, "order:42"},
		{"{a}", []string{"42"}, "42"},
		{"{a}!", []string{"a-._~b"}, "a-._~b!"},
		{"order:{a}", []string{"x:y"}, "order:x%3Ay"},
		{"{a}", []string{" A/b c%ä{}\n"}, "a%2Fb%20c%25a%7B%7D"},
		{"{a}:{b}", []string{"x:y", "z"}, "x%3Ay:z"},
		{"{a}:{b}", []string{"x", "y:z"}, "x:y%3Az"},
		{"{a}-{b}", []string{"x-y", "z_.~"}, "x%2Dy-z_.~"},
		{"-{a}:{b}-", []string{"x-", "-y"}, "-x-:-y-"}, // the text at the ends separates nothing
		{`\{{a}\}\`, []string{"x"}, `{x}\`},
		{`a\b{a}`, []string{"x"}, `a\bx`},
	} {
		key, _, err := keysOf(c.template)
		if err != nil {
			t.Errorf("%q: %v", c.template, err)
			continue
		}
		if got, err := key(c.values...); err != nil || got != c.want {
			t.Errorf("%q of %q: %q, %v, want %q", c.template, c.values, got, err, c.want)
		}
	}
}

func TestTemplateErrors(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"":              "must not be empty",
		"a{b":           `"{" at position 2 is not closed`,
		"a}b":           `"}" at position 2 closes nothing`,
		"{a}}":          `"}" at position 4 closes nothing`,
		`\{a}`:          `"}" at position 4 closes nothing`,
		"{a}{b}":        "nothing separates {a} from {b}",
		"{a}x1%{b}":     "nothing separates {a} from {b}",
		"{a}:{b}{c}":    "nothing separates {b} from {c}",
		"{unknown}":     "no such thing",
		"a:{unknown}:b": "no such thing",
		"{a }":          "a space stands before or after the name",
		"{b| a}":        "a space stands before or after the name",
		"{a :int}":      "a space stands before or after the name",
		"{json.id }":    "a space stands before or after the name",
		"{body. id}":    "a space stands before or after the name",
		"{form.id :id}": "a space stands before or after the name",
	} {
		_, err := middleware.ParseTemplate(template, func(name string) (middleware.KeyFunc, error) {
			if name == "unknown" {
				return nil, errors.New("no such thing")
			}
			return func(*http.Request) (string, error) { return "v", nil }, nil
		})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", template)) {
			t.Errorf("%q: error %v, want the template and %q", template, err, want)
		}
	}
}

func TestTemplateGlobal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"a": true, `\{a\}`: true, "{a}": false, "x:{a}": false} {
		template, err := middleware.ParseTemplate(text, func(string) (middleware.KeyFunc, error) {
			return func(*http.Request) (string, error) { return "v", nil }, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if template.Global() != want {
			t.Errorf("%q: Global is %v", text, !want)
		}
	}
}

func TestTemplateKeyNeedsAllValues(t *testing.T) {
	t.Parallel()
	key, _, err := keysOf("{a}:{b}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = key("x", "")
	var part *middleware.KeyError
	if !errors.Is(err, middleware.ErrMissingKey) || !errors.As(err, &part) || part.Placeholder != "b" {
		t.Errorf("error %v, want ErrMissingKey with the placeholder b", err)
	}
}

var foldKey = sync.OnceValues(func() (*middleware.Template, error) {
	return middleware.ParseTemplate("{header.X}", middleware.Placeholder)
})

// foldOf returns a value as a key has it.
func foldOf(t *testing.T, value string) string {
	template, err := foldKey()
	if err != nil {
		t.Fatal(err)
	}
	folded, err := template.Key(&http.Request{Header: http.Header{"X": {value}}})
	if errors.Is(err, middleware.ErrMissingKey) {
		return ""
	}
	if err != nil {
		return "\x00" + err.Error()
	}
	if folded, err = url.PathUnescape(folded); err != nil {
		t.Fatal(err)
	}
	return folded
}

// TestTemplateIsInjective tries random templates. Their values have few letters, and resemble the template's own text.
func TestTemplateIsInjective(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(letters string, most int) string {
		var text strings.Builder
		for range random.IntN(most + 1) {
			text.WriteByte(letters[random.IntN(len(letters))])
		}
		return text.String()
	}
	parsed := 0
	for range 300 {
		text := pick("a3:-%", 2)
		for i := range 1 + random.IntN(3) {
			text += "{" + string(rune('a'+i)) + "}" + pick("a3:-%/", 3)
		}
		key, n, err := keysOf(text)
		if err != nil {
			continue // nothing separates two of the placeholders
		}
		parsed++
		seen := make(map[string][]string)
		for range 1500 {
			values := make([]string, n)
			for i := range values {
				values[i] = "a:-%3AD2"[random.IntN(8):][:1] + pick("a:-%3AD2F/", 3)
			}
			k, err := key(values...)
			if err != nil {
				t.Fatal(err)
			}
			for i, value := range values {
				values[i] = foldOf(t, value)
			}
			if other, ok := seen[k]; ok && !slices.Equal(other, values) {
				t.Fatalf("seed %d: %q makes %q of %q and of %q", seed, text, k, other, values)
			}
			seen[k] = values
		}
	}
	if parsed < 50 {
		t.Errorf("seed %d: only %d of the templates could be parsed", seed, parsed)
	}
}

// notPlain matches templates whose keys are not the values one after the other: alternatives take one value in place of
// another, {a&b} makes several keys, kinds refuse values, and fields of the body need a request.
var notPlain = regexp.MustCompile(`\{[^}]*[|&:.]`)

func FuzzParseTemplate(f *testing.F) {
	f.Add("order:{path.1}", "a", "", "b", "")
	f.Add("{a}:{b}", "x:y", "z", "x", "y:z")
	f.Add(`\{{a}-%{b}\}`, "x-", "%2D", "x", "-%2D")
	f.Add("{a}{b}", "ab", "c", "a", "bc")
	f.Add("{a", "a", "b", "c", "d")
	f.Add("{&}", "0", "", "0", "")
	f.Add("{a:int}", "x", "", "1", "")
	f.Add("{body.a}", "x", "", "y", "")
	f.Fuzz(func(t *testing.T, text, a, b, c, d string) {
		key, n, err := keysOf(text)
		if err != nil || notPlain.MatchString(text) {
			return
		}
		// placeholders beyond the second have the values of the first two
		values := func(first, second string) (all []string) {
			for i := range n {
				all = append(all, []string{first, second}[i%2])
			}
			return all
		}
		alone, _, err := keysOf("{a}")
		if err != nil {
			t.Fatal(err)
		}
		folded := func(values []string) (all []string, bad bool) { // each value folded by itself
			for _, value := range values {
				k, err := alone(value)
				all, bad = append(all, k), bad || err != nil
			}
			return all, bad
		}
		one, other := values(a, b), values(c, d)
		k1, err1 := key(one...)
		k2, err2 := key(other...)
		one, bad1 := folded(one)
		other, bad2 := folded(other)
		if (err1 != nil) != bad1 || (err2 != nil) != bad2 {
			t.Fatalf("%q: errors %v of %q and %v of %q", text, err1, one, err2, other)
		}
		if err1 == nil && err2 == nil && (k1 == k2) != slices.Equal(one, other) {
			t.Errorf("%q makes %q of %q, and %q of %q", text, k1, one, k2, other)
		}
	})
}

func BenchmarkTemplateKey(b *testing.B) {
	template, err := middleware.ParseTemplate("order:{path.1}:{header.X-Customer}", middleware.Placeholder)
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/orders/4711/pay", nil)
	r.Header.Set("X-Customer", "customer-0815")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := template.Key(r); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCaseOfLetters: letters that differ in case alone make one key, even if they have several lower cases.
func TestCaseOfLetters(t *testing.T) {
	t.Parallel()
	template, err := middleware.ParseTemplate("{header.X}", middleware.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	key := func(letter rune) (string, bool) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X", "x"+string(letter)+"x")
		key, err := template.Key(r)
		return key, err == nil
	}
	for letter := rune(0); letter <= unicode.MaxRune; letter++ {
		next := unicode.SimpleFold(letter)
		if next == letter {
			continue
		}
		if a, ok := key(letter); ok {
			if b, ok := key(next); ok && a != b {
				t.Errorf("%c and %c have the keys %s and %s", letter, next, a, b)
			}
		}
	}
}

// TestLabelsAreNoValues: a value can't be that of an alternative with a name.
func TestLabelsAreNoValues(t *testing.T) {
	t.Parallel()
	id := func(r *http.Request) (string, error) {
		e := middleware.Explain("k", r, middleware.Rule{Dedupe: "{json.id|org=json.org.id}"})
		return e.Delivery, e.Err
	}
	if got, err := id(withBody(jsonType, `{"org":{"id":7}}`)); got != "org=7" || err != nil {
		t.Error(got, err)
	}
	if got, err := id(withBody(jsonType, `{"id":"org\u00007"}`)); err == nil {
		t.Errorf("the ID %q", got)
	}
}

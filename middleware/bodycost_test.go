package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// allocated returns how many bytes it takes to find the keys of a request, if no other test runs beside.
func allocated(template string, r *http.Request) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	middleware.Explain(template, r, middleware.Rule{})
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// A client must not be able to make a small body, or a path, take a lot of memory.
func TestMemoryOfKeys(t *testing.T) {
	list := func(element string) string {
		return `{"items":[` + strings.TrimSuffix(strings.Repeat(element+",", 200_000/(len(element)+1)), ",") + `]}`
	}
	names := func(length int) string { // of letters that become 18
		return "id=42" + strings.Repeat("&"+strings.Repeat("\ufdfa", length/3)+"=x", 200_000/length)
	}
	for _, c := range []struct{ template, contentType, body string }{
		{"{json.items[]}", jsonType, list("1e308")},
		{"{json.items[].id}", jsonType, list(`{"id":1e308}`)},
		{"{json.items[].id|json.items[].x}", jsonType, list(`{"id":1e308}`)},
		{"{json.items[]}", jsonType, list("1e-308")},
		{"{form.id}", formType, names(200_000)},
		{"{form.id}", formType, names(4_000)},
		{"{body.id}", jsonType, `{"id":42,"x":"` + names(4_000) + `"}`},
	} {
		if times := allocated(c.template, withBody(c.contentType, c.body)) / float64(len(c.body)); times > 60 {
			t.Errorf("%s of %.50s…: %.0f times the memory of the body", c.template, c.body, times)
		}
	}
	path := strings.Repeat("/a", 10_000)
	if times := allocated("{path}", httptest.NewRequest(http.MethodPost, path, nil)) / float64(len(path)); times > 100 {
		t.Errorf("a path takes %.0f times its length", times)
	}
}

// JSON is looked through for a form only if the key has a field that may be in one.
func TestOnlyJSONIsRead(t *testing.T) {
	body := `{"id":1,"x":"` + strings.Repeat("&id=1", 5_000) + `"}`
	template, err := middleware.ParseTemplate("{json.id}", middleware.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	if allocations := testing.AllocsPerRun(1, func() {
		if _, err := template.Keys(withBody(jsonType, body)); err != nil {
			t.Error(err)
		}
	}); allocations > 1_000 {
		t.Errorf("%.0f allocations", allocations)
	}
}

// A list that has no keys any more is not looked at for long: to parse 1e-308 takes as long as to read 20,000 bytes.
func TestNumbersAfterABadOne(t *testing.T) {
	for _, path := range []string{"{json.items[].id}", "{json.items[].id|json.items[].x}"} {
		template, err := middleware.ParseTemplate(path, middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		allocations := func(value string) float64 {
			body := `{"items":[{"id":1e400}` + strings.Repeat(`,{"id":`+value+`}`, 1_000) + `]}`
			return testing.AllocsPerRun(5, func() { _, _ = template.Keys(withBody(jsonType, body)) })
		}
		if text, number := allocations(`"1e400"`), allocations("1e400"); number > text+100 { // the error of each costs some
			t.Errorf("%s: %.0f allocations for texts, %.0f for numbers", path, text, number)
		}
	}
}

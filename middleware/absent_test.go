package middleware_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// sent is a request as it comes over the wire.
type sent struct {
	method, query, body string
	types               []string // lines of the header Content-Type
	chunked             bool
}

func (s sent) request() *http.Request {
	r := httptest.NewRequest(s.method, "/?"+s.query, strings.NewReader(s.body))
	r.ContentLength = int64(len(s.body))
	switch {
	case s.chunked:
		r.ContentLength = -1
	case s.body == "":
		r.Body = http.NoBody
	}
	if s.types != nil {
		r.Header["Content-Type"] = s.types
	}
	return r
}

// media is the type as most readers find it, in the first line.
func (s sent) media() string {
	if len(s.types) == 0 {
		return ""
	}
	media, _, _ := strings.Cut(strings.ToLower(s.types[0]), ";")
	return strings.TrimSpace(media)
}

func (s sent) isForm() bool { return s.media() == formType }

func (s sent) isMultipart() bool { return strings.HasPrefix(s.media(), "multipart/") }

// inText reports whether a text has the field as a form.
func inText(text string) bool {
	values, _ := url.ParseQuery(strings.TrimSpace(text))
	return values.Get("id") != ""
}

func (s sent) inMultipart() bool { return s.isMultipart() && strings.Contains(s.body, `name="id"`) }

func (s sent) inJSON() bool {
	var fields map[string]any
	return json.NewDecoder(strings.NewReader(s.body)).Decode(&fields) == nil && fields["id"] != nil
}

// formReaders and jsonReaders are how upstreams look for a field of the body.
var formReaders = map[string]func(s sent) bool{
	"Go's FormValue": func(s sent) bool { return s.request().FormValue("id") != "" },
	"a servlet": func(s sent) bool {
		return inText(s.query) || s.method == http.MethodPost && s.isForm() && inText(s.body)
	},
	"PHP": func(s sent) bool {
		return s.method == http.MethodPost && (s.isForm() && inText(s.body) || s.inMultipart())
	},
	"Rack": func(s sent) bool {
		return inText(s.query) || s.inMultipart() || (s.isForm() || s.method == http.MethodPost && s.media() == "") && inText(s.body)
	},
	"Bottle": func(s sent) bool { return s.inMultipart() || inText(s.body) },
}

var jsonReaders = map[string]func(s sent) bool{
	"any JSON": func(s sent) bool { return s.inJSON() },
	"Rails":    func(s sent) bool { return inText(s.query) || strings.HasSuffix(s.media(), "json") && s.inJSON() },
}

// queryReaders are those of a parameter, which a plain form may have as well. Those that merge another body with the query are known to remain.
var queryReaders = map[string]func(s sent) bool{
	"the query":      func(s sent) bool { return inText(s.query) },
	"Go's FormValue": func(s sent) bool { return !s.isMultipart() && s.request().FormValue("id") != "" },
	"a servlet":      formReaders["a servlet"],
	"Rack":           func(s sent) bool { return !s.isMultipart() && formReaders["Rack"](s) },
}

// A field is absent only if no reader finds it anywhere: in a body of whatever type, in one that is empty or isn't there, or in the query. Otherwise
// on_missing_key would pass a request whose upstream has the value. The exceptions are in docs/keys.md: GET, HEAD and OPTIONS without a body.
func TestAbsentToAllReaders(t *testing.T) {
	t.Parallel()
	both := maps.Clone(formReaders)
	maps.Copy(both, jsonReaders)
	byType := maps.Clone(both)
	delete(byType, "Bottle") // which reads JSON as a form: for such an upstream there is {body.id}
	const multipart = "--b\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n42\r\n--b--\r\n"
	types := [][]string{nil, {""}, {" "}, {formType}, {formType + "; charset=utf-8"}, {strings.ToUpper(formType)}, {jsonType}, {jsonType + ";charset=utf-8"}, {"application/vnd.x+json"}, {"text/json"},
		{"text/plain"}, {"multipart/form-data; boundary=b"}, {"application/octet-stream"}, {formType, jsonType}, {jsonType, formType}, {jsonType + ", " + formType}, {";"}}
	bodies := []string{"", "\r\n", " ", "id=42\r\n", "x=1", "id=", "id=&id=42", `{}`, `{"id":42}`, `{"x":"&id=43&"}`, `null`, `[]`, `[{"id":42}]`, multipart}
	queries := []string{"", "id=42", "id=", "x=1", "id=&id=42", "%69d=42"}
	methods := []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodGet, http.MethodOptions, "REPORT"}
	for text, readers := range map[string]map[string]func(sent) bool{
		"{form.id}": formReaders, "{json.id}": jsonReaders, "{body.id}": both, "{query.id}": queryReaders,
		"{form.id|query.id}": formReaders, "{json.id|form.id}": byType, "{form.id&json.id}": byType, "{query.id|form.id}": formReaders,
	} {
		template, err := middleware.ParseTemplate(text, middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range products(methods, queries, bodies, types) {
			if s.body == "" && text != "{query.id}" && slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, s.method) {
				continue
			}
			if _, err := template.Keys(s.request()); !errors.Is(err, middleware.ErrMissingKey) {
				continue
			}
			for name, finds := range readers {
				if finds(s) {
					t.Errorf("%s is absent, and %s finds it: %+v", text, name, s)
				}
			}
		}
	}
}

func products(methods, queries, bodies []string, types [][]string) (all []sent) {
	for _, method := range methods {
		for _, query := range queries {
			for _, body := range bodies {
				for _, lines := range types {
					all = append(all, sent{method, query, body, lines, false})
					if body == "" {
						all = append(all, sent{method, query, body, lines, true})
					}
				}
			}
		}
	}
	return all
}

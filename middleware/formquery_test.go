package middleware_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A form and the query beside it are one to Tomcat, Rack and PHP's $_REQUEST, whatever the template calls them.
func TestFormBesideQuery(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, query, body, want string }{
		{"{form.id}", "", "id=1", "1"},
		{"{form.id}", "id=1", "id=1", "1"},
		{"{form.id}", "id=01", "id=1", "1"},
		{"{form.id}", "x=2", "id=1", "1"},
		{"{form.id}", "id=2", "id=1", "ambiguous"},
		{"{form.id}", "id=1&id=2", "id=1", "ambiguous"},
		{"{form.id}", "ID=2", "id=1", "ambiguous"},
		{"{form.id}", "id[]=2", "id=1", "ambiguous"},
		{"{form.id}", "i%64=2", "id=1", "ambiguous"},
		{"{form.id}", "x;id=2", "id=1", "ambiguous"},
		{"{form.id}", "id=2", "x=1", "ambiguous"}, // it must not be missing
		{"{form.id}", "", "x=1", "missing"},
		{"{form.order.id}", "order[id]=2", "order.id=1", "ambiguous"},
		{"{form.items[].id}", "items[][id]=2", "items[][id]=1", "ambiguous"},
		{"{json.id|form.id}", "id=2", "id=1", "ambiguous"},
		{"{form.id|json.id}", "id=2", "id=1", "ambiguous"},
		{"{form.id|query.id}", "id=2", "id=1", "ambiguous"},
		{"{form.id|query.id}", "id=2", "x=1", "2"},
		{"{query.id|form.id}", "id=2", "id=1", "ambiguous"},
		{"{query.id|form.id}", "id=2", "x=1", "2"},
		{"{form.a|form.id}", "a=2", "id=1", "ambiguous"},
		{"{form.a|form.id}", "a=1", "id=1", "1"},
		{"{form.a&form.id}", "a=2", "id=1", "ambiguous"},
		{"{form.a&form.id|method}", "a=2", "x=1", "ambiguous"},
		{"{form.a|method}", "a=2", "x=1", "ambiguous"},

		{"{payload.id}", "", "payload=%7B%22id%22:1%7D", "1"},
		{"{payload.id}", "payload=%7B%22id%22:1%7D", "payload=%7B%22id%22:1%7D", "ambiguous"},
		{"{payload.id}", "payload=%7B%22id%22:2%7D", "payload=%7B%22id%22:1%7D", "ambiguous"},
		{"{payload.id}", "Payload[]=%7B%22id%22:2%7D", "payload=%7B%22id%22:1%7D", "ambiguous"},
		{"{payload.id}", "payload=%7B%22id%22:2%7D", "x=1", "ambiguous"},
		{"{payload.id|method}", "payload=%7B%22id%22:2%7D", "x=1", "ambiguous"},
		{"{payload.id}", "id=2", "payload=%7B%22id%22:1%7D", "1"}, // which is another field

		// Without a body only the query has a value.
		{"{form.id}", "id=2", "", "ambiguous"},
		{"{body.id}", "id=2", "", "ambiguous"},
		{"{json.id}", "id=2", "", "ambiguous"},
		{"{payload.id}", "payload=%7B%22id%22:2%7D", "", "ambiguous"},
		{"{form.id|query.id}", "id=2", "", "2"},
		{"{form.id}", "x=2", "", "missing"},
	} {
		r := withBody(formType, c.body)
		if c.body == "" {
			r = httptest.NewRequest(http.MethodPost, "/", nil)
		}
		r.URL.RawQuery = c.query
		if got := keysFor(t, c.template, r); got != c.want {
			t.Errorf("%s of ?%s with %q: %s, want %s", c.template, c.query, c.body, got, c.want)
		}
	}
	if got := keysFor(t, "{form.id}", httptest.NewRequest(http.MethodGet, "/?id=2", nil)); got != "missing" {
		t.Errorf("a GET: %s", got)
	}
}

// Whatever a body is or declares to be, a field that the query has isn't missing: PHP's $_REQUEST, Rack, Laravel and servlets find it there.
// A field that is nowhere is missing, or the body refused.
func TestFieldInTheQueryIsNotMissing(t *testing.T) {
	t.Parallel()
	types := []string{"", jsonType, "application/vnd.x+json", formType, "multipart/form-data; boundary=b", "application/xml", "text/plain", "x/y"}
	bodies := map[string]func(r *http.Request){
		"no body":       func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
		"nil":           func(r *http.Request) { r.Body, r.ContentLength = nil, 0 },
		"empty":         func(r *http.Request) { r.ContentLength = 0 },
		"chunked empty": func(r *http.Request) { r.ContentLength = -1 },
		"{}":            func(r *http.Request) { setBody(r, "{}") },
		`{"id":null}`:   func(r *http.Request) { setBody(r, `{"id":null}`) },
		"null":          func(r *http.Request) { setBody(r, "null") },
		"a=1":           func(r *http.Request) { setBody(r, "a=1") },
		"id=":           func(r *http.Request) { setBody(r, "id=") },
	}
	for _, template := range []string{"{form.id}", "{json.id}", "{body.id}", "{json.id|form.id}", "{form.id&form.other}", "{json.id&json.other}", "{json.id|header.Other}"} {
		for name, give := range bodies {
			for _, contentType := range types {
				ask := func(query string) string {
					r := withBody(contentType, "")
					give(r)
					r.URL.RawQuery = query
					return keysFor(t, template, r)
				}
				if got := ask("id=42"); got != "ambiguous" && !strings.HasPrefix(got, "refused") {
					t.Errorf("%s, %s of type %q, in the query: %s", template, name, contentType, got)
				}
				if got := ask("a=42"); got != "missing" && !strings.HasPrefix(got, "refused") {
					t.Errorf("%s, %s of type %q, nowhere: %s", template, name, contentType, got)
				}
			}
		}
	}
}

func setBody(r *http.Request, text string) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
}

func TestPresetsReadTheQueryBesideAForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ preset, query, body string }{
		{"slack", "channel_id=C2", "team_id=T1&channel_id=C1"},
		{"slack", "team_id=T2", "team_id=T1&channel_id=C1"},
		{"slack", "payload=%7B%22team%22:%7B%22id%22:%22T2%22%7D%7D", "payload=%7B%22team%22:%7B%22id%22:%22T1%22%7D%7D"},
		{"slack", "response_url=b", "team_id=T1&response_url=a"},
		{"adyen", "pspReference=P2", "pspReference=P1&eventCode=CAPTURE"},
		{"adyen", "eventCode=REFUND", "pspReference=P1&eventCode=CAPTURE"},
		{"twilio", "CallSid=CA2", "CallSid=CA1"},
		{"twilio", "ParentCallSid=CA2", "CallSid=CA1"},
		{"github", "payload=%7B%22repository%22:%7B%22id%22:2%7D%7D", "payload=%7B%22repository%22:%7B%22id%22:1%7D%7D"},
		{"standard-webhooks", "data.id=2", "data.id=1"},
	} {
		preset, err := middleware.PresetOf(c.preset)
		if err != nil {
			t.Fatal(err)
		}
		judge := func(query string) string {
			var all []string
			for _, template := range []string{preset.Key, preset.Dedupe} {
				r := withBody(formType, c.body)
				r.URL.RawQuery = query
				all = append(all, keysFor(t, template, r))
			}
			return strings.Join(all, " ")
		}
		if got := judge("source=x"); strings.Contains(got, "ambiguous") {
			t.Errorf("%s of %s: %s", c.preset, c.body, got)
		}
		if got := judge(c.query); !strings.Contains(got, "ambiguous") {
			t.Errorf("%s of ?%s with %s: %s", c.preset, c.query, c.body, got)
		}
	}
}

package e2e

import (
	"net/http"
	"testing"
)

// The upstream may take the query's id for that of the form, so that no lock on the form's would help.
func TestFormBesideQuery(t *testing.T) {
	b := newBackend(t, func() {})
	c := runCaddy(t, caddyfile("", `redlock /pay order:{form.id} {
		on_missing_key pass
	}
	redlock /any order:{form.id|query.id}
	redlock /slack {
		preset slack
	}
	`+b.proxy()))
	const form = "application/x-www-form-urlencoded"
	for _, test := range []struct {
		target, body string
		want         int
	}{
		{"/pay", "id=1", 200},
		{"/pay?id=1&x=2", "id=1", 200},
		{"/pay?id=2", "id=1", 400},
		{"/pay?id=2", "x=1", 400}, // which must not pass
		{"/pay?id=2", "", 400},
		{"/pay?x=2", "", 200},
		{"/any?id=2", "id=1", 400},
		{"/any?id=2", "x=1", 200},
		{"/slack?source=x", "team_id=T1&channel_id=C1", 200},
		{"/slack?channel_id=C2", "team_id=T1&channel_id=C1", 400},
		{"/slack?payload={}", "team_id=T1&channel_id=C1", 400},
	} {
		r := withBody(c.url+test.target, test.body)
		r.Header.Set("Content-Type", form)
		if a := send(t, r); a.status != test.want {
			t.Errorf("POST %s with %q: %d %s, want %d", test.target, test.body, a.status, a.body, test.want)
		}
	}
	r := request(c.url + "/pay?id=2")
	r.Method = http.MethodGet
	requireStatus(t, send(t, r), http.StatusOK)
}

package e2e

import (
	"net/http"
	"testing"
)

// TestKeyHeaderInCaddy: the upstream finds what was locked, and handlers of errors and other clients' headers don't.
func TestKeyHeaderInCaddy(t *testing.T) {
	t.Parallel()
	c := runCaddy(t, caddyfile("", `
		redlock /orders* order:{path.1:int}:{query.part} {
			key_header Redlock-Key
			on_missing_key pass
		}
		@error path /orders/7/*
		error @error 500
		respond "{header.Redlock-Key}{header.redlock_key}"
		handle_errors {
			respond "{header.Redlock-Key}" 500
		}
	`))
	forged := []string{"Redlock-Key", `{"path.1":["43"]}`, "redlock_key", "x"}
	for path, want := range map[string]string{
		"/orders/42/pay?part=A": `{"path.1":["42"],"query.part":["a"]}`,
		"/orders/42/pay":        "",
		"/orders/7/pay?part=a":  "",
	} {
		if a := post(t, c.url+path, forged...); a.body != want || a.status == http.StatusBadRequest {
			t.Errorf("%s: %d %s, want %s", path, a.status, a.body, want)
		}
	}
}

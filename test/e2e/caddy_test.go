package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// The lock is taken after authentication and the directives that change the request, and before all that answer it.
func TestDirectiveOrder(t *testing.T) {
	const authorized = "Basic Ym9iOmNvcnJlY3Q=" // bob:correct
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", `
		respond /respond "{http.redlock.outcome} {http.redlock.key}"
		`+b.proxy()+`
		redlock order:{header.X-Order}
		request_header X-Order {path.0}
		basic_auth {
			bob $2a$04$mKAGVVV4Wb3fru9isPg1fOWnKIIznoqqp.Hu1MX7bDNOAZK8wwXOu
		}
	`))
	if a := post(t, c.url+"/respond", "Authorization", authorized, "X-Order", "client's"); a.body != "acquired order:respond" {
		t.Errorf("respond: status %d, body %q; want it to run with the lock, on the header that was set", a.status, a.body)
	}
	wait := b.holdRequests(t, request(c.url+"/42", "Authorization", authorized))
	requireStatus(t, post(t, c.url+"/42"), http.StatusUnauthorized) // not 423: no lock was asked for
	requireStatus(t, post(t, c.url+"/42", "Authorization", authorized), http.StatusLocked)
	release()
	requireStatus(t, wait()[0], http.StatusOK)
}

func TestPlaceholders(t *testing.T) {
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", `
		log
		log_append lock {http.redlock.outcome}
		header >X-Lock "{http.redlock.outcome} {http.redlock.key} {http.redlock.wait}"
		redlock order:{path.1} {
			wait 100ms
		}
		`+b.proxy()+`
		handle_errors 423 {
			header X-Lock "{http.redlock.outcome} {http.redlock.key} {http.redlock.wait}"
			respond "busy" {err.status_code}
		}
	`))
	wait := b.hold(t, c.url+"/orders/42")
	refused := post(t, c.url+"/orders/42")
	release()
	requireStatus(t, refused, http.StatusLocked)
	if refused.body != "busy" {
		t.Errorf("body %q, want that of handle_errors", refused.body)
	}
	for name, test := range map[string]struct {
		received
		outcome string
		least   float64 // in seconds
	}{
		"served":  {wait()[0], "acquired", 0},
		"refused": {refused, "held", 0.1},
	} {
		lock := append(strings.Fields(test.header.Get("X-Lock")), "", "", "")
		waited, err := strconv.ParseFloat(lock[2], 64)
		if lock[0] != test.outcome || lock[1] != "order:42" || err != nil || waited < test.least || waited > bound.Seconds() {
			t.Errorf("%s: placeholders %q, want %q, order:42 and the wait in seconds", name, lock, test.outcome)
		}
		requireLogLine(t, c, `"lock":"`+test.outcome+`"`)
	}
}

// handle_errors may answer in its own way; Retry-After is set nevertheless.
func TestHandleErrors(t *testing.T) {
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", payRule+b.proxy()+`
		handle_errors {
			respond "{http.error.status_code} {http.redlock.outcome}" 503
		}
	`))
	wait := b.hold(t, c.url+"/orders/42/pay")
	a := post(t, c.url+"/orders/42/pay")
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireStatus(t, a, http.StatusServiceUnavailable) // with Retry-After
	if a.body != "423 held" {
		t.Errorf("body %q, want that of handle_errors", a.body)
	}
}

// Without masters the locks are kept in the process's memory, and the log warns of it.
func TestNoMasters(t *testing.T) {
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile("", payRule+b.proxy()))
	requireLogLine(t, c, `"level":"warn"`, "no masters are configured", "this process's memory")
	wait := b.hold(t, c.url+"/orders/42/pay", c.url+"/orders/43/pay")
	requireStatus(t, post(t, c.url+"/orders/42/pay"), http.StatusLocked)
	release()
	for _, a := range wait() {
		requireStatus(t, a, http.StatusOK)
	}
	requireStatus(t, post(t, c.url+"/orders/42/pay"), http.StatusOK)
}

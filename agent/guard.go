package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/hosts"
)

// version is the version of the agent's protocol on the wire.
const version = "1"

type access struct {
	token []byte // empty: no token is needed
	hosts []string
}

// check refuses a request that comes from a browser, has an unknown Host, lacks the token, or wants a different version of the protocol.
func (a *access) check(r *http.Request) error {
	if v := r.Header.Get("Redlock-Agent"); v != "" && v != version {
		return refuse(http.StatusUpgradeRequired, "the agent speaks version %s, and the client wants another one", version)
	}
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return refuse(http.StatusForbidden, "browsers may not reach the agent")
	}
	if !a.knows(r.Host) {
		return refuse(http.StatusForbidden, "the Host is neither redlock, localhost, an address of loopback, nor one of the allowed hosts")
	}
	if len(a.token) > 0 && !a.hasToken(r) {
		return refuse(http.StatusUnauthorized, "the token is missing or wrong: send Authorization: Bearer and the token of the agent")
	}
	connOf(r).known.Store(true)
	return nil
}

// hasToken compares the token in constant time, whatever its length is.
func (a *access) hasToken(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sent, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256(a.token)
	return subtle.ConstantTimeCompare(sent[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// knows reports whether host is one of the agent's names. With DNS rebinding, a web page can make a browser send requests to the agent's address.
// These requests have the page's host name.
func (a *access) knows(host string) bool {
	return hosts.Knows(host, a.hosts) || hosts.Knows(host, []string{"redlock"}) // our clients send the name redlock
}

// checkType refuses the content types that a web page can send without a CORS preflight. On a Unix socket, which no browser reaches, it allows the
// form type that curl -d sends.
func checkType(r *http.Request, unix bool) error {
	text := r.Header.Get("Content-Type")
	switch text {
	case "", "application/json", "application/x-ndjson":
		return nil
	}
	kind, _, err := mime.ParseMediaType(text)
	switch {
	case kind == "application/json", kind == "application/x-ndjson":
		return nil
	case err == nil && kind == "application/x-www-form-urlencoded" && unix:
		return nil
	}
	return refuse(http.StatusUnsupportedMediaType, "want the Content-Type application/json")
}

package agent

import (
	"crypto/sha256"
	"crypto/subtle"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/hosts"
)

// version is that of what the agent says and understands on the wire.
const version = "1"

// guard knows who may ask.
type guard struct {
	token []byte // empty: none is asked for
	hosts []string
}

// check refuses requests of those who may not ask, or who speak another version.
func (g *guard) check(r *http.Request) error {
	if v := r.Header.Get("Redlock-Agent"); v != "" && v != version {
		return refuse(http.StatusUpgradeRequired, "the agent speaks version %s, and the client wants another one", version)
	}
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return refuse(http.StatusForbidden, "browsers may not reach the agent")
	}
	if !g.knows(r.Host) {
		return refuse(http.StatusForbidden, "the Host is neither redlock, localhost, an address of loopback, nor one of the allowed hosts")
	}
	if len(g.token) > 0 && !g.hasToken(r) {
		return refuse(http.StatusUnauthorized, "the token is missing or wrong: send Authorization: Bearer and the token of the agent")
	}
	connOf(r).known.Store(true)
	return nil
}

// hasToken compares the token in constant time, whatever its length.
func (g *guard) hasToken(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sent, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256(g.token)
	return subtle.ConstantTimeCompare(sent[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// knows reports whether a Host is one of the agent's. A page can have a browser send requests to any address under a name of its own.
func (g *guard) knows(host string) bool {
	return hosts.Knows(host, g.hosts) || hosts.Knows(host, []string{"redlock"}) // which is what our clients send
}

// checkType refuses the types of bodies that a page can have a browser send without asking. curl sends -d as a form; no browser reaches
// a Unix socket.
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

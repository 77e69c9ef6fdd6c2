package middleware

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// stripHeader removes a header in every spelling that a server may take for it.
func stripHeader(h http.Header, name string) {
	for sent := range h {
		if fold.SameHeader(sent, name) {
			delete(h, sent)
		}
	}
}

// connectionOptions are the options that concern the connection itself. Every other one names a header that a proxy removes
// before it passes the request on: a client could use it to take away our fence, or what its key was made of.
var connectionOptions = []string{"close", "keep-alive", "upgrade", "te", "http2-settings", "proxy-connection"}

// stripConnection removes all other options from the header Connection.
func stripConnection(h http.Header) {
	lines := h["Connection"]
	other := func(option string) bool {
		return !slices.Contains(connectionOptions, strings.ToLower(strings.Trim(option, " \t")))
	}
	for i, line := range lines {
		if options := strings.Split(line, ","); slices.ContainsFunc(options, other) {
			lines[i] = strings.Join(slices.DeleteFunc(options, other), ",")
		}
	}
}

// upgrades reports whether a request asks for another protocol. It removes the offer of h2c, which some clients make with
// every request, because a server need not accept it.
func upgrades(r *http.Request) bool {
	if strings.EqualFold(r.Header.Get("Upgrade"), "h2c") && len(r.Header["Upgrade"]) == 1 {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	return r.Method == http.MethodConnect || // as WebSocket over HTTP/2 does
		len(r.Header["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

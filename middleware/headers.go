package middleware

import (
	"cmp"
	"errors"
	"fmt"
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

// DefaultFenceHeader carries the fencing token unless something else is set.
const DefaultFenceHeader = "Fencing-Token"

const bestKeyHeader = "Redlock-Key"

// noFenceHeaders can't carry the fencing token, or what is locked: the first are taken out on the way to the upstream, or break the request there,
// from the next the key, the ID or the length of a body is read, and in the last proxies write what they know of the client.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", IdempotencyHeader,
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"}

// checkHeaders checks the names of the headers that are set for the upstream.
func (rule *Serializer) checkHeaders() error {
	if fold.SameHeader(rule.FenceHeader, SlotHeader) {
		return fmt.Errorf("fence_header %q: is the header of the slot; want another header, such as %s", rule.FenceHeader, DefaultFenceHeader)
	}
	if err := rule.checkHeader("fence_header", rule.FenceHeader, DefaultFenceHeader); err != nil || rule.KeyHeader == "" {
		return err
	}
	switch {
	case fold.SameHeader(rule.KeyHeader, SlotHeader):
		return fmt.Errorf("key_header %q: is the header of the slot; want another header, such as %s", rule.KeyHeader, bestKeyHeader)
	case rule.keys == nil:
		return errors.New("key_header: needs the template of a key, whose values it shows")
	case fold.SameHeader(rule.KeyHeader, rule.FenceHeader):
		return fmt.Errorf("key_header %q: is the fence_header; want another header, such as %s", rule.KeyHeader, bestKeyHeader)
	}
	return rule.checkHeader("key_header", rule.KeyHeader, bestKeyHeader)
}

func (rule *Serializer) checkHeader(setting, name, better string) error {
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%s %q: not the name of a header", setting, name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("%s %q: has a meaning of its own in HTTP; want another header, such as %s", setting, name, better)
	case rule.verifier != nil && slices.ContainsFunc(rule.verifier.Headers(), same):
		return fmt.Errorf("%s %q: the signature is read from this header; want another one, such as %s", setting, name, better)
	}
	return nil
}

// Placeholder is the function Placeholder for the templates of a rule: it refuses the FenceHeader, the KeyHeader and the SlotHeader, which are
// removed from each request before anything is read from it.
func (rule *Rule) Placeholder(name string) (KeyFunc, error) {
	if header, ok := strings.CutPrefix(name, "header."); ok {
		switch {
		case fold.SameHeader(header, cmp.Or(rule.FenceHeader, DefaultFenceHeader)):
			return nil, errors.New("this is the fence_header, which is removed from each request; read another header, or choose another fence_header")
		case fold.SameHeader(header, SlotHeader):
			return nil, errors.New("this is the header of the slot, which is removed from each request; read another header")
		case fold.SameHeader(header, rule.KeyHeader):
			return nil, errors.New("this is the key_header, which is removed from each request; read another header, or choose another key_header")
		}
	}
	return Placeholder(name)
}

package middleware

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf16"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

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

// stripH2C removes the offer of h2c, a tunnel of HTTP/2 in which an upstream would get requests that nobody here sees. Some clients make it
// with every request, because a server need not accept it.
func stripH2C(h http.Header) {
	if !httpguts.HeaderValuesContainsToken(h["Upgrade"], "h2c") {
		return
	}
	other := slices.DeleteFunc(strings.Split(strings.Join(h["Upgrade"], ","), ","), func(protocol string) bool {
		return strings.EqualFold(strings.Trim(protocol, " \t"), "h2c")
	})
	h.Del("Http2-Settings")
	if h.Del("Upgrade"); len(other) > 0 {
		h.Set("Upgrade", strings.Trim(strings.Join(other, ","), " \t"))
	}
}

// upgrades reports whether a request asks for another protocol than h2c, which it doesn't get.
func upgrades(r *http.Request) bool {
	stripH2C(r.Header)
	return r.Method == http.MethodConnect || // as WebSocket over HTTP/2 does
		len(r.Header["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

// isWebSocket reports whether the protocol that a request asks for is WebSocket, and no other one.
func isWebSocket(r *http.Request) bool {
	offers := strings.Join(r.Header["Upgrade"], ",")
	if r.Method == http.MethodConnect {
		offers = cmp.Or(r.Header.Get(":protocol"), r.Proto) // over HTTP/2, and HTTP/3
	}
	return strings.EqualFold(strings.TrimSpace(offers), "websocket")
}

// errPreflight reports a request that has no key to lock, as it changes nothing.
var errPreflight = fmt.Errorf("%w in a preflight of CORS", ErrMissingKey)

// isPreflight reports whether a browser asks whether it may send a request to another origin. It asks without a body, and doesn't say for
// whom: an upstream may take anything else with the method OPTIONS for a request that changes something.
func isPreflight(r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Origin") == "" || r.Header.Get("Access-Control-Request-Method") == "" ||
		hasHeader(r.Header, []string{"Cookie", "Authorization"}) || checkOverride(r) != nil {
		return false
	}
	body, err := bodyBytes(r)
	return err == nil && len(body) == 0
}

// DefaultFenceHeader carries the fencing token unless something else is set.
const DefaultFenceHeader = "Fencing-Token"

const bestKeyHeader = "Redlock-Key"

// noFenceHeaders can't carry the fencing token, or what is locked: the first are taken out on the way to the upstream, or break the request there,
// from the next the key, the ID or the length of a body is read, and in the last proxies write what they know of the client.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", IdempotencyHeader,
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"}

// maxKeyHeader is how many bytes the KeyHeader may have: servers take 8 KiB of all headers, or more.
const maxKeyHeader = 4 << 10

var errKeyHeader = fmt.Errorf("%w: the values of the key are too long to be shown to the upstream", ErrAmbiguousKey)

// values returns the folded values of a request's placeholders, by name.
func (t templates) values(r *http.Request) (map[string][]string, error) {
	all := make(map[string][]string)
	for _, template := range t {
		from := template.in(r)
		for i := range template.parts {
			p := &template.parts[i]
			if p.sources == nil {
				continue
			}
			values, err := p.values(from, nil)
			if err != nil {
				return nil, err
			}
			all[p.shown()] = append(all[p.shown()], unlabeled(values)...)
		}
	}
	return all, nil
}

// shown is the name of the placeholder without kinds and labels, and the same in every host.
func (p *part) shown() string {
	var name strings.Builder
	for i, alternative := range strings.FieldsFunc(p.name, func(c rune) bool { return c == '|' || c == '&' }) {
		if label, rest, ok := strings.Cut(alternative, "="); ok && strings.Trim(label, labelLetters) == "" {
			alternative = rest
		}
		alternative, _, _ = cutKind(alternative) // it was parsed before
		if i > 0 {
			name.WriteByte('|')
		}
		name.WriteString(strings.TrimPrefix(strings.TrimPrefix(alternative, "http.request."), "uri."))
	}
	return name.String()
}

// showValues returns JSON in ASCII.
func showValues(values map[string][]string) string {
	text, _ := json.Marshal(values) // there is nothing in it that can't be encoded
	var ascii strings.Builder
	for _, c := range string(text) {
		switch {
		case c < 0x80:
			ascii.WriteRune(c)
		case c < 0x10000:
			fmt.Fprintf(&ascii, `\u%04x`, c)
		default:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		}
	}
	return ascii.String()
}

// StripHeaders removes from a request what a client has sent under these names, in every spelling that some server takes for them, and
// in its trailers as well. A rule does this to the requests that it takes. A program that has others go to the same upstream calls it around
// its router:
//
//	middleware.StripHeaders(r, middleware.DefaultFenceHeader, middleware.SlotHeader)
func StripHeaders(r *http.Request, names ...string) {
	strip(r.Header, names)
	if r.Trailer == nil {
		return // then a handler sees none
	}
	strip(r.Trailer, names)
	if r.Body != nil {
		r.Body = &strippedTrailers{r.Body, r.Trailer, names}
	}
}

// strippedTrailers is a body behind which trailers with some names are removed, as a client may send other ones than it has announced.
type strippedTrailers struct {
	io.ReadCloser
	trailers http.Header
	names    []string
}

func (b *strippedTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		strip(b.trailers, b.names)
	}
	return n, err
}

func strip(h http.Header, names []string) {
	for sent := range h {
		if isHeader(sent, names) {
			delete(h, sent)
		}
	}
}

// hasHeader reports whether one of these headers is there, in a spelling that some server takes for it.
func hasHeader(h http.Header, names []string) bool {
	for sent := range h {
		if isHeader(sent, names) {
			return true
		}
	}
	return false
}

// isHeader reports whether some server takes the name of a header for one of these.
func isHeader(sent string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return fold.SameHeader(sent, name) })
}

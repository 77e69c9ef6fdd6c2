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

// connectionOptions are the options of the header Connection that concern the connection itself. Any other option names a header that a proxy must
// remove before it passes the request on. So a client could make a proxy remove our fence, or a header from which the key was made.
var connectionOptions = []string{"close", "keep-alive", "upgrade", "te", "http2-settings", "proxy-connection"}

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

// stripTunnel removes the offer of h2c, a tunnel of HTTP/2 in which an upstream would get requests that no rule sees. Some clients offer h2c with
// every request, because a server may ignore the offer. For a CONNECT that doesn't ask for WebSocket, stripTunnel also makes proxies send no body:
// net/http's transport sends the body without framing, and many upstreams take it for the next request.
func stripTunnel(r *http.Request) {
	if r.Method == http.MethodConnect && !isWebSocket(r) {
		r.ContentLength, r.TransferEncoding, r.Trailer = 0, nil, nil
	}
	h := r.Header
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

// upgrades reports whether a request asks for another protocol. An offer of h2c doesn't count, because stripTunnel removes it.
func upgrades(r *http.Request) bool {
	stripTunnel(r)
	return r.Method == http.MethodConnect || // WebSocket over HTTP/2 uses CONNECT
		len(r.Header["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

func isWebSocket(r *http.Request) bool {
	offers := strings.Join(r.Header["Upgrade"], ",")
	if r.Method == http.MethodConnect {
		offers = cmp.Or(r.Header.Get(":protocol"), r.Proto) // for HTTP/2 and HTTP/3
	}
	return strings.EqualFold(strings.TrimSpace(offers), "websocket")
}

// errPreflight is the error for a request that has no key to lock, because it changes nothing.
var errPreflight = fmt.Errorf("%w in a preflight of CORS", ErrMissingKey)

// isPreflight reports whether the request is a CORS preflight, with which a browser asks whether it may send another request. A preflight has no
// body, and names no user. Some upstream may change something for any other request with the method OPTIONS.
func isPreflight(r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Origin") == "" || r.Header.Get("Access-Control-Request-Method") == "" ||
		hasHeader(r.Header, []string{"Cookie", "Authorization"}) || checkOverride(r) != nil {
		return false
	}
	body, err := bodyBytes(r)
	return err == nil && len(body) == 0
}

// DefaultFenceHeader is the FenceHeader of a rule that sets none.
const DefaultFenceHeader = "Fencing-Token"

const bestKeyHeader = "Redlock-Key"

// noFenceHeaders are headers that can be neither the FenceHeader nor the KeyHeader. Some of them concern the connection, and a proxy removes or
// changes them. Others tell servers how to read the body, or contain a key or an ID. In the rest, proxies describe the client.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", IdempotencyHeader,
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"}

// maxKeyHeader is how many bytes the KeyHeader may have. Servers accept 8 KiB or more for all headers together.
const maxKeyHeader = 4 << 10

var errKeyHeader = fmt.Errorf("%w: the values of the key are too long to be shown to the upstream", ErrAmbiguousKey)

// values returns the folded values of a request, by the names of their placeholders.
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

// shown is the placeholder's name in the KeyHeader, without kinds and labels. It is the same in Caddy, Traefik and net/http.
func (p *part) shown() string {
	var name strings.Builder
	for i, alternative := range strings.FieldsFunc(p.name, func(c rune) bool { return c == '|' || c == '&' }) {
		if label, rest, ok := strings.Cut(alternative, "="); ok && strings.Trim(label, labelLetters) == "" {
			alternative = rest
		}
		alternative, _, _ = cutKind(alternative) // parsing the template has already found errors
		if i > 0 {
			name.WriteByte('|')
		}
		name.WriteString(strings.TrimPrefix(strings.TrimPrefix(alternative, "http.request."), "uri."))
	}
	return name.String()
}

// showValues returns the values as JSON in ASCII.
func showValues(values map[string][]string) string {
	text, _ := json.Marshal(values) // all of these values can be encoded
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

// StripHeaders removes from a request all headers and trailers with these names, because the client may have sent them. It removes each spelling that
// some server reads as one of the names. It also removes an offer of h2c, in whose tunnel the client could send the headers. A rule does all this
// with each request that it serves. If other requests go to the same upstream, call StripHeaders around the router:
//
//	middleware.StripHeaders(r, middleware.DefaultFenceHeader, middleware.SlotHeader)
func StripHeaders(r *http.Request, names ...string) {
	stripTunnel(r)
	strip(r.Header, names)
	strip(r.Trailer, names)
	if r.Body != nil && r.Body != http.NoBody && (r.Trailer != nil || r.ContentLength < 0) { // only a body of unknown length has trailers
		r.Body = &strippedTrailers{r.Body, r, names}
	}
}

// strippedTrailers is a body that removes trailers with some names at its end, because a client may send trailers that it hasn't announced.
type strippedTrailers struct {
	io.ReadCloser
	r     *http.Request // whose Trailer the server fills in
	names []string
}

func (b *strippedTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		strip(b.r.Trailer, b.names)
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

// hasHeader reports whether some server reads a header in h as one with these names.
func hasHeader(h http.Header, names []string) bool {
	for sent := range h {
		if isHeader(sent, names) {
			return true
		}
	}
	return false
}

// isHeader reports whether some server reads the name of a header that was sent as one of these names.
func isHeader(sent string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return fold.SameHeader(sent, name) })
}

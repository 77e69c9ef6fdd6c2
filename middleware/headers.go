package middleware

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf16"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// stripOurs removes what only this side may set, in every spelling that a server may take for it.
func (rule *Serializer) stripOurs(h http.Header) {
	ours := [...]string{rule.FenceHeader, rule.KeyHeader, SlotHeader, "Script-Name", "Path-Info"} // gunicorn takes a part of the path from the last two
	for sent := range h {
		if slices.ContainsFunc(ours[:], func(name string) bool { return fold.SameHeader(sent, name) }) {
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

// takeShown notes what the upstream is to see of the key.
func (s *serving) takeShown() (err error) {
	if s.rule.KeyHeader == "" {
		return nil
	}
	if s.turn.shown, err = s.rule.keys.values(s.r); err != nil {
		return err
	}
	if outer := s.turn.showing(s.rule.KeyHeader); outer != nil { // whose values are locked as well
		for name, values := range outer.shown {
			s.turn.shown[name] = append(s.turn.shown[name], values...)
		}
	}
	for name, values := range s.turn.shown {
		slices.Sort(values)
		s.turn.shown[name] = slices.Compact(values)
	}
	if len(showValues(s.turn.shown)) > maxKeyHeader {
		return errKeyHeader
	}
	return nil
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

// showing returns the rule around this one that shows its key in this header, or nil.
func (t *Turn) showing(header string) *Turn {
	for outer := t.outer; outer != nil; outer = outer.outer {
		if outer.Lock != nil && outer.keyHeader != "" && fold.SameHeader(outer.keyHeader, header) {
			return outer
		}
	}
	return nil
}

// showKey shows the upstream what is locked.
func (s *serving) showKey() {
	if s.turn.keyHeader = s.rule.KeyHeader; s.turn.keyHeader != "" {
		s.r.Header = maps.Clone(s.r.Header) // a rule around this one has the same
		s.r.Header.Set(s.turn.keyHeader, showValues(s.turn.shown))
	}
}

// showOuterKey shows what a rule around this one has locked, or nothing.
func (s *serving) showOuterKey() {
	if s.rule.KeyHeader == "" {
		return
	}
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Del(s.rule.KeyHeader)
	if outer := s.turn.showing(s.rule.KeyHeader); outer != nil {
		s.r.Header.Set(outer.keyHeader, showValues(outer.shown))
	}
}

package middleware

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

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
			if err == nil && from.json && from.readAside() {
				var aside []string
				if aside, err = p.valuesAside(from); errors.Is(err, ErrMissingKey) {
					err = nil
				}
				values = append(values, aside...)
			}
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

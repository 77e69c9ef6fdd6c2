package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// Key returns the lock key of a request, for templates that make a single one. The error is a *KeyError.
func (t *Template) Key(r *http.Request) (string, error) {
	if t.each >= 0 {
		return "", &KeyError{Placeholder: t.parts[t.each].name, Err: ErrAmbiguousKey}
	}
	return t.key(t.in(r))
}

// Keys returns the lock keys of a request: several if the template has a placeholder with [] or &. JSON that could also be
// read as a form has the keys of both, because some frameworks ignore the Content-Type. The error is a *KeyError.
func (t *Template) Keys(r *http.Request) ([]string, error) {
	from := t.in(r)
	if t.readsBody || t.each >= 0 {
		return t.all(from)
	}
	key, err := t.key(from)
	if err != nil {
		return nil, err
	}
	return []string{key}, nil
}

// key returns the key of a template whose placeholders have one value each.
func (t *Template) key(from *bodyFields) (string, error) {
	key, one := make([]byte, 0, maxKey), [1]string{} // neither is allocated
	for i := range t.parts {
		p := &t.parts[i]
		if p.sources == nil {
			key = append(key, p.literal...)
			continue
		}
		values, err := p.values(from, one[:0])
		if err != nil {
			return "", err
		}
		key = t.escape(key, values[0])
	}
	return string(key), nil
}

// all returns the keys of all combinations of the values.
func (t *Template) all(from *bodyFields) ([]string, error) {
	keys := [][]byte{nil}
	for i := range t.parts {
		p := &t.parts[i]
		if p.sources == nil {
			for k := range keys {
				keys[k] = append(keys[k], p.literal...)
			}
			continue
		}
		some, err := p.values(from, nil)
		if err == nil && len(keys)*len(some) > maxKeys {
			err = &KeyError{Placeholder: p.name, Err: errTooManyKeys}
		}
		if err != nil {
			return nil, err
		}
		next := make([][]byte, 0, len(keys)*len(some))
		for _, key := range keys {
			for _, value := range some {
				next = append(next, t.escape(slices.Clone(key), value))
			}
		}
		keys = next
	}
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = string(key)
	}
	return texts, nil
}

// values returns the folded values of the first alternative that the request has. A single value goes into room.
func (p *part) values(from *bodyFields, room []string) (values []string, err error) {
	var elsewhere []string
	for _, together := range p.sources {
		values, err = p.together(from, together, room)
		if err == nil {
			break
		}
		if other := (*elsewhereError)(nil); errors.As(err, &other) {
			elsewhere = append(elsewhere, other.values...)
		}
		if !errors.Is(err, ErrMissingKey) {
			break
		}
	}
	if elsewhere != nil && (errors.Is(err, ErrMissingKey) || err == nil && !hasAll(unlabeled(values), elsewhere)) {
		err = ErrAmbiguousKey // on_missing_key must not let it pass without a lock
	}
	if from.json && from.aside != nil {
		values, err = from.withAside(p, values, err)
	}
	if err != nil {
		return nil, &KeyError{Placeholder: p.name, Err: err}
	}
	return values, nil
}

func unlabeled(values []string) (plain []string) {
	for _, value := range values {
		plain = append(plain, value[strings.IndexByte(value, labelEnd)+1:])
	}
	return plain
}

// together returns the values of all of these sources that the request has. If there are several sources, it leaves out objects
// and arrays, and elements of a list that lack the field.
func (p *part) together(from *bodyFields, sources []source, room []string) ([]string, error) {
	if len(sources) == 1 {
		return p.valuesOf(from, &sources[0], room)
	}
	var all []string
	for i := range sources {
		values, err := p.valuesOf(from, &sources[i], nil)
		switch {
		case fields.Some(err):
			all = append(all, values...)
		case !errors.Is(err, ErrMissingKey) || !from.json && errors.As(err, new(*elsewhereError)):
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, ErrMissingKey
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// valuesOf returns the folded values of one source. With an error they are those beside what has none, as far as fields.Some has it.
func (p *part) valuesOf(from *bodyFields, s *source, room []string) (values []string, err error) {
	if s.value == nil {
		values, err = from.values(*s)
		if err == errOtherFormat && !from.readsOther(p) {
			err = errBodyFormat
		}
		values = append(room, values...)
	} else {
		var value string
		value, err = s.value(from.request)
		values = append(room, value)
	}
	if !fields.Some(err) {
		return nil, err
	}
	folded, failed := s.fold(values)
	switch {
	case failed != nil:
		return nil, failed
	case err != nil || len(folded) == len(values):
		return folded, err
	case len(folded) == 0:
		return nil, ErrMissingKey
	}
	return folded, fields.ErrPartly
}

// fold folds values in place unless they are to be exact, and leaves out those of which nothing is left. It returns an error if one is not
// what the placeholder expects.
func (s *source) fold(values []string) (folded []string, err error) {
	folded = values[:0]
	for _, value := range values {
		if s.kind != "" && value != "" && !fold.Kinds[s.kind](value) {
			return nil, fold.Error(fmt.Sprintf("not of the kind %q in its one spelling", s.kind))
		}
		if !s.exact {
			value, err = fold.Value(value)
		} else if strings.ContainsRune(value, labelEnd) {
			err = fold.ErrBadText
		}
		if err != nil {
			return nil, err
		}
		if value != "" {
			folded = append(folded, s.label+value)
		}
	}
	return folded, nil
}

// escape appends a value to a key, escaped.
func (t *Template) escape(key []byte, value string) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range []byte(value) {
		if c == labelEnd {
			key = append(key, '=')
		} else if t.escaped[c] {
			key = append(key, '%', hex[c>>4], hex[c&15])
		} else {
			key = append(key, c)
		}
	}
	return key
}

// verify returns the secret with which the request is signed, or an error unless it is signed as the rule demands.
func (rule *Serializer) verify(r *http.Request) (secret string, err error) {
	if rule.verifier == nil {
		return "", nil
	}
	i, err := rule.verifier.Check(r.Header, rule.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
	if err != nil {
		return "", err
	}
	return rule.Verify.Secrets[i], nil
}

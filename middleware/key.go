package middleware

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
)

// Key returns the key that a rule with this template locks for a request with these values, for code that has no request, such as a job.
// A value is named as in the template, without its kind: path.1 for {path.1:int}, json.order.id for {json.order.id}. It is read and folded as in a
// request, and refused with the same error. A name that no request has, as in {id:id}, is for a value that is only folded.
//
// A placeholder with [] or & takes one value here, and so makes one of the request's keys. The error names a value that is missing, or that the
// template doesn't read.
func Key(template string, values map[string]string) (string, error) {
	keys, err := Keys([]string{template}, values)
	if err != nil {
		return "", err
	}
	return keys[0], nil
}

// Keys is Key for several templates, each of which may read some of the values.
func Keys(templates []string, values map[string]string) (keys []string, err error) {
	var names []string
	given := func(name string, read func(value string) (string, error)) KeyFunc {
		names = append(names, name)
		return func(*http.Request) (string, error) {
			value := values[name]
			if value == "" {
				return "", ErrMissingKey
			}
			return read(value)
		}
	}
	parsed := make([]*keyTemplate, len(templates))
	for i, text := range templates {
		parsed[i] = &keyTemplate{each: -1, set: new(fieldSet), given: func(name string, f fields.Field) KeyFunc { return given(name, f.Text) }}
		err := parsed[i].parse(text, func(name string) (KeyFunc, error) {
			place := strings.TrimPrefix(strings.TrimPrefix(name, "http.request."), "uri.") // Caddy's names in JSON
			place = anySegment.ReplaceAllString(place, "path.0")                           // all segments are read in the same way
			read, err := placeholder(place)
			switch {
			case errors.Is(err, errUnknown):
				return given(name, func(value string) (string, error) { return value, nil }), nil
			case err != nil:
				return nil, err
			}
			return given(name, func(value string) (string, error) { return read(requestWith(place, value)) }), nil
		})
		if err != nil {
			return nil, fmt.Errorf("key template %q: %w", text, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("no placeholder reads the value %q; want values for %q", name, names)
		}
	}
	for _, t := range parsed {
		some, err := t.Keys(nil)
		if err == nil && len(some) > 1 {
			err = &keyError{Placeholder: t.parts[t.each].name, Err: errSeveralValues}
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, short(some[0]))
	}
	return keys, nil
}

var errSeveralValues = errors.New("has several values, which make several keys; want one of them")

var anySegment = regexp.MustCompile(`^path\.[0-9]+$`)

// requestWith returns a request that has the value where placeholder looks for it.
func requestWith(place, value string) *http.Request {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: make(http.Header)}
	switch family, arg, _ := strings.Cut(place, "."); family {
	case "method":
		r.Method = value
	case "host":
		r.Host = value
	case "header":
		r.Header.Set(arg, value)
	case "cookie":
		r.Header.Set("Cookie", arg+"="+url.QueryEscape(value))
	case "query":
		r.URL.RawQuery = url.QueryEscape(arg) + "=" + url.QueryEscape(value)
	case "path":
		switch arg {
		case "":
			r.URL.Path = value
		case "0":
			r.URL.Path, r.URL.RawPath = "/"+value, "/"+url.PathEscape(value)
		default:
			r.URL.Path = "/" + value
			r.SetPathValue(arg, value)
		}
	}
	return r
}

package middleware

import (
	"fmt"
	"net/http"
	"net/url"
)

// parseDedupe reads the template of the ID of a delivery, as ParseTemplate does. An ID has a single value, so that
// {body.items[].id} is an error. IDs are compared as they are sent: those that differ in case are different.
func parseDedupe(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("dedupe", text, placeholder, "ID", "is the same for all deliveries; name the sender's ID, such as {header.X-GitHub-Delivery}")
}

// parseScope reads the template of who has sent an ID, as parseDedupe does.
func parseScope(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("scope", text, placeholder, "sender", "is the same for all clients; name what tells them apart, such as {header.Authorization}")
}

func parseExact(setting, text string, placeholder PlaceholderFunc, what, global string) (*Template, error) {
	t, err := ParseTemplate(text, placeholder)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", setting, err)
	case t.Global():
		return nil, fmt.Errorf("%s: %q %s", setting, text, global)
	case t.each >= 0:
		return nil, fmt.Errorf("%s: {%s} may have several values, and there is only one %s; name an element, such as {body.items.0.id}", setting, t.parts[t.each].name, what)
	}
	t.setExact()
	return t, nil
}

// exactKey returns what reads the value of a template that parseExact has read. That of a single placeholder is its value; in a longer
// one the values are escaped, as in keys.
func (t *Template) exactKey() KeyFunc {
	if !t.isValue() {
		return t.Key
	}
	return func(r *http.Request) (string, error) { // operators name it as they know it: Bearer abc, and not Bearer%20abc
		key, err := t.Key(r)
		if err != nil {
			return "", err
		}
		return url.PathUnescape(key)
	}
}

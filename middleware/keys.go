package middleware

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
)

const (
	maxKeys = fields.MaxValues // of a request
	maxKey  = 200              // bytes; a longer key is replaced by its hash
)

// errTooManyKeys reports a request that would have to hold too many locks.
var errTooManyKeys = fields.ErrTooMany

// keysFunc derives the lock keys of a request, which holds all of them together, and of several templates says which has made each. The
// caller may change the slices. Its errors are those of a KeyFunc.
type keysFunc func(*http.Request) (keys []string, from []int, err error)

// Keys makes a KeyFunc usable as a keysFunc.
func (key KeyFunc) Keys(r *http.Request) ([]string, []int, error) {
	k, err := key(r)
	if err != nil {
		return nil, nil, err
	}
	return []string{k}, nil, nil
}

// templates are the key templates of a rule: a request has the keys of all of them.
type templates []*Template

// parseTemplates reads several templates as ParseTemplate does.
func parseTemplates(texts []string, compile PlaceholderFunc) (templates, error) {
	if len(texts) == 0 {
		return nil, errors.New("no key template")
	}
	if len(texts) > maxKeys {
		return nil, fmt.Errorf("key templates: at most %d, got %d", maxKeys, len(texts))
	}
	all := make(templates, len(texts))
	for i, text := range texts {
		var err error
		if all[i], err = ParseTemplate(text, compile); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Global reports whether one of the templates has no placeholder, so that all requests share its lock.
func (t templates) Global() bool { return slices.ContainsFunc(t, (*Template).Global) }

// Keys derives the lock keys of a request, at least one from each template. The error is a *KeyError.
func (t templates) Keys(r *http.Request) (keys []string, from []int, err error) {
	if len(t) == 1 {
		keys, err = t[0].Keys(r)
		return keys, nil, err
	}
	for i, template := range t {
		some, err := template.Keys(r)
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, some...)
		from = append(from, slices.Repeat([]int{i}, len(some))...)
	}
	return keys, from, nil
}

// deriveKeys returns the keys of a request as they are locked: hashed if they are long, in order, and
// without duplicates; and how many requests may hold each, if the rule has a number for each.
func (rule *Serializer) deriveKeys(r *http.Request) (keys []string, most map[string]int, err error) {
	keys, from, err := rule.derive(r)
	if err != nil {
		return nil, nil, err
	}
	if len(keys) == 0 {
		return nil, nil, ErrMissingKey
	}
	for i, k := range keys {
		if k == "" {
			return nil, nil, ErrMissingKey
		}
		if len(k) > maxKey {
			sum := sha256.Sum256([]byte(k))
			keys[i] = "sha256:" + hex.EncodeToString(sum[:])
		}
	}
	if len(rule.Concurrency) > 1 {
		most = rule.Concurrency.byKey(keys, from)
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > maxKeys {
		return nil, nil, errTooManyKeys
	}
	return keys, most, nil
}

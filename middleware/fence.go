package middleware

import (
	"net/http"
	"slices"
	"strings"
)

const defaultFenceHeader = "Fencing-Token"

func (rule *Rule) fenceHeader() string {
	if rule.FenceHeader == "" {
		return defaultFenceHeader
	}
	return rule.FenceHeader
}

// stripFence removes a header in every spelling that a server may take for it: CGI and its heirs
// read "-", "_" and others alike. It is not left in Connection either: a proxy would remove ours.
func stripFence(h http.Header, name string) {
	for sent := range h {
		if sameHeader(sent, name) {
			delete(h, sent)
		}
	}
	is := func(option string) bool { return sameHeader(strings.TrimSpace(option), name) }
	for i, line := range h["Connection"] {
		options := strings.Split(line, ",")
		if slices.ContainsFunc(options, is) {
			h["Connection"][i] = strings.Join(slices.DeleteFunc(options, is), ",")
		}
	}
}

// sameHeader says whether some server takes two names of headers for one.
func sameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if fold(a[i]) != fold(b[i]) {
			return false
		}
	}
	return true
}

func fold(c byte) byte {
	switch {
	case !isAlphanumeric(c):
		return '-'
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	}
	return c
}

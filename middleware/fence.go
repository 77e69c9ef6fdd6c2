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
// read "-" and "_" alike. It is not left in Connection either: a proxy would remove ours.
func stripFence(h http.Header, name string) {
	name = strings.ReplaceAll(name, "_", "-")
	is := func(sent string) bool {
		return len(sent) == len(name) && strings.EqualFold(strings.ReplaceAll(sent, "_", "-"), name)
	}
	for sent := range h {
		if is(sent) {
			delete(h, sent)
		}
	}
	for i, line := range h["Connection"] {
		options := strings.Split(line, ",")
		if slices.ContainsFunc(options, func(option string) bool { return is(strings.TrimSpace(option)) }) {
			h["Connection"][i] = strings.Join(slices.DeleteFunc(options, func(option string) bool { return is(strings.TrimSpace(option)) }), ",")
		}
	}
}

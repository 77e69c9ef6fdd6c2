package middleware

import (
	"net/http"
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
// read "-" and "_" alike.
func stripFence(h http.Header, name string) {
	name = strings.ReplaceAll(name, "_", "-")
	for sent := range h {
		if len(sent) == len(name) && strings.EqualFold(strings.ReplaceAll(sent, "_", "-"), name) {
			delete(h, sent)
		}
	}
}

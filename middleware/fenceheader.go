package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// DefaultFenceHeader carries the fencing token unless something else is set.
const DefaultFenceHeader = "Fencing-Token"

// noFenceHeaders can't carry the fencing token: the first are taken out on the way to the upstream, or break the request there,
// from the next the key, the ID or the length of a body is read, and in the last proxies write what they know of the client.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", IdempotencyHeader,
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via"}

func (rule *Serializer) checkFenceHeader() error {
	name := rule.FenceHeader
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("fence_header %q: not the name of a header", name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("fence_header %q: has a meaning of its own in HTTP; want another header, such as %s", name, DefaultFenceHeader)
	case rule.verifier != nil && slices.ContainsFunc(rule.verifier.Headers(), same):
		return fmt.Errorf("fence_header %q: the signature is read from this header; want another one, such as %s", name, DefaultFenceHeader)
	}
	return nil
}

// Placeholder is the function Placeholder for the templates of a rule: it refuses the FenceHeader, which is
// removed from each request before anything is read from it.
func (rule *Rule) Placeholder(name string) (KeyFunc, error) {
	header, ok := strings.CutPrefix(name, "header.")
	if ok && fold.SameHeader(header, cmp.Or(rule.FenceHeader, DefaultFenceHeader)) {
		return nil, errors.New("this is the fence_header, which is removed from each request; read another header, or choose another fence_header")
	}
	return Placeholder(name)
}

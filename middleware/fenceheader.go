package middleware

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

const defaultFenceHeader = "Fencing-Token"

func (rule *Rule) fenceHeader() string { return cmp.Or(rule.FenceHeader, defaultFenceHeader) }

// noFenceHeaders can't carry the fencing token: the first are taken out on the way to the upstream, or break the request there,
// and from the others the key, the ID or the length of a body is read.
var noFenceHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Te", "Trailer", "Upgrade", "Keep-Alive", "Expect",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type", "Content-Encoding", "Cookie", IdempotencyHeader}

func (rule *Rule) checkFenceHeader() error {
	name := rule.fenceHeader()
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("fence_header %q: not the name of a header", name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("fence_header %q: has a meaning of its own in HTTP; want another header, such as %s", name, defaultFenceHeader)
	}
	return nil
}

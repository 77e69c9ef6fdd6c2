// Package connect makes the masters of a locker from the URLs, credentials and certificates that people write. It also has the flags for them, which
// the programs of this module share.
package connect

import (
	"errors"
	"net/url"
	"strings"
)

// ErrNoTLS means that there are settings of TLS, and no master that uses it.
var ErrNoTLS = errors.New("tls: no master uses it: write rediss:// instead of redis:// in masters")

// UsesTLS reports whether a master's URL asks for TLS.
func UsesTLS(text string) bool {
	switch scheme, _, _ := strings.Cut(text, "://"); scheme {
	case "rediss", "valkeys", "rediss-cluster", "valkeys-cluster":
		return true
	}
	return false
}

// WithUser adds the credentials to a URL that has none. A URL that cannot be parsed is left for Dial to report.
func WithUser(text, username, password string) string {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Scheme == "memory" || username == "" && password == "" {
		return text
	}
	u.User = url.UserPassword(username, password)
	return u.String()
}

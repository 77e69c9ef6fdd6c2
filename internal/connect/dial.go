// Package masters makes the masters of a locker of what people write: URLs, credentials, certificates. The programs of this
// module share it, and the flags by which they are told.
package connect

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// ErrNoTLS means that there are settings of TLS, and no master that uses it.
var ErrNoTLS = errors.New("tls: no master uses it: write rediss:// instead of redis:// in masters")

// UsesTLS reports whether a master's URL asks for TLS.
func UsesTLS(text string) bool {
	return strings.HasPrefix(text, "rediss://") || strings.HasPrefix(text, "valkeys://")
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

// Dial is redlock.Dial with settings for the masters that use TLS; nil is for the default ones. Like that it doesn't connect.
func Dial(urls []string, secure *tls.Config) ([]redlock.Master, error) {
	masters, err := redlock.Dial(urls...)
	if err != nil || secure == nil {
		return masters, err
	}
	for i, text := range urls {
		if !UsesTLS(text) {
			continue
		}
		if rest, ok := strings.CutPrefix(text, "valkey"); ok {
			text = "redis" + rest
		}
		options, err := redis.ParseURL(text)
		if err != nil {
			return nil, errors.New("not the URL of a Redis server")
		}
		host := options.TLSConfig.ServerName
		options.TLSConfig = secure.Clone()
		options.TLSConfig.ServerName = cmp.Or(secure.ServerName, host)
		options.Dialer = (&tls.Dialer{Config: options.TLSConfig}).DialContext // go-redis's own ignores the context
		client := redis.NewClient(options)
		masters[i], err = redlock.NewMaster(client)
		if err := errors.Join(err, client.Close()); err != nil {
			return nil, err
		}
	}
	return masters, nil
}

package caddyredlock

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/exp/zapslog"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// lockers are those in use, by the sum of their settings. At a reload the old configuration and the
// new one share a locker if the settings are the same. Each running request counts too: on a reload
// Caddy cleans a configuration up while its last requests still hold locks.
var lockers = caddy.NewUsagePool()

type pooledLocker struct{ *redlock.Locker }

// Destruct closes the masters; the pool calls it when the last user has left.
func (p pooledLocker) Destruct() error { return p.Close() }

// seal sums the settings up, once and not for each request.
func (s *settings) seal() {
	text, _ := json.Marshal(s) // strings and numbers always encode
	s.sum = sha256.Sum256(text)
}

// join gives the locker of these settings, and counts one user more.
func (s *settings) join() (*redlock.Locker, error) {
	pooled, _, err := lockers.LoadOrNew(s.sum, func() (caddy.Destructor, error) {
		masters, err := redlock.Dial(s.URLs...)
		if err != nil {
			return nil, err
		}
		locker, err := redlock.New(masters,
			redlock.WithTTL(min(redlock.DefaultTTL, s.MaxTTL)),
			redlock.WithMaxTTL(s.MaxTTL),
			redlock.WithRestartGuard(s.Guard),
			redlock.WithTimeout(s.Timeout),
			redlock.WithPrefix(s.Prefix),
			redlock.WithLogger(slog.New(currentLog{})),
		)
		return pooledLocker{locker}, err
	})
	if err != nil {
		return nil, err
	}
	return pooled.(pooledLocker).Locker, nil
}

// leave counts one user less.
func (s *settings) leave() error {
	_, err := lockers.Delete(s.sum)
	return err
}

// currentLog writes to the log of the configuration that is in force: a locker may outlive the one
// that it was made for.
type currentLog struct{}

func (currentLog) handler() slog.Handler {
	return zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName("redlock"), zapslog.AddStacktraceAt(slog.Level(127)))
}

func (l currentLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.handler().Enabled(ctx, level)
}

func (l currentLog) Handle(ctx context.Context, record slog.Record) error {
	return l.handler().Handle(ctx, record)
}

func (l currentLog) WithAttrs(attrs []slog.Attr) slog.Handler { return l.handler().WithAttrs(attrs) }

func (l currentLog) WithGroup(name string) slog.Handler { return l.handler().WithGroup(name) }

func init() { redis.SetLogger(clientLog{}) }

// clientLog takes what the Redis client says of its connections, which would go to standard error as
// bare text. Package redlock tells of masters that fail, once for each: this is for debugging.
type clientLog struct{}

func (clientLog) Printf(_ context.Context, format string, args ...any) {
	caddy.Log().Named("redlock.client").Debug(fmt.Sprintf(format, args...))
}

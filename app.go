package caddyredlock

import (
	"cmp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/internal/caddycli"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func init() {
	caddy.RegisterModule(App{})
	caddycli.Register(caddycli.Module{Masters: doctorSettings, Secrets: withSecrets})
}

// App has the masters on which all redlock handlers of a configuration take their locks.
type App struct {
	// The URLs of the masters: redis://host:port, rediss://host:port for TLS (valkey:// and valkeys:// mean
	// the same), unix:///path, or memory:// for this process's own memory. They must be independent servers,
	// not replicas of each other; use three or five, to survive the loss of one or two. Global placeholders
	// such as {env.REDIS_URL} are replaced. Default: one memory:// master, which only works for a single process.
	Masters []string `json:"masters,omitempty"`
	// The user name for masters whose URLs have none. Global placeholders are replaced.
	// Default: none.
	Username string `json:"username,omitempty"`
	// The password for those masters, best as a placeholder: {file./run/secrets/redis} or
	// {env.REDIS_PASSWORD}. Default: none.
	Password string `json:"password,omitempty"`
	// The certificates for masters with rediss:// URLs. Default: those of the system, and none of our own.
	TLS *TLS `json:"tls,omitempty"`
	// How long a master may take to answer. Default: 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`
	// The prefix of all keys on the masters: <prefix>:{<key>}. It must be the same in all
	// processes that share locks. Default: redlock.
	KeyPrefix string `json:"key_prefix,omitempty"`
	// The longest ttl that a rule may ask for. It must be the same in all processes that share the
	// masters. Default: 30s.
	MaxTTL caddy.Duration `json:"max_ttl,omitempty"`
	// How long a server that has just started has no vote, because it may have forgotten locks
	// that it granted before; at least max_ttl + 1 s. Or "off", for servers that forget nothing
	// (appendfsync always with no-appendfsync-on-rewrite no), and for development.
	// Default: max_ttl + 1 s.
	RestartGuard string `json:"restart_guard,omitempty"`

	// How much the masters' clocks may differ: a master whose clock is more than half of this away from the
	// middle of all clocks has no vote until its clock is set right. Or "off": then the clocks must differ by
	// less than restart_guard. Default: 2s, or half of max_ttl if that is less.
	MaxSkew string `json:"max_skew,omitempty"`

	// The name by which others see this process where it holds or waits for a key: 1 to 64 printable ASCII characters without spaces.
	// Global placeholders are replaced. Default: the name of the host and the process ID, as in web1/4711.
	Instance string `json:"instance,omitempty"`

	// How many bytes of bodies all rules together may keep in memory, for keys and signatures. If the budget is
	// used up, a request waits for room. Default: 67108864 (64 MiB).
	BodyBudget int64 `json:"body_budget,omitempty"`

	// Files with the keys that encrypt the responses that rules remember on the masters, each with 32 bytes in base64. The first
	// encrypts, all decrypt. All processes must have them: a response that can't be read is refused with 500. Default: none, the masters
	// can read the responses.
	RememberKeys []string `json:"remember_keys,omitempty"`

	// Where the Caddyfile has the settings that can only be checked when the configuration is loaded, for error messages.
	Source source `json:"source,omitempty"`

	bodies     *middleware.Budget
	sealer     *middleware.Sealer // nil if responses are not encrypted
	hideBudget func()             // from the metrics; nil if it isn't there
	settings   settings
	share      *share
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "redlock",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision replaces placeholders and checks the configuration. It doesn't connect to the masters, since the configuration may only be
// validated, or another part of it refused.
func (a *App) Provision(ctx caddy.Context) error {
	a.share = new(share)
	if err := a.provision(ctx); err != nil {
		return a.Source.at(err)
	}
	return nil
}

func (a *App) provision(ctx caddy.Context) error {
	var err error
	if a.settings, err = a.resolved(ctx); err != nil {
		return err
	}
	if len(a.Masters) == 0 {
		ctx.Logger().Warn("no masters are configured: locks are kept in this process's memory, and do not exclude requests in other processes; list your Redis servers in the global option redlock { masters … }")
	}
	a.bodies = middleware.NewBudget(cmp.Or(a.BodyBudget, middleware.DefaultBodyBudget))
	if a.sealer, err = loadSealer(a.RememberKeys); err != nil {
		return err
	}
	if err = a.settings.valid(); err != nil {
		return err
	}
	ctx.Logger().Debug("masters", zap.Int("count", len(a.settings.URLs)))
	return a.showMetrics(ctx)
}

// inMemory reports whether locks are kept in the memory of this process.
func (a *App) inMemory() bool {
	return len(a.settings.URLs) == 1 && strings.HasPrefix(a.settings.URLs[0], "memory:")
}

// Start joins the pool of lockers, unless a request has had the app join: the app http may have begun to serve before. It does not wait
// for the masters.
func (a *App) Start() error { return a.share.take(&a.settings) }

// join returns the locker for a request, and adds the request to its users. The request must leave.
func (a *App) join() (*redlock.Locker, error) {
	if err := a.share.take(&a.settings); err != nil {
		return nil, err
	}
	return a.settings.join()
}

// Stop does nothing: requests may still hold locks. Cleanup leaves the pool.
func (a *App) Stop() error { return nil }

// Cleanup leaves the pool. The locker is closed when the last request that uses it is done, and no key is held after one any more. If the
// grace period of an exit is over before that, the process ends with the lock in place: then no other process has its key before the lease
// has ended, while the upstream may not have noticed yet that nobody reads its response.
func (a *App) Cleanup() error {
	if a.hideBudget != nil {
		a.hideBudget()
	}
	return a.share.giveBack(&a.settings)
}

// Interface guards
var (
	_ caddy.App             = (*App)(nil)
	_ caddy.Provisioner     = (*App)(nil)
	_ caddy.CleanerUpper    = (*App)(nil)
	_ caddyfile.Unmarshaler = (*App)(nil)
)

package caddyredlock

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func init() {
	caddy.RegisterModule(App{})
}

// App holds the masters on which all redlock handlers of a configuration take their locks.
type App struct {
	// The URLs of the masters: redis://host:port, rediss://host:port for TLS, unix:///path, or
	// memory:// for this process's own memory. They must be independent servers, no replicas of each
	// other; three or five, so that the loss of one or two is survived. Global placeholders such as
	// {env.REDIS_URL} are replaced. Default: one memory:// master, which is right for a single
	// process only.
	Masters []string `json:"masters,omitempty"`
	// The user name on the masters whose URLs name no user. Global placeholders are replaced.
	// Default: none.
	Username string `json:"username,omitempty"`
	// The password on those masters, best as a placeholder: {file./run/secrets/redis} or
	// {env.REDIS_PASSWORD}. Default: none.
	Password string `json:"password,omitempty"`
	// How long a master may take to answer. Default: 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`
	// What the keys on the masters start with: <prefix>:{<key>}. It must be the same in all
	// processes that share locks. Default: redlock.
	KeyPrefix string `json:"key_prefix,omitempty"`
	// The longest ttl that a rule may ask for. It must be the same in all processes that share the
	// masters. Default: 30s.
	MaxTTL caddy.Duration `json:"max_ttl,omitempty"`
	// For how long a server that has just started has no vote, because it may have forgotten locks
	// that it granted before; at least max_ttl + 1 s. Or "off", for servers that forget nothing
	// (appendfsync always with no-appendfsync-on-rewrite no), and for development.
	// Default: max_ttl + 1 s.
	RestartGuard string `json:"restart_guard,omitempty"`

	// How many bytes of bodies all rules together may hold in memory, for keys and signatures; a
	// body that finds no room waits for it. Default: 67108864 (64 MiB).
	BodyBudget int64 `json:"body_budget,omitempty"`

	bodies   *middleware.Budget
	settings settings
	pooled   bool // whether this instance has a share in the pool to give back
}

// settings are an App's, with all placeholders replaced. They hold secrets.
type settings struct {
	URLs    []string
	Timeout time.Duration
	Prefix  string
	MaxTTL  time.Duration
	Guard   time.Duration

	sum any // identifies them in the pool without showing the secrets in them; see seal
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "redlock",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision replaces placeholders, checks the configuration and joins the pool of lockers. It does
// not wait for the masters.
func (a *App) Provision(ctx caddy.Context) error {
	if err := a.check(); err != nil {
		return err
	}
	if len(a.Masters) == 0 {
		ctx.Logger().Warn("no masters are configured: locks are kept in this process's memory, and exclude nothing in other processes; name your Redis servers in the global option redlock { masters … }")
	}
	a.bodies = middleware.NewBudget(cmp.Or(a.BodyBudget, middleware.DefaultBodyBudget))
	var err error
	if a.settings, err = a.resolve(caddy.NewReplacer()); err != nil {
		return err
	}
	a.settings.seal()
	if _, err = a.settings.join(); err != nil {
		return err
	}
	a.pooled = true
	ctx.Logger().Debug("masters", zap.Int("count", len(a.settings.URLs)))
	return nil
}

// check says what is wrong with the settings that hold no placeholders.
func (a *App) check() error {
	switch {
	case a.Timeout < 0:
		return fmt.Errorf("timeout %v: must be above 0", time.Duration(a.Timeout))
	case a.MaxTTL < 0:
		return fmt.Errorf("max_ttl %v: must be above 0", time.Duration(a.MaxTTL))
	case a.BodyBudget < 0:
		return fmt.Errorf("body_budget %d: must be above 0", a.BodyBudget)
	case strings.ContainsAny(a.KeyPrefix, "{}"):
		return fmt.Errorf("key_prefix %q: must hold no brace", a.KeyPrefix)
	}
	if _, err := a.restartGuard(); err != nil {
		return err
	}
	if slices.ContainsFunc(a.Masters, func(u string) bool { return strings.Contains(u, "{") }) {
		return nil // not known before Provision
	}
	if _, err := redlock.Dial(a.Masters...); err != nil {
		return fmt.Errorf("masters: %w", err)
	}
	return nil
}

func (a *App) maxTTL() time.Duration {
	return cmp.Or(time.Duration(a.MaxTTL), redlock.DefaultMaxTTL)
}

// restartGuard is the guard's duration; 0 is off.
func (a *App) restartGuard() (time.Duration, error) {
	least := a.maxTTL() + time.Second
	switch a.RestartGuard {
	case "":
		return least, nil
	case "off":
		return 0, nil
	}
	guard, err := caddy.ParseDuration(a.RestartGuard)
	if err != nil {
		return 0, fmt.Errorf("restart_guard %q: want a duration such as %v, or off", a.RestartGuard, least)
	}
	if guard < least {
		return 0, fmt.Errorf("restart_guard %v: must be at least %v, the max_ttl and a second, or off", guard, least)
	}
	return guard, nil
}

// checkTTL says whether a rule may ask for this ttl; 0 is the default.
func (a *App) checkTTL(ttl caddy.Duration) error {
	if least := 2 * a.settings.Timeout; ttl > 0 && time.Duration(ttl) < least {
		return fmt.Errorf("ttl %v: must be at least %v, twice the timeout in the global option redlock", time.Duration(ttl), least)
	}
	if time.Duration(ttl) > a.maxTTL() {
		return fmt.Errorf("ttl %v is above max_ttl %v: lower it, or raise max_ttl in the global option redlock of all processes", time.Duration(ttl), a.maxTTL())
	}
	return nil
}

// resolve replaces the placeholders. Its errors show no value: it may be a secret.
func (a *App) resolve(repl *caddy.Replacer) (settings, error) {
	s := settings{
		Timeout: cmp.Or(time.Duration(a.Timeout), redlock.DefaultTimeout),
		Prefix:  cmp.Or(a.KeyPrefix, redlock.DefaultPrefix),
		MaxTTL:  a.maxTTL(),
	}
	var err error
	if s.Guard, err = a.restartGuard(); err != nil {
		return s, err
	}
	username, err := repl.ReplaceOrErr(a.Username, true, true)
	if err != nil {
		return s, errors.New("username: its placeholder is unknown or empty")
	}
	password, err := repl.ReplaceOrErr(a.Password, true, true)
	if err != nil {
		return s, errors.New("password: its placeholder is unknown or empty (is the file there, the variable set?)")
	}
	for i, master := range a.Masters {
		text, err := repl.ReplaceOrErr(master, true, true)
		if err != nil {
			return s, fmt.Errorf("masters: the placeholder of master %d is unknown or empty", i+1)
		}
		s.URLs = append(s.URLs, withUser(text, username, password))
	}
	if len(s.URLs) == 0 {
		s.URLs = []string{"memory://"}
	}
	return s, nil
}

// withUser adds the credentials to a URL that has none. Dial tells what is wrong with the others.
func withUser(text, username, password string) string {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Scheme == "memory" || username == "" && password == "" {
		return text
	}
	u.User = url.UserPassword(username, password)
	return u.String()
}

// Start does nothing: the masters are there from Provision on.
func (a *App) Start() error { return nil }

// Stop does nothing: requests may still hold locks. Cleanup gives back what Provision took.
func (a *App) Stop() error { return nil }

// Cleanup leaves the pool. The masters are closed when the last request that uses them is done.
func (a *App) Cleanup() error {
	if !a.pooled {
		return nil
	}
	a.pooled = false
	return a.settings.leave()
}

// Interface guards
var (
	_ caddy.App             = (*App)(nil)
	_ caddy.Provisioner     = (*App)(nil)
	_ caddy.CleanerUpper    = (*App)(nil)
	_ caddyfile.Unmarshaler = (*App)(nil)
)

package caddyredlock

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-redlock/caddy-redlock/internal/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// settings are those of an App with all placeholders replaced, and so with secrets in them.
type settings struct {
	connect.Options
	URLs []string
	TLS  *secured

	sum any // identifies the settings in the pool without the secrets in them; see setSum
}

// resolved returns the settings with their placeholders replaced and their files read. It joins no pool.
func (a *App) resolved(ctx caddy.Context) (settings, error) {
	if err := a.check(); err != nil {
		return settings{}, err
	}
	s, err := a.resolve(caddy.NewReplacer())
	if err == nil && a.TLS != nil {
		if s.TLS, err = a.TLS.load(ctx); err == nil && !slices.ContainsFunc(s.URLs, connect.UsesTLS) {
			err = connect.ErrNoTLS
		}
	}
	s.setSum()
	return s, err
}

// check returns what is wrong with the settings, as far as that can be known before placeholders are replaced.
func (a *App) check() error {
	switch {
	case a.Timeout < 0:
		return fmt.Errorf("timeout %v: must be above 0", time.Duration(a.Timeout))
	case a.MaxTTL < 0:
		return fmt.Errorf("max_ttl %v: must be above 0", time.Duration(a.MaxTTL))
	case a.BodyBudget < 0:
		return fmt.Errorf("body_budget %d: must be above 0", a.BodyBudget)
	case strings.ContainsAny(a.KeyPrefix, "{}"):
		return fmt.Errorf("key_prefix %q: must not contain braces", a.KeyPrefix)
	}
	if _, err := a.restartGuard(); err != nil {
		return err
	}
	if _, err := a.maxSkew(); err != nil {
		return err
	}
	if a.TLS != nil {
		if err := a.TLS.check(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(a.Masters, func(u string) bool { return strings.Contains(u, "{") }) {
		return nil // the URLs are not known before Provision
	}
	if _, err := redlock.Dial(a.Masters...); err != nil {
		return fmt.Errorf("masters: %w", err)
	}
	if a.TLS != nil && !slices.ContainsFunc(a.Masters, connect.UsesTLS) {
		return connect.ErrNoTLS
	}
	return nil
}

func (a *App) maxTTL() time.Duration {
	return cmp.Or(time.Duration(a.MaxTTL), redlock.DefaultMaxTTL)
}

// restartGuard returns how long the guard lasts; 0 means off.
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
		return 0, fmt.Errorf("restart_guard %v: must be at least %v (max_ttl and one second), or off", guard, least)
	}
	return guard, nil
}

// maxSkew returns how much the clocks may differ; 0 means off.
func (a *App) maxSkew() (time.Duration, error) {
	switch a.MaxSkew {
	case "":
		return min(redlock.DefaultMaxSkew, a.maxTTL()/2), nil
	case "off":
		return 0, nil
	}
	skew, err := caddy.ParseDuration(a.MaxSkew)
	if err != nil || skew <= 0 || skew >= a.maxTTL() {
		return 0, fmt.Errorf("max_skew %q: want a duration less than max_ttl, such as %v, or off", a.MaxSkew, redlock.DefaultMaxSkew)
	}
	return skew, nil
}

// checkTTL returns why a rule may not have this ttl, if it may not; 0 stands for the default.
func (a *App) checkTTL(ttl caddy.Duration) error {
	if least := 2 * a.settings.Timeout; ttl > 0 && time.Duration(ttl) < least {
		return fmt.Errorf("ttl %v: must be at least %v, twice the timeout in the global option redlock", time.Duration(ttl), least)
	}
	if time.Duration(ttl) > a.maxTTL() {
		return fmt.Errorf("ttl %v is above max_ttl %v: lower it, or raise max_ttl in the global option redlock of all processes", time.Duration(ttl), a.maxTTL())
	}
	return nil
}

// resolve replaces the placeholders. Its errors show no values, because they may be secrets.
func (a *App) resolve(repl *caddy.Replacer) (settings, error) {
	s := settings{Options: connect.Options{
		Timeout: cmp.Or(time.Duration(a.Timeout), redlock.DefaultTimeout),
		Prefix:  cmp.Or(a.KeyPrefix, redlock.DefaultPrefix),
		MaxTTL:  a.maxTTL(),
	}}
	var err error
	if s.Guard, err = a.restartGuard(); err != nil {
		return s, err
	}
	if s.MaxSkew, err = a.maxSkew(); err != nil {
		return s, err
	}
	if s.Instance, err = repl.ReplaceOrErr(a.Instance, true, true); err != nil {
		return s, errors.New("instance: the placeholder is unknown or empty")
	}
	username, err := repl.ReplaceOrErr(a.Username, true, true)
	if err != nil {
		return s, errors.New("username: the placeholder is unknown or empty")
	}
	password, err := repl.ReplaceOrErr(a.Password, true, true)
	if err != nil {
		return s, errors.New("password: the placeholder is unknown or empty (is the variable set? does the file exist?)")
	}
	for i, master := range a.Masters {
		text, err := repl.ReplaceOrErr(master, true, true)
		if err != nil {
			return s, fmt.Errorf("masters: the placeholder of master %d is unknown or empty", i+1)
		}
		s.URLs = append(s.URLs, connect.WithUser(text, username, password))
	}
	if len(s.URLs) == 0 {
		s.URLs = []string{"memory://"}
	}
	return s, nil
}

// doctorSettings returns what the command doctor needs to know of an app's settings in JSON, which may be absent.
func doctorSettings(ctx caddy.Context, text json.RawMessage) (doctor.Settings, error) {
	app := new(App)
	if text != nil {
		if err := caddy.StrictUnmarshalJSON(text, app); err != nil {
			return doctor.Settings{}, fmt.Errorf("the app redlock: %w", err)
		}
	}
	s, err := app.resolved(ctx)
	if err != nil {
		return doctor.Settings{}, app.Source.at(err)
	}
	masters, err := s.masters()
	if err != nil {
		return doctor.Settings{}, fmt.Errorf("masters: %w", err)
	}
	return doctor.Settings{Options: s.Options, Masters: masters, LeastTTL: s.TTL()}, nil
}

// loadSealer reads the keys for the responses on the masters. Its errors don't show them.
func loadSealer(files []string) (*middleware.Sealer, error) {
	if len(files) == 0 {
		return nil, nil
	}
	keys := make([][]byte, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("remember_keys: %w", err)
		}
		if keys[i], err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("remember_keys %s: not base64; make a key with: openssl rand -base64 32", file)
		}
	}
	sealer, err := middleware.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("remember_keys: %w; make a key with: openssl rand -base64 32", err)
	}
	return sealer, nil
}

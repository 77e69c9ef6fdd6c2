package caddycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
)

// configFlags are the flags that name a configuration, as Caddy's own commands have them.
type configFlags struct{ config, adapter string }

func (f *configFlags) add(flags *pflag.FlagSet) {
	flags.StringVarP(&f.config, "config", "c", "", "Configuration file (default: the Caddyfile in this folder)")
	flags.StringVarP(&f.adapter, "adapter", "a", "", "Name of config adapter to apply")
}

// load returns the configuration as JSON.
func (f *configFlags) load() ([]byte, error) {
	text, _, _, err := caddycmd.LoadConfig(f.config, f.adapter)
	if err == nil && len(text) == 0 {
		err = errors.New("no configuration: there is no Caddyfile in this folder; use --config")
	}
	return text, err
}

func (m Module) doctor() *cobra.Command {
	var config configFlags
	const help = `
Caddy need not run; if one does, at the admin endpoint of the configuration, its key_prefix
and masters are compared with it. Placeholders are replaced and secrets read as Caddy would
do it, so run it as Caddy's user, with its environment.`
	return program.Doctor("[--config <path>] [--adapter <name>]", help, config.add, func(ctx context.Context, _ *pflag.FlagSet, patience time.Duration) (doctor.Report, error) {
		text, err := config.load()
		if err != nil {
			return doctor.Report{}, err
		}
		s, err := m.settings(ctx, text)
		if err != nil {
			return doctor.Report{}, err
		}
		s.Running, s.Patience = running(ctx, config), patience
		return doctor.Examine(ctx, s), nil
	})
}

// running returns the lockers of the Caddy that runs with the admin endpoint of the configuration, if there is one.
func running(ctx context.Context, config configFlags) (lockers []doctor.Running) {
	endpoint, err := (&adminFlags{config: config.config, adapter: config.adapter}).Open(nil)
	if err != nil {
		return nil
	}
	defer endpoint.Close()
	var status console.Status
	if endpoint.Ask(ctx, http.MethodGet, "masters", nil, &status) != nil {
		return nil
	}
	for _, l := range status.Lockers {
		r := doctor.Running{Instance: l.Instance, Prefix: l.Prefix}
		for _, m := range l.Masters {
			r.Masters = append(r.Masters, m.Name)
		}
		lockers = append(lockers, r)
	}
	return lockers
}

// settings returns what doctor needs to know of a configuration.
func (m Module) settings(ctx context.Context, text []byte) (doctor.Settings, error) {
	var config struct {
		Apps struct {
			HTTP    any             `json:"http"`
			Redlock json.RawMessage `json:"redlock"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return doctor.Settings{}, fmt.Errorf("configuration: %w", err)
	}
	caddyContext, cancel := caddy.NewContext(caddy.Context{Context: ctx})
	defer cancel()
	s, err := m.Masters(caddyContext, config.Apps.Redlock)
	if err != nil {
		return doctor.Settings{}, err
	}
	eachRule(config.Apps.HTTP, func(rule map[string]any) {
		if ttl := durationOf(rule["ttl"]); ttl > 0 {
			s.LeastTTL = min(s.LeastTTL, ttl)
		}
		s.Remember = s.Remember || durationOf(rule["remember"]) > 0 || rule["remember"] == nil && rule["preset"] == "idempotency-key"
	})
	return s, nil
}

// eachRule calls found with the settings of each rule, however deep it is nested.
func eachRule(config any, found func(rule map[string]any)) {
	switch config := config.(type) {
	case []any:
		for _, item := range config {
			eachRule(item, found)
		}
	case map[string]any:
		if config["handler"] == "redlock" {
			found(config)
		}
		for _, item := range config {
			eachRule(item, found)
		}
	}
}

// durationOf reads a duration as Caddy does, or returns 0.
func durationOf(setting any) time.Duration {
	var d caddy.Duration
	if text, err := json.Marshal(setting); err != nil || json.Unmarshal(text, &d) != nil {
		return 0
	}
	return time.Duration(d)
}

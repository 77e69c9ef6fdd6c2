package caddyredlock

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("redlock", parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective("redlock", parseDirective)
	// After authentication and the directives that change the request, and before all that answer it. "Before reverse_proxy" would put redlock behind
	// respond, where it would silently never run. After encode, because a remembered response must be compressed, or not, for each client that gets
	// it.
	httpcaddyfile.RegisterDirectiveOrder("redlock", httpcaddyfile.After, "encode")
}

// parseDirective sets up a handler from a site block; see Handler.UnmarshalCaddyfile.
func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens:
//
//	redlock [<matcher>] [<key>...] {
//		<setting> <value>...
//	}
//
// The settings are those of middleware.Rule, by their names in JSON, which docs/configuration.md lists. A switch takes on, off, or
// nothing, which turns it on; a duration may be off. The keys are given once, on the first line or in the block.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive
	h.Keys = d.RemainingArgs()
	known := settingsOf(d, &h.Rule)
	known["verify"] = func() error { return verifyArgs(d, &h.Verify) }
	places, err := block(d, known, "verify")
	if err != nil {
		return err
	}
	if err := h.check(); err != nil {
		if len(h.Keys) == 0 && strings.HasPrefix(err.Error(), "key: ") {
			err = fmt.Errorf("%w; a first value that begins with / or @ is taken for a matcher", err)
		}
		return places.at(err)
	}
	h.Source = places.only("key", "ttl", "max_body", "fence_header", "key_header", "verify")
	return nil
}

// parseGlobalOption sets up the app from the global options; see App.UnmarshalCaddyfile.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		d.Next()
		return nil, d.Err("duplicate global option redlock: merge the two blocks")
	}
	app := new(App)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "redlock", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens:
//
//	redlock {
//		tls {
//			trust_pool  <module> ... # as in reverse_proxy: file /path/to/ca.pem
//			client_auth <certificate file> <key file>
//			<setting>   <value>
//		}
//		<setting> <value>...
//	}
//
// The settings are those of App and TLS, by their names in JSON, which docs/configuration.md lists.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option
	if d.NextArg() {
		return d.Errf("unexpected %q; want a block: redlock { masters … }", d.Val())
	}
	known := settingsOf(d, a)
	known["tls"] = func() error { a.TLS = new(TLS); return a.TLS.unmarshal(d) }
	delete(known, "source") // UnmarshalCaddyfile itself sets it
	places, err := block(d, known)
	if err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return places.at(err)
	}
	a.Source = places.only("masters", "username", "password", "tls", "instance", "remember_keys")
	return nil
}

// source has the place of each setting of a block in the Caddyfile, as file:line by name; "redlock" is the block itself.
type source map[string]string

// at adds the place of a setting to an error that begins with the name of the setting, as all errors do that are only found after
// the whole block has been read.
func (s source) at(err error) error {
	name, _, _ := strings.Cut(err.Error(), " ")
	place := cmp.Or(s[strings.TrimSuffix(name, ":")], s["redlock"])
	if place == "" { // a configuration in JSON, for which Caddy names the routes
		return err
	}
	return fmt.Errorf("%w, at %s", err, place)
}

func (s source) only(names ...string) source {
	maps.DeleteFunc(s, func(name, _ string) bool { return name != "redlock" && !slices.Contains(names, name) })
	return s
}

// block reads a block of subdirectives. Each must be one of the known ones, and may occur once, unless it is among the repeated ones.
func block(d *caddyfile.Dispenser, known map[string]func() error, repeated ...string) (source, error) {
	here := func() string { return fmt.Sprintf("%s:%d", d.File(), d.Line()) }
	places := source{"redlock": here(), "key": here()}
	seen := make(map[string]int)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		read, ok := known[name]
		if !ok {
			return nil, d.Errf("unknown subdirective %q; want one of: %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		line, again := seen[name]
		if again && !slices.Contains(repeated, name) {
			return nil, d.Errf("duplicate %s: already set on line %d", name, line)
		}
		seen[name], places[name] = d.Line(), here()
		if again {
			delete(places, name) // an error then names the place of the block, which is right for all of them
		}
		if err := read(); err != nil {
			return nil, err
		}
		if d.NextBlock(d.Nesting()) {
			return nil, d.Errf("%s takes no block", name)
		}
	}
	return places, nil
}

// settingsOf returns a function for each setting of a struct, which reads the setting by the type of its field.
func settingsOf(d *caddyfile.Dispenser, of any) map[string]func() error {
	known := make(map[string]func() error)
	for name, field := range rule.Settings(of) {
		known[name] = func() error {
			if field.Kind() == reflect.Slice && field.Len() > 0 {
				return d.Errf("%s: already given on the first line", name)
			}
			if err := rule.Set(field, name, d.RemainingArgs()...); err != nil {
				return d.WrapErr(err)
			}
			return nil
		}
	}
	return known
}

func verifyArgs(d *caddyfile.Dispenser, into *[]middleware.Verify) error {
	args := d.RemainingArgs()
	var v middleware.Verify
	if len(args) > 0 {
		v.Scheme, args = args[0], args[1:]
	}
	if len(args) > 1 && args[0] == "as" {
		v.Name, args = args[1], args[2:]
	}
	if v.Secrets = args; len(args) == 0 {
		return d.Err("verify: want a scheme and at least one secret, such as stripe {env.STRIPE_SECRET}, or with the name of one of several senders, stripe as acme {env.ACME_SECRET}")
	}
	*into = append(*into, v)
	return nil
}

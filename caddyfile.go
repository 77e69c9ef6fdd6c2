package caddyredlock

import (
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("redlock", parseGlobalOption)
	httpcaddyfile.RegisterHandlerDirective("redlock", parseDirective)
	// After authentication and the directives that change the request, and before all that answer it. "Before reverse_proxy"
	// would put redlock behind respond, where it would silently never run. After encode, as a remembered answer must be
	// compressed, or not, for each client that gets it.
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
//		name             <text>         # in logs and metrics; default: the keys and the preset
//		show_client                     # to operators: who has sent a request
//		key              <template>...
//		preset           <sender>       # stripe, github, …: settings for what is not set here
//		wait             <duration>     # default 0: don't wait
//		ttl              <duration>     # default 10s; at most max_ttl
//		max_hold         <duration>     # default 5m
//		concurrency      <number>       # of requests at a time; default 1
//		max_waiters      <number>       # default 1000
//		fence_header     <name>         # default Fencing-Token
//		key_header       <name>         # default none
//		held_status      <status>       # default 423
//		no_quorum_status <status>       # default 409
//		on_missing_key   refuse|pass    # default refuse, with 400
//		on_no_quorum     refuse|pass    # default refuse
//		max_body         <size>         # default 1MiB
//		body_timeout     <duration>     # default 10s
//		buffer_body      [on|off]       # default off; with a preset on
//		answer_timeout   <duration>     # default 10s
//		buffer_answer    [on|off]       # default off; with a preset on
//		verify           <scheme> <secret>...
//		replay_window    <duration>     # default 5m
//		dedupe           <template>|off # default off
//		idempotency_key  required|optional|off # default off: the header Idempotency-Key as the ID
//		scope            <template>|off # default off: who has sent the ID
//		remember         <duration>|off [<max size>] # default off; 64KiB
//		remember_quota   <size>         # default 1GiB, on each master, for each process
//		remember_status  <status>...    # default: below 500 but 401, 403, 408, 409, 423, 425 and 429
//		on_duplicate     refuse|wait    # default refuse, with 409
//		fingerprint      [on|off]       # default on; with a preset for webhooks off
//		allow_upgrade
//		on_client_abort  run|cancel     # default run
//		hold_after_abort <duration>     # default 0: the lock is released at once
//		dry_run
//	}
//
// The keys are given once, on the first line or in the block.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive
	h.Keys = d.RemainingArgs()
	places, err := block(d, map[string]func() error{
		"name":             func() error { return oneArg(d, &h.Name) },
		"show_client":      func() error { h.ShowClient = true; return noArgs(d) },
		"key":              func() error { return someArgs(d, &h.Keys) },
		"preset":           func() error { return oneArg(d, &h.Preset) },
		"wait":             func() error { return waitArg(d, &h.Wait) },
		"ttl":              func() error { return durationArg(d, &h.TTL) },
		"max_hold":         func() error { return durationArg(d, &h.MaxHold) },
		"concurrency":      func() error { return numberArg(d, &h.Concurrency) },
		"max_waiters":      func() error { return numberArg(d, &h.MaxWaiters) },
		"fence_header":     func() error { return oneArg(d, &h.FenceHeader) },
		"key_header":       func() error { return oneArg(d, &h.KeyHeader) },
		"held_status":      func() error { return statusArg(d, &h.HeldStatus) },
		"no_quorum_status": func() error { return statusArg(d, &h.NoQuorumStatus) },
		"on_missing_key":   func() error { return oneArg(d, &h.OnMissingKey) },
		"on_no_quorum":     func() error { return oneArg(d, &h.OnNoQuorum) },
		"max_body":         func() error { return sizeArg(d, &h.MaxBody) },
		"verify":           func() error { return verifyArgs(d, &h.Verify) },
		"dedupe":           func() error { return oneArg(d, &h.Dedupe) },
		"idempotency_key":  func() error { return oneArg(d, &h.IdempotencyKey) },
		"scope":            func() error { return oneArg(d, &h.Scope) },
		"remember":         func() error { return rememberArgs(d, &h.Remember, &h.RememberSize) },
		"remember_quota":   func() error { return sizeArg(d, &h.RememberQuota) },
		"remember_status":  func() error { return someArgs(d, &h.RememberStatus) },
		"on_duplicate":     func() error { return oneArg(d, &h.OnDuplicate) },
		"fingerprint":      func() error { return switchArg(d, &h.Fingerprint) },
		"allow_upgrade":    func() error { h.AllowUpgrade = true; return noArgs(d) },
		"hold_after_abort": func() error { return durationArg(d, &h.HoldAfterAbort) },
		"on_client_abort":  func() error { return oneArg(d, &h.OnClientAbort) },
		"dry_run":          func() error { h.DryRun = true; return noArgs(d) },
		"replay_window":    func() error { return durationArg(d, &h.ReplayWindow) },
		"body_timeout":     func() error { return durationArg(d, &h.BodyTimeout) },
		"buffer_body":      func() error { return switchArg(d, &h.BufferBody) },
		"answer_timeout":   func() error { return durationArg(d, &h.AnswerTimeout) },
		"buffer_answer":    func() error { return switchArg(d, &h.BufferAnswer) },
	})
	if err != nil {
		return err
	}
	if err := h.check(); err != nil {
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
//		masters       <url>...      # default memory://, which only works for a single process
//		username      <name>
//		password      <password>    # or {file./run/secrets/redis}, {env.REDIS_PASSWORD}
//		tls {                       # for masters with rediss://
//			trust_pool           <module> ... # as in reverse_proxy: file /path/to/ca.pem
//			client_auth          <certificate file> <key file>
//			server_name          <name>
//			insecure_skip_verify
//		}
//		timeout       <duration>    # of a master; default 50ms
//		key_prefix    <prefix>      # default redlock
//		max_ttl       <duration>    # default 30s
//		restart_guard <duration>|off
//		max_skew      <duration>|off # of the masters' clocks; default 2s
//		instance      <name>        # of this process; default its host and process ID
//		body_budget   <size>        # default 64MiB
//		remember_keys <file>...     # encrypt remembered answers; default none
//	}
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the option
	if d.NextArg() {
		return d.Errf("unexpected %q; want a block: redlock { masters … }", d.Val())
	}
	places, err := block(d, map[string]func() error{
		"masters":       func() error { return someArgs(d, &a.Masters) },
		"username":      func() error { return oneArg(d, &a.Username) },
		"password":      func() error { return oneArg(d, &a.Password) },
		"tls":           func() error { a.TLS = new(TLS); return a.TLS.UnmarshalCaddyfile(d) },
		"timeout":       func() error { return durationArg(d, (*time.Duration)(&a.Timeout)) },
		"key_prefix":    func() error { return oneArg(d, &a.KeyPrefix) },
		"max_ttl":       func() error { return durationArg(d, (*time.Duration)(&a.MaxTTL)) },
		"restart_guard": func() error { return oneArg(d, &a.RestartGuard) },
		"max_skew":      func() error { return oneArg(d, &a.MaxSkew) },
		"instance":      func() error { return oneArg(d, &a.Instance) },
		"body_budget":   func() error { return sizeArg(d, &a.BodyBudget) },
		"remember_keys": func() error { return someArgs(d, &a.RememberKeys) },
	})
	if err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return places.at(err)
	}
	a.Source = places.only("masters", "username", "password", "tls", "instance", "remember_keys")
	return nil
}

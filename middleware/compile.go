package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// compiled is a Rule that New or Compile has checked.
type compiled struct {
	Rule // as given, with the settings of the preset and the defaults filled in

	keys      templates             // the key templates; nil if a KeyFunc derives the key, or if the rule has no keys
	derive    keysFunc              // derives the keys; nil if the rule locks only the IDs of requests
	dedupe    KeyFunc               // reads the ID of a delivery; nil if the rule locks no IDs
	scope     KeyFunc               // reads the scope of the ID; nil for none
	ownScope  bool                  // the rule itself has set the scope, and not its preset
	byUser    bool                  // the scope is the authenticated user, if there is one
	verifiers []*signature.Verifier // one for each Verify
	readsBody bool
	needsBody bool // a key or an ID has a placeholder that has a value only with a body
	requires  bool // this is the rule of a Requirement, which takes no locks

	remembers *remember.Policy     // nil if no responses are remembered
	options   []redlock.LockOption // options of the locks on keys
	holdTimes holdTimes
	logPauses logPauses
	dryRuns   dryRuns
}

// compile checks a rule. The keys come from derive, if it isn't nil, and otherwise from the rule's templates.
func compile(rule Rule, derive keysFunc, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*compiled, error) {
	c := &compiled{Rule: rule, derive: derive}
	c.Name = rule.name()
	var preset parts.Preset
	var err error
	if rule.Preset != "" {
		if preset, err = presetOf(rule.Preset); err != nil {
			return nil, err
		}
	}
	c.ownScope = rule.hasScope()
	c.byUser = rule.User != nil && rule.Scope == ""
	c.setPreset(preset)
	c.setDefaults()
	if err := c.compileTemplates(func(name string) (KeyFunc, error) { return placeholder(&c.Rule, name) }); err != nil {
		return nil, err
	}
	if err := c.compileVerify(); err != nil {
		return nil, err
	}
	c.readsBody = c.readsBody || len(c.verifiers) > 0 || *c.BufferBody || c.Remember > 0
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := rule.checkNeeds(c.Remember > 0); err != nil {
		return nil, err
	}
	if c.TTL > 0 {
		c.options = append(c.options, redlock.WithTTL(c.TTL))
	}
	c.options = append(c.options, redlock.WithLabel(c.Name), redlock.WithWait(c.Wait), redlock.WithMastersWait(c.MastersWait), redlock.WithMaxHold(c.MaxHold), redlock.WithConcurrency(c.Concurrency[0]))
	if c.MaxWaiters > 0 {
		c.options = append(c.options, redlock.WithMaxWaiters(c.MaxWaiters))
	}
	c.options = slices.Clip(c.options)
	for _, name := range [...]string{c.FenceHeader, c.KeyHeader} {
		if name != "" {
			ruleHeaders.Store(name, nil)
		}
	}
	c.observeBegin()
	return c, nil
}

// byDefault returns a rule with the default settings, and without keys. It serves no requests.
func byDefault(rule Rule) *compiled {
	rule.setDefaults()
	return &compiled{Rule: rule}
}

func (c *compiled) compileTemplates(placeholder placeholderFunc) (err error) {
	set := new(fieldSet)
	switch {
	case c.derive != nil && len(c.Keys) > 0:
		return errors.New("key: the keys come from a function, and from templates or a preset: want one of them")
	case len(c.Keys) > 0:
		if c.keys, err = parseTemplates(c.Keys, placeholder); err != nil {
			return err
		}
		for _, t := range c.keys {
			set.add(t)
		}
		c.derive, c.readsBody = c.keys.Keys, slices.ContainsFunc(c.keys, (*keyTemplate).ReadsBody)
		c.needsBody = slices.ContainsFunc(c.keys, (*keyTemplate).needsBody)
	}
	if err := c.compileID(placeholder, set); err != nil {
		return err
	}
	if c.derive == nil && !c.identifiesByHeader() {
		return errors.New("key: want at least one template, such as order:{path.1:int}")
	}
	if c.hasScope() {
		scope, err := parseScope(c.Scope, placeholder)
		if err != nil {
			return err
		}
		set.add(scope)
		c.scope, c.readsBody = scope.exactKey(), c.readsBody || scope.ReadsBody()
	}
	return nil
}

// compileID sets c.dedupe, which reads the ID of a delivery from the request.
func (c *compiled) compileID(placeholder placeholderFunc, set *fieldSet) error {
	switch c.IdempotencyKey {
	case "", off, required, optional:
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", c.IdempotencyKey)
	}
	switch {
	case c.identifiesByHeader() && c.Dedupe != "" && c.Dedupe != off:
		return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
	case c.identifiesByHeader():
		c.dedupe = idempotencyKey
	case c.hasID():
		id, err := parseDedupe(c.Dedupe, placeholder)
		if err != nil {
			return err
		}
		set.add(id)
		c.dedupe, c.readsBody = id.exactKey(), c.readsBody || id.ReadsBody()
		c.needsBody = c.needsBody || id.needsBody()
	}
	return nil
}

// compileVerify makes a verifier for each sender. No two senders may share a secret or a name, because the secret tells who has signed a request, and
// the name is a part of the ID.
func (c *compiled) compileVerify() error {
	for _, v := range c.Verify {
		verifier, err := signature.New(v.Scheme, v.Secrets)
		if err == nil && strings.ContainsAny(v.Name, "{}") {
			err = errors.New("the name has no placeholders")
		}
		if err = cmp.Or(err, checkName("name", v.Name)); err != nil {
			return fmt.Errorf("%v: %w", v, err)
		}
		for j, other := range c.verifiers {
			switch o := c.Verify[j]; {
			case v.Name == "" && o.Name == "":
				return fmt.Errorf("%v: another verify has no name either, and its deliveries must be told from these: secrets of one sender belong into one verify, and a different sender needs a name, as in verify %s as acme", v, v.Scheme)
			case v.Name == o.Name:
				return fmt.Errorf("%v: another verify has this name, too: secrets of one sender belong into one verify", v)
			case verifier.SharesSecret(other):
				return fmt.Errorf("%v: has a secret of %v, too, so that it doesn't tell who has signed; want a secret of its own for each sender", v, o)
			}
		}
		c.verifiers = append(c.verifiers, verifier)
	}
	return nil
}

// check checks all settings except for the templates and the signatures. It also compiles the settings for remembered responses.
func (c *compiled) check() error {
	if err := cmp.Or(checkName("name", c.Name), c.checkSite()); err != nil {
		return err
	}
	for _, choice := range []struct{ setting, value, otherwise, special string }{
		{"on_missing_key", c.OnMissingKey, "refuse", Pass},
		{"on_no_quorum", c.OnNoQuorum, "refuse", Pass},
		{"on_duplicate", c.OnDuplicate, "refuse", waits},
		{"on_client_abort", c.OnClientAbort, Cancel, "run"},
	} {
		if choice.value != choice.otherwise && choice.value != choice.special {
			return fmt.Errorf("%s %q: want %s or %s", choice.setting, choice.value, choice.otherwise, choice.special)
		}
	}
	if c.BodyFormat != "" && c.BodyFormat != grammar.JSON && c.BodyFormat != grammar.Urlencoded {
		return fmt.Errorf("body_format %q: want json or form", c.BodyFormat)
	}
	for _, duration := range []struct {
		setting string
		value   time.Duration
	}{{"max_hold", c.MaxHold}, {"ttl", c.TTL}, {"body_timeout", c.BodyTimeout}, {"response_timeout", c.ResponseTimeout}, {"replay_window", c.ReplayWindow}} {
		if duration.value < 0 {
			return fmt.Errorf("%s: want a duration above 0 such as 500ms, 2s or 1m", duration.setting)
		}
	}
	switch {
	case c.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", c.MaxWaiters)
	case !isRefusal(c.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", c.HeldStatus)
	case !isRefusal(c.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", c.NoQuorumStatus)
	case c.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", c.MaxBody)
	case c.MaxBody > c.BodyBudget.bytes.Size():
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", c.MaxBody, c.BodyBudget.bytes.Size())
	case c.scope != nil && c.dedupe == nil:
		return errors.New("scope needs dedupe or idempotency_key: it tells apart the IDs of different senders")
	}
	if err := c.checkConcurrency(); err != nil {
		return err
	}
	if err := c.checkHeaders(); err != nil {
		return err
	}
	return c.compileRemember()
}

func isRefusal(status int) bool { return 400 <= status && status <= 599 }

// maxName is how many bytes the name of a rule may have, because each line of the access log and each series of metrics contains it.
const maxName = 128

// checkName returns an error unless the name given in a setting fits into logs and metrics.
func checkName(setting, name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("%s %.20q…: longer than %d bytes", setting, name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isUnprintable):
		return fmt.Errorf("%s %q: has characters that can't be printed", setting, name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("%s %q: must not begin or end with a space", setting, name)
	}
	return nil
}

func (c *compiled) checkSite() error {
	switch {
	case c.Site == "":
		return nil
	case strings.ContainsAny(c.Site, "{}"):
		return fmt.Errorf("site %q: is the same name for all requests, and has no placeholders", c.Site)
	case c.dedupe == nil:
		return errors.New("site needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	}
	return checkName("site", c.Site)
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// defaultName returns the name of a rule that has none: its key templates as written and its preset, cut to the longest allowed name.
func defaultName(templates []string, preset string) string {
	name := strings.Join(templates, " ")
	switch {
	case preset != "" && name != "":
		name += " (preset " + preset + ")"
	case preset != "":
		name = "preset " + preset
	}
	name = strings.Map(func(r rune) rune {
		if isUnprintable(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.TrimSpace(name))
	const more = "…"
	if len(name) > maxName {
		end := maxName - len(more)
		for !utf8.RuneStart(name[end]) {
			end--
		}
		name = strings.TrimRight(name[:end], " ") + more
	}
	return name
}

// nameOfFunc returns the default name of a rule with a function for its keys: the function's name, such as main.orderKey.
func nameOfFunc(key KeyFunc) string {
	name := runtime.FuncForPC(reflect.ValueOf(key).Pointer()).Name()
	return defaultName([]string{name[strings.LastIndexByte(name, '/')+1:]}, "")
}

func (c *compiled) checkConcurrency() error {
	if err := c.Concurrency.check(len(c.keys)); err != nil {
		return err
	}
	if c.derive == nil && slices.Max(c.Concurrency) > 1 {
		return errors.New("concurrency: needs a key; an ID is locked for one request at a time")
	}
	return nil
}

func (c *compiled) checkHeaders() error {
	if fold.SameHeader(c.FenceHeader, SlotHeader) {
		return fmt.Errorf("fence_header %q: is the header of the slot; want another header, such as %s", c.FenceHeader, DefaultFenceHeader)
	}
	if err := c.checkHeader("fence_header", c.FenceHeader, DefaultFenceHeader); err != nil || c.KeyHeader == "" {
		return err
	}
	switch {
	case fold.SameHeader(c.KeyHeader, SlotHeader):
		return fmt.Errorf("key_header %q: is the header of the slot; want another header, such as %s", c.KeyHeader, bestKeyHeader)
	case c.keys == nil:
		return errors.New("key_header: needs the template of a key, whose values it shows")
	case fold.SameHeader(c.KeyHeader, c.FenceHeader):
		return fmt.Errorf("key_header %q: is the fence_header; want another header, such as %s", c.KeyHeader, bestKeyHeader)
	}
	return c.checkHeader("key_header", c.KeyHeader, bestKeyHeader)
}

func (c *compiled) checkHeader(setting, name, better string) error {
	same := func(header string) bool { return fold.SameHeader(header, name) }
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%s %q: not the name of a header", setting, name)
	case slices.ContainsFunc(noFenceHeaders, same):
		return fmt.Errorf("%s %q: has a meaning of its own in HTTP; want another header, such as %s", setting, name, better)
	case slices.ContainsFunc(c.verifiers, func(v *signature.Verifier) bool { return slices.ContainsFunc(v.Headers(), same) }):
		return fmt.Errorf("%s %q: the signature is read from this header; want another one, such as %s", setting, name, better)
	}
	return nil
}

func (c *compiled) compileRemember() (err error) {
	settings := remember.Settings{Keep: c.Remember, Size: c.RememberSize, Quota: c.RememberQuota, Statuses: c.RememberStatus, MaxResult: redlock.MaxResult}
	if c.Sealer != nil {
		settings.Sealer = c.Sealer.sealer
	}
	if c.remembers, err = settings.Compile(); err != nil {
		return err
	}
	switch {
	case c.Remember > 0 && c.dedupe == nil:
		return errors.New("remember needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	case c.waitsForResponses() && (c.Remember == 0 || c.Wait == 0):
		return errors.New("on_duplicate wait: needs remember, for the response that a repeat waits for, and wait, for how long")
	case c.Remember > 0 && !c.runsToEnd():
		return errors.New("on_client_abort cancel: remember needs requests that run to their end: a client that has left is the one that repeats")
	}
	return nil
}

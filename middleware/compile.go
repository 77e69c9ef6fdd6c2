package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Serializer is a Rule that was checked, and serves requests by it.
type Serializer struct {
	// Rule is as it was given, with the settings of its preset and the defaults.
	Rule

	keys      templates // nil if derive isn't theirs
	derive    keysFunc  // nil if the rule locks only the IDs of requests
	dedupe    KeyFunc   // nil for none
	scope     KeyFunc   // nil for none
	ownScope  bool      // the rule itself has set the scope, and not its preset
	byUser    bool      // the scope is whom authentication has found, if it has
	final     func(status int) bool
	verifier  *signature.Verifier // nil for none
	readsBody bool

	options []redlock.LockOption // of the locks on keys
	quota   *quota               // nil if nothing is remembered
	pace    pace
	lines   lines
	dryRuns dryRuns
}

// Compile returns what serves requests by a rule: for programs with a configuration of their own, as New is for those that have a
// handler. The placeholders of templates are compiled by the given function, which may be (*Rule).Placeholder. Errors begin with the
// name that the setting has in a configuration. A TTL that the Locker doesn't allow is found by Serve.
func Compile(rule Rule, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*Serializer, error) {
	return compile(rule, nil, placeholder)
}

// compile takes the keys from derive, if there is one, and from the rule's templates otherwise.
func compile(rule Rule, derive keysFunc, placeholder func(rule *Rule, name string) (KeyFunc, error)) (*Serializer, error) {
	s := &Serializer{Rule: rule, derive: derive}
	s.Name = rule.RuleName()
	var preset Preset
	var err error
	if rule.Preset != "" {
		if preset, err = LookupPreset(rule.Preset); err != nil {
			return nil, err
		}
	}
	s.ownScope = rule.hasScope()
	s.byUser = rule.User != nil && rule.Scope == ""
	s.setPreset(preset)
	s.setDefaults()
	if err := s.compileTemplates(func(name string) (KeyFunc, error) { return placeholder(&s.Rule, name) }); err != nil {
		return nil, err
	}
	if s.Verify != nil {
		if s.verifier, err = signature.New(s.Verify.Scheme, s.Verify.Secrets); err != nil {
			return nil, err
		}
		s.readsBody = true
	}
	s.readsBody = s.readsBody || *s.BufferBody || s.Remember > 0
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := rule.checkNeeds(s.Remember > 0); err != nil {
		return nil, err
	}
	if s.TTL > 0 {
		s.options = append(s.options, redlock.WithTTL(s.TTL))
	}
	s.options = append(s.options, redlock.WithLabel(s.Name), redlock.WithWait(s.Wait), redlock.WithMaxHold(s.MaxHold), redlock.WithConcurrency(s.Concurrency[0]))
	if s.MaxWaiters > 0 {
		s.options = append(s.options, redlock.WithMaxWaiters(s.MaxWaiters))
	}
	s.options = slices.Clip(s.options)
	if s.Observer != nil {
		s.Observe(s.Observer)
	}
	return s, nil
}

// byDefault returns what has no keys, and serves no requests.
func byDefault(rule Rule) *Serializer {
	rule.setDefaults()
	return &Serializer{Rule: rule}
}

// compileTemplates reads the templates of the keys, of the ID and of who has sent it.
func (rule *Serializer) compileTemplates(placeholder PlaceholderFunc) (err error) {
	set := new(fieldSet)
	switch {
	case rule.derive != nil && len(rule.Keys) > 0:
		return errors.New("key: the keys come from a function, and from templates or a preset: want one of them")
	case len(rule.Keys) > 0:
		if rule.keys, err = parseTemplates(rule.Keys, placeholder); err != nil {
			return err
		}
		for _, t := range rule.keys {
			set.take(t)
		}
		rule.derive, rule.readsBody = rule.keys.Keys, slices.ContainsFunc(rule.keys, (*Template).ReadsBody)
	}
	if err := rule.compileID(placeholder, set); err != nil {
		return err
	}
	if rule.derive == nil && !rule.identifiesByHeader() {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}; a first value that begins with / or @ is taken for a matcher")
	}
	if rule.hasScope() {
		scope, err := parseScope(rule.Scope, placeholder)
		if err != nil {
			return err
		}
		set.take(scope)
		rule.scope, rule.readsBody = scope.exactKey(), rule.readsBody || scope.ReadsBody()
	}
	rule.final = isFinal
	if rule.RememberStatus != nil {
		rule.final, err = parseStatuses(rule.RememberStatus)
	}
	return err
}

// compileID finds out how the ID of a delivery is found.
func (rule *Serializer) compileID(placeholder PlaceholderFunc, set *fieldSet) error {
	switch rule.IdempotencyKey {
	case "", off, required, optional:
	default:
		return fmt.Errorf("idempotency_key %q: want required, optional or off", rule.IdempotencyKey)
	}
	switch {
	case rule.identifiesByHeader() && rule.Dedupe != "" && rule.Dedupe != off:
		return errors.New("idempotency_key and dedupe both name the ID of a request: want one of them")
	case rule.identifiesByHeader():
		rule.dedupe = IdempotencyKey
	case rule.hasID():
		id, err := parseDedupe(rule.Dedupe, placeholder)
		if err != nil {
			return err
		}
		set.take(id)
		rule.dedupe, rule.readsBody = id.exactKey(), rule.readsBody || id.ReadsBody()
	}
	return nil
}

// check returns what else is wrong with a rule.
func (rule *Serializer) check() error {
	if err := checkName(rule.Name); err != nil {
		return err
	}
	for _, choice := range []struct{ setting, value, otherwise, special string }{
		{"on_missing_key", rule.OnMissingKey, "refuse", Pass},
		{"on_no_quorum", rule.OnNoQuorum, "refuse", Pass},
		{"on_duplicate", rule.OnDuplicate, "refuse", waits},
		{"on_client_abort", rule.OnClientAbort, Cancel, "run"},
	} {
		if choice.value != choice.otherwise && choice.value != choice.special {
			return fmt.Errorf("%s %q: want %s or %s", choice.setting, choice.value, choice.otherwise, choice.special)
		}
	}
	for _, duration := range []struct {
		setting string
		value   time.Duration
	}{{"max_hold", rule.MaxHold}, {"ttl", rule.TTL}, {"body_timeout", rule.BodyTimeout}, {"response_timeout", rule.ResponseTimeout}, {"replay_window", rule.ReplayWindow}} {
		if duration.value < 0 {
			return fmt.Errorf("%s: want a duration above 0 such as 500ms, 2s or 1m", duration.setting)
		}
	}
	switch {
	case rule.MaxWaiters < 0:
		return fmt.Errorf("max_waiters %d: must not be negative", rule.MaxWaiters)
	case !isRefusal(rule.HeldStatus):
		return fmt.Errorf("held_status %d: must be from 400 to 599", rule.HeldStatus)
	case !isRefusal(rule.NoQuorumStatus):
		return fmt.Errorf("no_quorum_status %d: must be from 400 to 599", rule.NoQuorumStatus)
	case rule.MaxBody < 0:
		return fmt.Errorf("max_body %d: must not be negative", rule.MaxBody)
	case rule.MaxBody > rule.BodyBudget.size:
		return fmt.Errorf("max_body %d is above the budget for all bodies, %d bytes", rule.MaxBody, rule.BodyBudget.size)
	case rule.scope != nil && rule.dedupe == nil:
		return errors.New("scope needs dedupe or idempotency_key: it tells apart the IDs of different senders")
	}
	if err := rule.checkConcurrency(); err != nil {
		return err
	}
	if err := rule.checkHeaders(); err != nil {
		return err
	}
	if err := rule.checkQuota(); err != nil {
		return err
	}
	return rule.checkRemember()
}

// checkNeeds returns an error if a setting of responses that are remembered is given, and none are.
func (rule *Rule) checkNeeds(remembers bool) error {
	for _, setting := range []struct {
		name  string
		given bool
	}{{"remember_size", rule.RememberSize != 0}, {"remember_quota", rule.RememberQuota != 0}, {"remember_status", rule.RememberStatus != nil}, {"fingerprint", rule.Fingerprint != nil}} {
		if setting.given && !remembers {
			return fmt.Errorf("%s needs remember, as nothing is remembered without it", setting.name)
		}
	}
	return nil
}

func isRefusal(status int) bool { return 400 <= status && status <= 599 }

// ReadsBody reports whether bodies are read before a lock is taken.
func (rule *Serializer) ReadsBody() bool { return rule.readsBody }

// Global returns the first template that makes one key of all requests, which is hardly ever meant where one holds it at a time, or "".
func (rule *Serializer) Global() string {
	for i, template := range rule.keys {
		if rule.Concurrency.of(i) == 1 && template.Global() {
			return rule.Keys[i]
		}
	}
	return ""
}

// maxName is how long the name of a rule may be, in bytes: it is in each line of the access log and in each series of metrics.
const maxName = 128

// checkName returns an error unless a name fits into logs and metrics.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("name %.20q…: longer than %d bytes", name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isUnprintable):
		return fmt.Errorf("name %q: has characters that can't be printed", name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("name %q: must not begin or end with a space", name)
	}
	return nil
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// defaultName returns the name of a rule that is given none: its key templates as they are written, and its preset. It is cut
// where it would be longer than a name may be.
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

// nameOfFunc returns the default name of a rule whose keys come from a function: that function's, such as main.orderKey.
func nameOfFunc(key KeyFunc) string {
	name := runtime.FuncForPC(reflect.ValueOf(key).Pointer()).Name()
	return defaultName([]string{name[strings.LastIndexByte(name, '/')+1:]}, "")
}

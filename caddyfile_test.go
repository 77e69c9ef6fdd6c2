package caddyredlock_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-redlock/caddy-redlock"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/limits"
)

// secret is a password in configurations; no error may show it.
const secret = "s3cr3t-Zm9v"

// validate does what "caddy validate" does, with a Caddyfile that has global options from line 3 on and the rule of a site. Without
// global options the rule begins in line 6.
func validate(global, rule string) error {
	config := "{\nadmin off\n" + global + "\n}\nhttp://127.0.0.1:1 {\n" + rule + "\n}\n"
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	var parsed caddy.Config
	if err := json.Unmarshal(text, &parsed); err != nil {
		return err
	}
	return caddy.Validate(&parsed)
}

// Each error has the line, or the option if it is only found after all was read, and says what would be right.
func TestBadRule(t *testing.T) {
	for name, test := range map[string]struct {
		rule string
		want []string
	}{
		"no key":                    {"redlock", []string{"Caddyfile:6", "key: want at least one"}},
		"key like a matcher":        {"redlock /orders/{path.1}", []string{"Caddyfile:6", "key: want at least one", "taken for a matcher"}},
		"empty key":                 {`redlock ""`, []string{"Caddyfile:6", `key template ""`, "must not be empty"}},
		"17 keys":                   {"redlock" + strings.Repeat(" a:{path.1}", 17), []string{"Caddyfile:6", "at most 16, got 17"}},
		"no field of the body":      {"redlock {body.}", []string{"Caddyfile:6", "{body.}", "want the name of a field"}},
		"no name in the path":       {"redlock {body.a..b}", []string{"Caddyfile:6", "want the name of a field"}},
		"two lists in a key":        {"redlock {body.a[]}:{body.b[]}", []string{"Caddyfile:6", "only one placeholder may have []"}},
		"deep path":                 {"redlock {body.a" + strings.Repeat(".a", 16) + "}", []string{"Caddyfile:6", "more than 16 names"}},
		"the whole body":            {"redlock {http.request.body}", []string{"Caddyfile:6", "without limit", "{body.order.id}"}},
		"the whole body, in short":  {"redlock {body}", []string{"Caddyfile:6", "{body} is the whole body", "{body.order.id}"}},
		"empty alternative":         {"redlock {body.a|}", []string{"Caddyfile:6", "unknown placeholder {}"}},
		"unknown scheme":            {"redlock k:{path.1} {\nverify gitlab " + secret + "\n}", []string{"at Caddyfile:7", "verify gitlab: ", "github, "}},
		"no secret":                 {"redlock k:{path.1} {\nverify github\n}", []string{"Caddyfile:7", "at least one secret"}},
		"secret of no variable":     {"redlock k:{path.1} {\nverify github {env.REDLOCK_TEST_NONE}\n}", []string{"at Caddyfile:7", "redlock k:{http.request.uri.path.1}: ", "verify github", "secret 1", "is the variable set"}},
		"secret of a relative file": {"redlock k:{path.1} {\nverify github " + secret + " {file.secret}\n}", []string{"at Caddyfile:7", "verify github", "secret 2", "is its path absolute"}},
		"secret of two senders":     {"redlock k:{path.1} {\nverify github " + secret + "\nverify github as acme acme " + secret + "\n}", []string{"at Caddyfile:6", "verify github as acme", "has a secret of verify github, too"}},
		"two senders without names": {"redlock k:{path.1} {\nverify github a\nwait 1s\nverify github b\n}", []string{"at Caddyfile:6", "verify github: another verify has no name either", "as acme"}},
		"sender without a secret":   {"redlock k:{path.1} {\nverify github as acme\n}", []string{"Caddyfile:7", "at least one secret"}},
		"secret is no base64":       {"redlock k:{path.1} {\nverify standard-webhooks " + secret + "\n}", []string{"at Caddyfile:7", "verify standard-webhooks", "secret 1", "base64"}},
		"no size":                   {"redlock {body.a} {\nmax_body big\n}", []string{"Caddyfile:7", `max_body "big"`, "1MiB"}},
		"max_body above budget":     {"redlock {body.a} {\nmax_body 65MiB\n}", []string{"at Caddyfile:7", "redlock {body.a}: ", "max_body 68157440", "67108864"}},
		"key in both places":        {"redlock a:{path.1} {\nkey b:{path.2}\n}", []string{"Caddyfile:7", "key", "first line"}},
		"adjacent placeholders":     {"redlock {header.A}{header.B}", []string{"Caddyfile:6", "header.A}", "header.B}", `put a ":" between`}},
		"unknown placeholder":       {"redlock order:{nonsense}", []string{"Caddyfile:6", "{nonsense}", "{path.1}"}},
		"unknown part of the path":  {"redlock c:{http.request.uri.path.name}", []string{"Caddyfile:6", "path.name}", "file.base"}},
		"header that is taken out":  {"redlock {header.transfer-encoding}", []string{"Caddyfile:6", "{header.Transfer-Encoding}", "takes it out"}},
		"host among the headers":    {"redlock {http.request.header.host}", []string{"Caddyfile:6", "use {host}"}},
		"no name of a header":       {"redlock \"{header.X Order}\"", []string{"Caddyfile:6", `"X Order" is not the name of a header`}},
		"space in a placeholder":    {"redlock \"order:{path.1 }\"", []string{"Caddyfile:6", "{path.1 }", "a space", "take it out"}},
		"space in a field":          {"redlock \"order:{body.a| body.b}\"", []string{"Caddyfile:6", "{ body.b}", "a space", "take it out"}},
		"space in Caddy's name":     {"redlock order:{path.1} {\ndedupe \"{http.request.uri.query. id}\"\n}", []string{"Caddyfile:7", "a space", "take it out"}},
		"negative segment":          {"redlock {path.-1}", []string{"Caddyfile:6", "uri.path.-1}: want the number", "from 0 to 65535"}},
		"unclosed placeholder":      {"redlock order:{path.1", []string{"Caddyfile:6", "not closed", `\{`}},
		"unprintable name":          {"redlock order:{path.1} {\nwait 1s\nname \"a\tb\"\n}", []string{"Caddyfile:8", `name "a\tb"`, "can't be printed"}},
		"unknown subdirective":      {"redlock order:{path.1} {\nretry 3\n}", []string{"Caddyfile:7", `"retry"`, "want one of: ", "wait"}},
		"repeated subdirective":     {"redlock order:{path.1} {\nwait 1s\nwait 1s\n}", []string{"Caddyfile:8", "wait", "already", "line 7"}},
		"no duration":               {"redlock order:{path.1} {\nttl\n}", []string{"Caddyfile:7", "ttl", "exactly one"}},
		"two durations":             {"redlock order:{path.1} {\nttl 1s 2s\n}", []string{"Caddyfile:7", "ttl", "exactly one"}},
		"bad duration":              {"redlock order:{path.1} {\nwait soon\n}", []string{"Caddyfile:7", `wait "soon"`, "500ms"}},
		"duration without unit":     {"redlock order:{path.1} {\nttl 10\n}", []string{"Caddyfile:7", `ttl "10"`, "500ms"}},
		"duration below zero":       {"redlock order:{path.1} {\nttl -1s\n}", []string{"Caddyfile:7", `ttl "-1s"`, "above 0"}},
		"block of subdirective":     {"redlock order:{path.1} {\nttl 1s {\na\n}\n}", []string{"Caddyfile:8", "ttl takes no block"}},
		"no time to live":           {"redlock order:{path.1} {\nttl 0\n}", []string{"Caddyfile:7", "ttl: want a duration above 0"}},
		"value of a switch":         {"redlock order:{path.1} {\ndry_run yes\n}", []string{"Caddyfile:7", `dry_run "yes"`, "on, off"}},
		"concurrency of an ID":      {"redlock {\nidempotency_key required\nconcurrency 2\n}", []string{"Caddyfile:8", "concurrency", "needs a key"}},
		"concurrency 0":             {"redlock order:{path.1} {\nconcurrency 0\n}", []string{"Caddyfile:7", `concurrency "0"`, "a number from 1"}},
		"concurrency of a key":      {"redlock order:{path.1} all {\nwait 1s\nconcurrency 1 0\n}", []string{"Caddyfile:8", `concurrency "0"`, "a number from 1"}},
		"concurrency of no key":     {"redlock order:{path.1} all {\nconcurrency 1 2 3\n}", []string{"Caddyfile:7", "3 numbers and 2 keys"}},
		"concurrency without value": {"redlock order:{path.1} all {\nconcurrency\n}", []string{"Caddyfile:7", "concurrency: want at least one value"}},
		"concurrency 257":           {"redlock order:{path.1} {\nconcurrency 257\n}", []string{"Caddyfile:7", "concurrency 257", "1 to 256"}},
		"status 399":                {"redlock order:{path.1} {\nheld_status 399\n}", []string{"Caddyfile:7", "held_status 399", "400 to 599"}},
		"status 600":                {"redlock order:{path.1} {\nno_quorum_status 600\n}", []string{"Caddyfile:7", "no_quorum_status 600", "400 to 599"}},
		"status abc":                {"redlock order:{path.1} {\nheld_status abc\n}", []string{"Caddyfile:7", `held_status "abc"`, "a number"}},
		"bogus on_missing_key":      {"redlock order:{path.1} {\non_missing_key ignore\n}", []string{"at Caddyfile:7", `on_missing_key "ignore"`, "refuse or pass"}},
		"bogus on_no_quorum":        {"redlock order:{path.1} {\non_no_quorum ignore\n}", []string{"at Caddyfile:7", `on_no_quorum "ignore"`, "refuse or pass"}},
		"ttl above max_ttl":         {"redlock order:{path.1} {\nttl 31s\n}", []string{"at Caddyfile:7", "redlock order:", "ttl 31s", "max_ttl 10s", "lower it, or raise"}},
		"ttl too short to hold":     {"redlock order:{path.1} {\nttl 50ms\n}", []string{"at Caddyfile:7", "ttl 50ms", "at least 100ms", "timeout"}},
		"wrong rule among right":    {"redlock /a a:{path.1}\nredlock /b b:{path.1} {\nttl 1h\n}", []string{"at Caddyfile:8", "redlock b:{http.request.uri.path.1}: ", "ttl 1h0m0s", "max_ttl 10s"}},
		"remember without an ID":    {"redlock order:{path.1} {\nremember 1h\n}", []string{"at Caddyfile:7", "remember needs dedupe or idempotency_key"}},
		"remember for no time":      {"redlock order:{path.1} {\nremember\n}", []string{"Caddyfile:7", "remember: want exactly one value: a duration"}},
		"remember too much":         {"redlock order:{path.1} {\ndedupe {header.Id}\nremember 1h\nremember_size 1MiB\n}", []string{"at Caddyfile:9", "must be from 1 to 983040 bytes"}},
		"remember errors":           {"redlock order:{path.1} {\ndedupe {header.Id}\nremember 1h\nremember_status 5xx\n}", []string{"at Caddyfile:9", "from 200 to 499"}},
		"fingerprint of nothing":    {"redlock order:{path.1} {\ndedupe {header.Id}\nfingerprint on\n}", []string{"at Caddyfile:8", "fingerprint needs remember"}},
		"two IDs":                   {"redlock order:{path.1} {\ndedupe {header.Id}\nidempotency_key required\n}", []string{"at Caddyfile:8", "want one of them"}},
		"scope of all":              {"redlock order:{path.1} {\nidempotency_key required\nscope all\n}", []string{"at Caddyfile:8", "is the same for all clients"}},
		"site without an ID":        {"redlock order:{path.1} {\nsite shop\n}", []string{"at Caddyfile:7", "site needs dedupe or idempotency_key"}},
		"site of a placeholder":     {"redlock {\npreset idempotency-key\nsite {host}\n}", []string{"at Caddyfile:8", "has no placeholders"}},
		"scope without an ID":       {"redlock order:{path.1} {\nwait 1s\nscope {header.Authorization}\n}", []string{"at Caddyfile:8", "scope needs dedupe or idempotency_key"}},
		"idempotency_key as a word": {"redlock {\nidempotency_key yes\n}", []string{"at Caddyfile:7", "want required, optional or off"}},
		"dedupe of several values":  {"redlock order:{path.1} {\ndedupe {body.items[].id}\n}", []string{"at Caddyfile:7", "dedupe: {body.items[].id}", "one ID"}},
		"neither on nor off":        {"redlock order:{path.1} {\nbuffer_body yes\n}", []string{"Caddyfile:7", "buffer_body", "on, off"}},
		"unknown preset":            {"redlock order:{path.1} {\nwait 1s\npreset Stripe\n}", []string{"at Caddyfile:8", `preset "Stripe"`}},
		"bad fence_header":          {"redlock {\nkey order:{path.1}\nwait 1s\nfence_header a:b\n}", []string{"at Caddyfile:9", "fence_header"}},
		"fence_header of the key":   {"redlock order:{path.1|header.X_Order} {\nfence_header x-order\n}", []string{"at Caddyfile:6", "{header.X_Order}", "choose another fence_header"}},
		"fence_header of the ID":    {"redlock order:{path.1} {\ndedupe {http.request.header.Fencing-Token}\n}", []string{"at Caddyfile:7", "dedupe: ", "choose another fence_header"}},
		"fence_header of the scope": {"redlock order:{path.1} {\nidempotency_key required\nscope {header.A|header.B}\nfence_header B\n}", []string{"at Caddyfile:8", "scope: ", "choose another fence_header"}},
		"fence_header of a preset":  {"redlock {\npreset github\nfence_header X-GitHub-Delivery\n}", []string{"at Caddyfile:6", "choose another fence_header"}},
		"fence_header, signature":   {"redlock order:{path.1} {\nverify github " + secret + "\nfence_header X-Hub-Signature-256\n}", []string{"at Caddyfile:8", "signature is read from this header"}},
		"fence_header of HTTP":      {"redlock order:{path.1} {\nwait 1s\nfence_header Host\n}", []string{"at Caddyfile:8", `fence_header "Host"`, "such as Fencing-Token"}},
		"bad key in the block":      {"redlock {\nwait 1s\nkey a:{path.1\n}", []string{"at Caddyfile:8", "not closed"}},
		"dedupe of no value":        {"redlock {\nkey order:{path.1}\ndedupe on\n}", []string{"at Caddyfile:8", "dedupe"}},
		"no number":                 {"redlock order:{path.1} {\nmax_waiters many\n}", []string{"Caddyfile:7", `max_waiters "many"`, "a number from 1"}},
		"no waiters":                {"redlock order:{path.1} {\nmax_waiters 0\n}", []string{"Caddyfile:7", `max_waiters "0"`, "a number from 1"}},
	} {
		t.Run(name, func(t *testing.T) { requireError(t, validate("", test.rule), test.want) })
	}
}

func TestBadGlobalOption(t *testing.T) {
	t.Setenv("REDLOCK_TEST_URL", "redis://:"+secret+"@127.0.0.1:1")
	t.Setenv("REDLOCK_TEST_BAD_URL", "redis://:"+secret+"@[::1")
	for name, test := range map[string]struct {
		global string
		want   []string
	}{
		"twice":                       {"redlock {\ntimeout 1s\n}\nredlock {\ntimeout 1s\n}", []string{"Caddyfile:6", "duplicate", "merge"}},
		"argument":                    {"redlock redis://127.0.0.1:1", []string{"Caddyfile:3", "want a block: redlock { masters"}},
		"unknown setting":             {"redlock {\nquorum 1\n}", []string{"Caddyfile:4", `"quorum"`, "want one of: ", "restart_guard"}},
		"repeated setting":            {"redlock {\ntimeout 1s\ntimeout 2s\n}", []string{"Caddyfile:5", "timeout", "already", "line 4"}},
		"bad duration":                {"redlock {\ntimeout fast\n}", []string{"Caddyfile:4", `timeout "fast"`, "500ms"}},
		"no master":                   {"redlock {\nmasters\n}", []string{"Caddyfile:4", "masters", "at least one"}},
		"bad URL":                     {"redlock {\nmasters redis://127.0.0.1:1 http://:" + secret + "@127.0.0.1:2\n}", []string{"at Caddyfile:4", "master 2 of 2", "want redis://host:port"}},
		"unreadable URL":              {"redlock {\nmasters redis://:" + secret + "@[::1\n}", []string{"at Caddyfile:4", "master 1 of 1", "want redis://host:port"}},
		"unreadable URL in variable":  {"redlock {\nmasters {env.REDLOCK_TEST_BAD_URL}\n}", []string{"at Caddyfile:4", "master 1 of 1", "want redis://host:port"}},
		"one master twice":            {"redlock {\nmasters redis://127.0.0.1:1 redis://:" + secret + "@127.0.0.1:1/2\n}", []string{"at Caddyfile:4", "masters 1 and 2 are both redis://127.0.0.1:1", "independent"}},
		"one master twice, variable":  {"redlock {\nmasters redis://127.0.0.1:1 {env.REDLOCK_TEST_URL}\n}", []string{"at Caddyfile:4", "masters 1 and 2 are both redis://127.0.0.1:1", "independent"}},
		"master of unknown variable":  {"redlock {\nmasters redis://127.0.0.1:1 {env.REDLOCK_TEST_NONE}\n}", []string{"at Caddyfile:4", "placeholder of master 2", "unknown or empty"}},
		"password file missing":       {"redlock {\nmasters redis://127.0.0.1:1\npassword {file./nonexistent}\n}", []string{"at Caddyfile:5", "password", "does the file exist"}},
		"password variable missing":   {"redlock {\nmasters redis://127.0.0.1:1\npassword {env.REDLOCK_TEST_NONE}\n}", []string{"at Caddyfile:5", "password", "is the variable set"}},
		"restart_guard too short":     {"redlock {\nrestart_guard 10s\n}", []string{"at Caddyfile:4", "restart_guard 10s", "at least 11s"}},
		"restart_guard below max_ttl": {"redlock {\nmax_ttl 1m\nrestart_guard 31s\n}", []string{"at Caddyfile:5", "restart_guard 31s", "at least 1m1s"}},
		"max_skew no duration":        {"redlock {\nmax_skew on\n}", []string{"at Caddyfile:4", `max_skew "on"`, "2s", "or off"}},
		"max_skew above max_ttl":      {"redlock {\nmax_ttl 1s\nmax_skew 1s\n}", []string{"at Caddyfile:5", "max_skew 1s", "less than the max ttl 1s"}},
		"restart_guard no duration":   {"redlock {\nrestart_guard on\n}", []string{"at Caddyfile:4", `restart_guard "on"`, "11s, or off"}},
		"no size":                     {"redlock {\nbody_budget 0\n}", []string{"Caddyfile:4", `body_budget "0"`, "1MiB"}},
		"brace in key_prefix":         {"redlock {\nkey_prefix a{b\n}", []string{"at Caddyfile:4", `key_prefix "a{b"`, "must not be empty or contain a brace"}},
		"instance with a space":       {"redlock {\ninstance \"a b\"\n}", []string{"at Caddyfile:4", `instance "a b"`, "without spaces"}},
		"tls without rediss":          {"redlock {\nmasters redis://127.0.0.1:1\ntls {\nserver_name a\n}\n}", []string{"at Caddyfile:5", "tls: no master uses it", "rediss://"}},
		"tls without masters":         {"redlock {\ntls {\nserver_name a\n}\n}", []string{"at Caddyfile:4", "tls: no master uses it"}},
		"tls without rediss, later":   {"redlock {\nmasters {env.REDLOCK_TEST_URL}\ntls {\nserver_name a\n}\n}", []string{"at Caddyfile:5", "tls: no master uses it"}},
		"empty tls":                   {"redlock {\nmasters rediss://127.0.0.1:1\ntls\n}", []string{"at Caddyfile:5", "tls: the block is empty"}},
		"tls with a value":            {"redlock {\nmasters rediss://127.0.0.1:1\ntls off\n}", []string{"Caddyfile:5", "want a block"}},
		"unknown setting of tls":      {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\nca a\n}\n}", []string{"Caddyfile:6", `"ca"`, "want one of: ", "trust_pool"}},
		"unknown trust pool":          {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\ntrust_pool files a\n}\n}", []string{"Caddyfile:6", "tls.ca_pool.source.files"}},
		"no trust pool":               {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\ntrust_pool\n}\n}", []string{"Caddyfile:6", "trust_pool", "file /path/to/ca.pem"}},
		"no key of a certificate":     {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\nclient_auth cert.pem\n}\n}", []string{"Caddyfile:6", "client_auth", "the file of its key"}},
		"missing CA file":             {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\ntrust_pool file /nonexistent.pem\n}\n}", []string{"at Caddyfile:5", "tls: the trusted certificates", "/nonexistent.pem"}},
		"missing certificate file":    {"redlock {\nmasters rediss://127.0.0.1:1\ntls {\nclient_auth /nonexistent.pem /nonexistent.key\n}\n}", []string{"at Caddyfile:5", "tls: the client certificate", "/nonexistent.pem"}},
		"Sentinel":                    {"redlock {\nmasters redis+sentinel://:" + secret + "@127.0.0.1:26379/mymaster\n}", []string{"at Caddyfile:4", "Sentinel is not supported", "redis://host:port"}},
		"parameter without effect":    {"redlock {\nmasters redis://:" + secret + "@127.0.0.1:1?pool_size=9\n}", []string{"at Caddyfile:4", "pool_size", "no effect"}},
		"timeout above half the ttl":  {"redlock {\ntimeout 6s\n}", []string{"at Caddyfile:4", "timeout 6s", "at most 5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			requireError(t, validate(test.global, "redlock /orders/*/pay order:{path.1}\n"), test.want)
		})
	}
}

func requireError(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q doesn't contain %q", err, text)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("error %q shows a password", err)
	}
}

// A rule of a configuration in JSON has no line: its keys and Caddy's path identify it.
func TestBadRuleInJSON(t *testing.T) {
	var config caddy.Config
	err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"http":{"servers":{"shop":{"listen":["127.0.0.1:1"],"routes":[
		{"handle":[{"handler":"redlock","key":["a:{http.request.uri.path.1}"]}]},
		{"handle":[{"handler":"redlock","key":["b:{http.request.uri.path.1}"],"ttl":"1h"}]}]}}}}}`), &config)
	if err != nil {
		t.Fatal(err)
	}
	requireError(t, caddy.Validate(&config), []string{"server shop", "route 1", "redlock b:{http.request.uri.path.1}: ttl 1h0m0s"})
}

// Who writes a number for a duration means seconds, and Caddy takes nanoseconds: it is refused. Adapted Caddyfiles have texts.
// loadSettings validates JSON with these settings of the app and of a rule.
func loadSettings(t *testing.T, app, handler string) error {
	t.Helper()
	var config caddy.Config
	err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"redlock":{`+app+`},"http":{"servers":{"shop":{"listen":["127.0.0.1:1"],"routes":[
		{"handle":[{"handler":"redlock",`+handler+`"key":["a:{http.request.uri.path.1}"]}]}]}}}}}`), &config)
	if err != nil {
		t.Fatal(err)
	}
	return caddy.Validate(&config)
}

// TestLimits: no setting is accepted beyond its limit, in a Caddyfile and in JSON.
func TestLimits(t *testing.T) {
	name := func(option string) string {
		if option == "prefix" {
			option = "key prefix"
		}
		return limits.With("", "_")(option)
	}
	global, ofRules := []string{"max ttl", "max skew", "restart guard", "timeout", "prefix"}, []string{"ttl", "concurrency"}
	limits.Test(t, name, func(option, value string) error {
		return validate("redlock {\n"+name(option)+" "+value+"\n}", "redlock order:{path.1}\n")
	}, global...)
	limits.Test(t, name, func(option, value string) error { return loadSettings(t, `"`+name(option)+`":"`+value+`"`, "") }, append(global, "instance")...)
	limits.Test(t, name, func(option, value string) error {
		return validate("", "redlock order:{path.1} {\n"+name(option)+" "+value+"\n}\n")
	}, append(ofRules, "wait", "masters wait", "max hold", "max waiters")...)
	limits.Test(t, name, func(option, value string) error {
		if option != "concurrency" {
			value = `"` + value + `"`
		}
		return loadSettings(t, "", `"`+name(option)+`":`+value+`,`)
	}, ofRules...)
}

func TestDurationsInJSON(t *testing.T) {
	for _, setting := range []string{"timeout", "max_ttl"} {
		requireError(t, loadSettings(t, `"`+setting+`":5`, ""), []string{setting, `5: want a duration with its unit, in quotes, such as "5s"`})
	}
	for _, setting := range []string{"wait", "ttl", "remember"} {
		requireError(t, loadSettings(t, "", `"`+setting+`":5000000000,`), []string{setting, `5000000000: want a duration with its unit, in quotes, such as "5s"`})
	}
	if err := loadSettings(t, `"max_ttl":"1m"`, `"wait":0,"ttl":"30s","remember":null,`); err != nil {
		t.Error(err)
	}
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("{\nredlock {\ntimeout 100ms\nmax_ttl 1m\n}\n}\nhttp://a {\nredlock order:{path.1} {\nwait 2s\nremember off\n}\n}"), nil)
	for _, want := range []string{`"timeout":"100ms"`, `"max_ttl":"1m0s"`, `"wait":"2s"`, `"remember":"-1ns"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s, %v: want %s", text, err, want)
		}
	}
}

func TestGoodConfiguration(t *testing.T) {
	t.Setenv("REDLOCK_TEST_URL", "redis://127.0.0.1:3")
	for name, test := range map[string]struct{ global, rule string }{
		"TLS":               {"redlock {\nmasters redis://127.0.0.1:1 rediss://127.0.0.1:2 valkeys://127.0.0.1:3\ntls {\ntrust_pool system\nserver_name a\ninsecure_skip_verify\n}\ntimeout 1s\n}", "redlock order:{path.1}"},
		"nothing but a key": {"", "redlock order:{path.1}"},
		"key in the block":  {"", "redlock {\nkey order:{path.1}\n}"},
		"verify":            {"", "redlock k:{path.1} {\nverify stripe {env.REDLOCK_TEST_URL} " + secret + "\nreplay_window 1m\n}"},
		"several senders":   {"", "redlock k:{path.1} {\nverify stripe {env.REDLOCK_TEST_URL} " + secret + "\nverify stripe as acme acme\nverify adyen as b ABCD 1234\nverify standard-webhooks as c whsec_AAAA\n}"},
		"preset":            {"", "redlock {\npreset stripe\n}"},
		"changed preset":    {"", "redlock order:{body.id|path.1} {\npreset github\nwait 0\ndedupe off\nheld_status 429\nmax_body 1MB\nbuffer_body off\n}"},
		"preset, no ID":     {"", "redlock order:{path.1} {\npreset idempotency-key\nidempotency_key off\nremember off\n}"},
		"site":              {"", "redlock {\npreset idempotency-key\nsite shop\n}"},
		"scope off":         {"", "redlock order:{path.1} {\nscope off\n}"},
		"all that is new":   {"", "redlock order:{path.1} {\ndedupe {header.X-Id}\nallow_upgrade\nshow_client off\non_client_abort cancel\nhold_after_abort 30s\ndry_run\nname orders\n}"},
		"short names":       {"", "redlock c:{client_ip|header.X}"},
		"several keys":      {"", "redlock payer:{body.from} payer:{body.to} item:{body.items[].id|query.item}"},
		"all, with masters that can't be reached": {
			"redlock {\nmasters redis://127.0.0.1:1 rediss://127.0.0.1:2 {env.REDLOCK_TEST_URL}\nusername app\npassword x\ntimeout 20ms\nkey_prefix shop\nmax_ttl 20s\nrestart_guard 21s\nmax_skew 5s\ninstance web-{env.REDLOCK_TEST_URL}\nbody_budget 2GB\n}",
			"redlock /orders/* order:{path.1}:{header.X-Event}:{query.a} {\nwait 2s\nttl 20s\nmax_waiters 50\nheld_status 409\nno_quorum_status 503\non_missing_key pass\non_no_quorum refuse\nmax_body 1.5GiB\nbody_timeout 1m\nbuffer_body\n}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := validate(test.global, test.rule); err != nil {
				t.Error(err)
			}
		})
	}
}

package rule_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestParse(t *testing.T) {
	on := true
	want := middleware.Rule{
		Keys: []string{"order:{path.1}"}, Wait: 10 * time.Second, Remember: -1, OnMissingKey: "pass", HeldStatus: 429, BufferBody: &on, DryRun: true, MaxBody: 1 << 20, Concurrency: []int{1, 5},
		Verify: []middleware.Verify{{Scheme: "stripe", Secrets: []string{"a,b", "c"}}}, TTL: 36 * time.Hour,
	}
	for name, text := range map[string]string{
		"as in JSON": `{"key":["order:{path.1}"],"wait":"10000ms","remember":0,"on_missing_key":"pass","held_status":429,"buffer_body":true,"dry_run":true,"max_body":1048576,"concurrency":[1,5],
			"verify":{"scheme":"stripe","secrets":["a,b","c"]},"ttl":"36h"}`,
		"as labels": `{"Key":"order:{path.1}","wait":"10s","remember":"off","onMissingKey":"pass","heldstatus":"429","bufferBody":"true","dry-run":"1","maxBody":"1MiB",
			"verify":{"Scheme":"stripe","secrets":"[\"a,b\",\"c\"]"},"ttl":"1.5d","name":null,"concurrency":"[\"1\",\"5\"]"}`,
	} {
		if got, err := rule.Parse([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, text := range []string{`{"concurrency":5}`, `{"concurrency":"5"}`, `{"concurrency":[5]}`} {
		if got, err := rule.Parse([]byte(text)); err != nil || !reflect.DeepEqual(got.Concurrency, middleware.Concurrency{5}) {
			t.Errorf("%s: %v, %v", text, got.Concurrency, err)
		}
	}
	for _, text := range []string{`{"verify":[{"scheme":"github","secrets":["a"]},{"scheme":"github","Name":"b","secrets":"c"}]}`,
		`{"verify":"[{\"scheme\":\"github\",\"secrets\":[\"a\"]},{\"scheme\":\"github\",\"name\":\"b\",\"secrets\":\"c\"}]"}`} {
		want := []middleware.Verify{{Scheme: "github", Secrets: []string{"a"}}, {Scheme: "github", Name: "b", Secrets: []string{"c"}}}
		if got, err := rule.Parse([]byte(text)); err != nil || !reflect.DeepEqual(got.Verify, want) {
			t.Errorf("%s: %v, %v", text, got.Verify, err)
		}
	}
	for _, text := range []string{`{"wait":0}`, `{"wait":"0"}`, `{"wait":"0s"}`, `{"wait":"0ms"}`, `{"wait":"off"}`} {
		if got, err := rule.Parse([]byte(text)); err != nil || got.Wait != -1 {
			t.Errorf("%s: %v, %v", text, got.Wait, err)
		}
	}
	for text, want := range map[string]string{
		`{"concurrency":{}}`:                "concurrency: want a number from 1, or a list of such",
		`{"concurrency":[true]}`:            "concurrency: want a number from 1, or a list of such",
		`{"concurrency":["1","0"]}`:         `concurrency "0": want a number from 1`,
		`[]`:                                "want a JSON object",
		`{"keys":"a"}`:                      "keys: unknown; want one of allow_upgrade, ",
		`{"heldStatus":1,"held_status":2}`:  "is heldStatus, too",
		`{"held_status":"secret"}`:          `held_status "secret": want a number from 1`,
		`{"wait":"secret"}`:                 `wait "secret": want a duration`,
		`{"wait":true}`:                     "wait: want a duration",
		`{"wait":5}`:                        "wait: want a duration above 0 such as 500ms, 2s or 1m, with its unit and in quotes",
		`{"wait":5000000000}`:               "with its unit",
		`{"wait":"5"}`:                      `wait "5": want a duration`,
		`{"wait":"-1s"}`:                    `wait "-1s": want a duration`,
		`{"dry_run":"secret"}`:              `dry_run "secret": want on, off`,
		`{"max_body":"much"}`:               `max_body "much": want a size`,
		`{"key":[1]}`:                       "key: want a list of texts",
		`{"preset":1}`:                      "preset: want a text",
		`{"verify":"secret"}`:               "verify: want a JSON object",
		`{"verify":5}`:                      "verify: want a JSON object",
		`{"verify":[5]}`:                    "verify: want a JSON object",
		`{"verify":"[secret"}`:              "verify: want a JSON object of settings, or a list of such",
		`{"verify":[{},{"key":1}]}`:         "verify[1].key: unknown",
		`{"verify":{"secrets":{"a":"b"}}}`:  "verify.secrets: want a list of texts",
		`{"verify":{"scheme":"x","key":1}}`: "verify.key: unknown; want one of name, scheme, secrets",
	} {
		if _, err := rule.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestParsedRules(t *testing.T) {
	for text, want := range map[string]string{
		`{"key":"order:{path.1}","wait":"1s"}`:         "",
		`{"preset":"stripe"}`:                          "",
		`{"preset":"idempotency-key"}`:                 "",
		`{}`:                                           "key: want at least one template",
		`{"preset":"x"}`:                               `preset "x": unknown`,
		`{"key":"a","remember_size":1024}`:             "remember_size needs remember",
		`{"key":"a","on_no_quorum":"x"}`:               `on_no_quorum "x": want refuse or pass`,
		`{"key":"a","held_status":200}`:                "held_status 200",
		`{"key":"{header.Fencing-Token}"}`:             "fence_header",
		`{"key":"a","verify":{"scheme":"x"}}`:          "x",
		`{"key":"a","idempotency_key":"x"}`:            `idempotency_key "x"`,
		`{"key":"a","scope":"{header.Authorization}"}`: "scope needs dedupe",
		`{"preset":"idempotency-key","site":"shop"}`:   "",
		`{"key":"a","Site":"shop"}`:                    "site needs dedupe",
	} {
		settings, err := rule.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.Compile(settings, engine.PlaceholderOf)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

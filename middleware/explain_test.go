package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func ExampleExplain() {
	r := httptest.NewRequest(http.MethodPost, "/webhooks", strings.NewReader(`{"id":"evt_1","data":{"object":{"customer":"cus_1"}}}`))
	r.Header.Set("Content-Type", "application/json")
	fmt.Print(middleware.Explain("", r, middleware.Rule{Preset: "stripe"}))
	// Output:
	// key       stripe:post:cus_1
	// delivery  evt_1
	// host      example.com
	// place     POST /webhooks
	// if held   waits 5s, then 423
	// by hand   redlock run 'stripe:post:cus_1' -- command
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, body, want string
		rule                 middleware.Rule
	}{
		{"order:{body.id}", `{"id":42}`, "key       order:42\nif held   waits 0s, then 423\nby hand   redlock run 'order:42' -- command\n", middleware.Rule{}},
		{"it's:{body.id}", `{"id":42}`, "key       it's:42\nif held   waits 0s, then 423\nby hand   redlock run 'it'\\''s:42' -- command\n", middleware.Rule{}},
		{"p:{body.b}", `{"a":1,"b":2}`, "key       p:1\nkey       p:2\nif held   waits 2s, then 429\nby hand   redlock run 'p:1' -- command\nby hand   redlock run 'p:2' -- command\n",
			middleware.Rule{Keys: []string{"p:{body.a}", "p:{body.b}"}, Wait: 2 * time.Second, HeldStatus: 429}},
		{"order:{body.id}", `{}`, "refused   400 missing_key: key part {body.id}: missing or empty\n", middleware.Rule{}},
		{"order:{body.id}", `{}`, "served    without a lock: key part {body.id}: missing or empty\n", middleware.Rule{OnMissingKey: middleware.Pass}},
		{"order:{body.id}", `{"id":42}`, "key       order:42\nrefused   401 bad_signature: signature is missing or can't be read\n", middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"s3cr3t"}}}}},
		{"order:{body.id}", `{"id":42}`, "refused   413 body_too_large: key part {body.id}: body is larger than max_body\n", middleware.Rule{MaxBody: 5}},
		{"order:{body.id}", `{"id":42}`, "key       order:42\nserved    without a lock: dry run\n", middleware.Rule{DryRun: true}},
	} {
		if got := middleware.Explain(c.template, withBody(jsonType, c.body), c.rule).String(); got != c.want {
			t.Errorf("%s of %s:\n%swant:\n%s", c.template, c.body, got, c.want)
		}
	}
}

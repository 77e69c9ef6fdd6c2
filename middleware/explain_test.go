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
	fmt.Print(middleware.Explain("", r, middleware.WithPreset("stripe")))
	// Output:
	// key       stripe:post:cus_1
	// delivery  evt_1
	// place     example.com/webhooks
	// if held   waits 5s, then 423
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, body, want string
		opts                 []middleware.Option
	}{
		{"order:{body.id}", `{"id":42}`, "key       order:42\nif held   waits 0s, then 423\n", nil},
		{"p:{body.b}", `{"a":1,"b":2}`, "key       p:1\nkey       p:2\nif held   waits 2s, then 429\n",
			[]middleware.Option{middleware.WithKeys("p:{body.a}", "p:{body.b}"), middleware.WithWait(2 * time.Second), middleware.WithHeldStatus(429)}},
		{"order:{body.id}", `{}`, "refused   400 missing_key: key part {body.id}: missing or empty\n", nil},
		{"order:{body.id}", `{}`, "served    without a lock: key part {body.id}: missing or empty\n", []middleware.Option{middleware.WithPassOnMissingKey()}},
		{"order:{body.id}", `{"id":42}`, "key       order:42\nrefused   401 bad_signature: signature is missing or can't be read\n", []middleware.Option{verify(t, "github", "s3cr3t")}},
		{"order:{body.id}", `{"id":42}`, "refused   413 body_too_large: key part {body.id}: body is larger than max_body\n", []middleware.Option{middleware.WithMaxBody(5)}},
		{"order:{body.id}", `{"id":42}`, "key       order:42\nserved    without a lock: dry run\n", []middleware.Option{middleware.WithDryRun()}},
	} {
		if got := middleware.Explain(c.template, withBody(jsonType, c.body), c.opts...).String(); got != c.want {
			t.Errorf("%s of %s:\n%swant:\n%s", c.template, c.body, got, c.want)
		}
	}
}

package sdks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
)

// Each of GitHub's own examples has a key, that of the repository if it has one.
func TestPresetOfGitHubsExamples(t *testing.T) {
	t.Parallel()
	text := readModule(t, "@octokit/webhooks-examples/api.github.com/index.json")
	var kinds []struct {
		Name     string
		Examples []json.RawMessage
	}
	if err := json.Unmarshal(text, &kinds); err != nil {
		t.Fatal(err)
	}
	preset, _ := engine.PresetOf("github")
	count := 0
	for _, kind := range kinds {
		for _, example := range kind.Examples {
			var fields struct{ Repository struct{ ID int } }
			if err := json.Unmarshal(example, &fields); err != nil {
				t.Fatal(err)
			}
			count++
			var compact bytes.Buffer
			_ = json.Compact(&compact, example)
			key := keysFor(t, preset.Key, fromGitHub("application/json", compact.String()))
			asForm := keysFor(t, preset.Key, fromGitHub("application/x-www-form-urlencoded", "payload="+url.QueryEscape(compact.String())))
			want := fmt.Sprintf("github:%d", fields.Repository.ID)
			if key != asForm || !strings.HasPrefix(key, "github:") || fields.Repository.ID != 0 && key != want || fields.Repository.ID == 0 && !strings.Contains(key, "=") {
				t.Errorf("%s: key %s, as a form %s; repository %d", kind.Name, key, asForm, fields.Repository.ID)
			}
		}
	}
	if t.Logf("%d examples of %d kinds", count, len(kinds)); count < 300 {
		t.Errorf("only %d examples", count)
	}
}

// stripeReached are references whose key an event need not have, because the referenced object has a key of the event.
var stripeReached = []string{
	"latest_charge", "application_fee", "source_transfer", "destination_payment", "originating_transaction", "source_charge", // these name the payment, the transfer or the charge
	"latest_invoice", "latest_revision", "schedule", "pending_setup_intent", // these have the customer
	"original_payout", "reversed_by", // another payout
}

// Each event of Stripe's own types has the keys of the payments, customers and so on that it refers to.
func TestPresetOfStripesTypes(t *testing.T) {
	t.Parallel()
	const types = "../../bin/sdks/node_modules/stripe/esm/resources"
	text := readModule(t, "stripe/esm/resources/Events.d.ts")
	preset, _ := engine.PresetOf("stripe")
	event := regexp.MustCompile(`(?s)type: '([a-z0-9_.]+)';.*?object: ([\w.]+)`)
	reference := regexp.MustCompile(`(?m)^    (\w+)\??: string \| (?:Charge|PaymentIntent|Customer|Invoice|Subscription|Refund|Dispute|Authorization|Payout|Transfer|SetupIntent|SubscriptionSchedule|ApplicationFee)\b`)
	kinds, references := event.FindAllSubmatch(text, -1), 0
	for _, kind := range kinds {
		folder, name, nested := strings.Cut(string(kind[2]), ".")
		pattern := types + "/*.d.ts"
		if !nested {
			name = folder
		} else {
			pattern = types + "/" + folder + "/*.d.ts"
		}
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, _ := os.ReadFile(file)
			_, body, _ := strings.Cut(string(text), "\nexport interface "+name+" {\n")
			body, _, _ = strings.Cut(body, "\n}")
			for _, found := range reference.FindAllStringSubmatch(body, -1) {
				references++
				if !strings.Contains(preset.Key, "json.data.object."+found[1]+"&") && !slices.Contains(stripeReached, found[1]) {
					t.Errorf("%s: %s.%s is not in the key", kind[1], kind[2], found[1])
				}
			}
		}
	}
	if t.Logf("%d kinds with %d references", len(kinds), references); len(kinds) < 250 || references < 200 {
		t.Error("too few: are the types written in another way?")
	}
}

func fromGitHub(contentType, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("X-GitHub-Hook-ID", "1")
	return r
}

func keysFor(t *testing.T, template string, r *http.Request) string {
	t.Helper()
	parsed, err := engine.ParseTemplate(template, engine.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := parsed.Keys(r)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(keys, " ")
}

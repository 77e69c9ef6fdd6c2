package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

const exampleFile = "../../Caddyfile.example"

func TestExampleIsValid(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"validate", "--config", exampleFile},
		{"fmt", "--diff", exampleFile},
	} {
		if text, code := output(t, caddyCommand(t, args...)); code != 0 {
			t.Errorf("caddy %s: exit code %d:\n%s", strings.Join(args, " "), code, text)
		}
	}
}

// The example does what the README says.
func TestExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	slow := freeAddr(t)
	config := strings.NewReplacer(
		"http://:8080", "http://{$LISTEN}",
		"http://:8081", "http://"+slow,
		"127.0.0.1:8081", slow,
		"wait 5s", "wait 2m",
	).Replace(string(text))
	c := runCaddy(t, config)
	eventually(t, "the slow backend serves", func() bool { return listens(slow) })
	responses := postAll(t, c.url+"/orders/42/pay", c.url+"/orders/42/pay", c.url+"/orders/43/pay",
		c.url+"/orders/44/refund", c.url+"/orders/44/refund")()

	first, second := responses[0], responses[1]
	if first.status != http.StatusOK {
		first, second = second, first
	}
	requireStatus(t, first, http.StatusOK)
	requireStatus(t, second, http.StatusLocked)
	if second.body != `{"error": "held"}` {
		t.Errorf("body of the refused payment: %q", second.body)
	}
	for _, a := range responses[2:] { // of another order, and two refunds, one of which waits for the other
		requireStatus(t, a, http.StatusOK)
	}
}

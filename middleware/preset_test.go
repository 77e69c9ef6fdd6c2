package middleware_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

var update = flag.Bool("update", false, "write the table of docs/configuration.md and the lists of testdata/presets.txt anew")

// delivery is a delivery of a sender, modeled on the sender's own types and documentation and shortened to what matters.
// testdata/presets has them.
type delivery struct {
	Event             string   // the events that look like it
	About             []string // its subjects: two deliveries have a key in common if and only if they have a subject in common
	Type, Form, Query string
	JSON              json.RawMessage
	Headers           map[string]string
	Bare              bool // without the headers that all others have
}

func readDeliveries(t *testing.T, sender string) (deliveries []delivery) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "presets", sender+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &deliveries); err != nil {
		t.Fatalf("%s: %v", sender, err)
	}
	return deliveries
}

func (d *delivery) body() string { return cmp.Or(d.Form, string(d.JSON)) }

// header returns the headers that the sender sends.
func (d *delivery) header(sender string) (headers []string) {
	switch {
	case d.Form != "":
		headers = append(headers, "Content-Type", formType)
	case d.JSON != nil:
		headers = append(headers, "Content-Type", cmp.Or(d.Type, jsonType+"; charset=utf-8"))
	}
	if sender == "shopify" && !d.Bare {
		headers = append(headers, "X-Shopify-Shop-Domain", "x.myshopify.com")
	}
	for name, value := range d.Headers {
		headers = append(headers, name, value)
	}
	return headers
}

func (d *delivery) request(sender string) *http.Request {
	method := http.MethodPost
	if d.Query != "" {
		method = http.MethodGet
	}
	r := httptest.NewRequest(method, "/?"+d.Query, strings.NewReader(d.body()))
	for i, headers := 0, d.header(sender); i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// presetNames returns the presets for senders of webhooks.
func presetNames() []string {
	return slices.DeleteFunc(middleware.Presets(), func(name string) bool { return name == "idempotency-key" })
}

func shareOne(a, b []string) bool {
	return slices.ContainsFunc(a, func(text string) bool { return slices.Contains(b, text) })
}

// TestPresets requires an item in testdata/presets.txt for each delivery.
func TestPresets(t *testing.T) {
	t.Parallel()
	const document = "testdata/presets.txt"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for _, sender := range presetNames() {
		preset, err := middleware.PresetOf(sender)
		if err != nil {
			t.Fatal(err)
		}
		deliveries := readDeliveries(t, sender)
		var list strings.Builder
		keys := make([][]string, len(deliveries))
		for i, d := range deliveries {
			key := keysFor(t, preset.Key, d.request(sender))
			if keys[i] = strings.Fields(key); len(keys[i]) == 0 || !strings.Contains(key, ":") {
				t.Errorf("%s, %s: key %q", sender, d.Event, key)
			}
			id := keysFor(t, preset.Dedupe, d.request(sender))
			if id == "missing" {
				id = ""
			} else {
				id = "; `" + id + "`"
			}
			fmt.Fprintf(&list, "- %s: `%s`%s\n", strings.ReplaceAll(d.Event, "*", `\*`), strings.Join(keys[i], "` `"), id)
			for j, other := range deliveries[:i] {
				if want := shareOne(d.About, other.About); shareOne(keys[i], keys[j]) != want {
					t.Errorf("%s: %s has the keys %q, %s has %q, want one in common: %v", sender, d.Event, keys[i], other.Event, keys[j], want)
				}
			}
		}
		doc = replaceList(t, doc, sender, list.String())
	}
	if *update {
		if err := os.WriteFile(document, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if doc != string(text) {
		t.Errorf("%s is not up to date: run go test ./middleware -run TestPresets -update", document)
	}
}

// replaceList puts a list into a sender's section.
func replaceList(t *testing.T, doc, sender, list string) string {
	t.Helper()
	before, section, found := strings.Cut(doc, "\n## "+sender+"\n")
	if !found {
		t.Fatalf("testdata/presets.txt has no section %s", sender)
	}
	rest := ""
	if end := strings.Index(section, "\n## "); end >= 0 {
		rest = section[end:]
	}
	return before + "\n## " + sender + "\n\n" + list + rest
}

// Each delivery is served with these keys, and with its body unchanged.
func TestPresetsServe(t *testing.T) {
	t.Parallel()
	for _, sender := range presetNames() {
		preset, _ := middleware.PresetOf(sender)
		served := make(chan string, 1)
		server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: sender})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			body, _ := io.ReadAll(r.Body)
			served <- turn.Key + "\n" + string(body)
		})))
		for _, d := range readDeliveries(t, sender) {
			r := d.request(sender)
			want := strings.Fields(keysFor(t, preset.Key, d.request(sender)))
			slices.Sort(want)
			out := newRequest(t, server.URL+"/?"+d.Query, d.header(sender)...)
			out.Method, out.Body = r.Method, io.NopCloser(strings.NewReader(d.body()))
			if d.body() == "" {
				out.Body = nil
			}
			if got := do(t, out); got.StatusCode != http.StatusOK {
				t.Errorf("%s, %s: %d %s", sender, d.Event, got.StatusCode, got.body)
				continue
			}
			key, body, _ := strings.Cut(<-served, "\n")
			keys := strings.Fields(key)
			slices.Sort(keys)
			if !slices.Equal(keys, want) || body != d.body() {
				t.Errorf("%s, %s: locked %q, want %q; the body was %s", sender, d.Event, keys, want, body)
			}
		}
	}
}

// While a payment is processed, its refund is refused, and that of another payment is not.
func TestRefundWaitsForItsPayment(t *testing.T) {
	t.Parallel()
	inside, leave := make(chan bool), make(chan bool)
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "stripe", Wait: 0})(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("First") != "" {
				inside <- true
				<-leave
			}
		})))
	send := func(body string, headers ...string) received {
		r := newRequest(t, server.URL, append(headers, "Content-Type", jsonType)...)
		r.Body = io.NopCloser(strings.NewReader(body))
		return do(t, r)
	}
	done := make(chan int)
	go func() {
		done <- send(`{"id":"evt_1","type":"charge.succeeded","data":{"object":{"id":"ch_1","customer":"cus_1","payment_intent":"pi_1"}}}`, "First", "yes").StatusCode
	}()
	<-inside
	for body, want := range map[string]int{
		`{"id":"evt_2","type":"refund.created","data":{"object":{"id":"re_1","charge":"ch_1","payment_intent":"pi_1"}}}`: http.StatusLocked,
		`{"id":"evt_3","type":"customer.updated","data":{"object":{"id":"cus_1"}}}`:                                      http.StatusLocked,
		`{"id":"evt_4","type":"refund.created","data":{"object":{"id":"re_2","charge":"ch_2","payment_intent":"pi_2"}}}`: http.StatusOK,
	} {
		if got := send(body); got.StatusCode != want {
			t.Errorf("%d, want %d: %s", got.StatusCode, want, body)
		}
	}
	close(leave)
	if status := <-done; status != http.StatusOK {
		t.Errorf("the payment: %d", status)
	}
}

func TestPresetsCanBeChanged(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "order:42")
	server := serve(t, middleware.New(l, "order:{body.CallSid}", middleware.Rule{Preset: "twilio", Wait: 0, HeldStatus: http.StatusTooManyRequests, Dedupe: ""})(http.HandlerFunc(ok)))
	requireProblem(t, postBody(t, server.URL, formType, strings.NewReader("CallSid=42")), http.StatusTooManyRequests, "held")
}

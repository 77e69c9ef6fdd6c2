package middleware_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// What makes requests one delivery, and what makes them the same, is all that docs/guarantees.md#whose-response-it-is says: each part of it alone
// makes another request, and nothing else does.
func TestWhoseResponseItIs(t *testing.T) {
	t.Parallel()
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	target := func(target string) func(*http.Request) {
		return func(r *http.Request) { r.RequestURI, r.URL = target, httptest.NewRequest("GET", target, nil).URL }
	}
	const same, other, mismatch, scope = "same", "other", "mismatch", "{header.Authorization}"
	for part, c := range map[string]struct {
		change                      func(*http.Request)
		byHeader, byDedupe, byPlace string // the verdict of a rule with idempotency_key, with dedupe, and with dedupe and without fingerprints
	}{
		"the ID":     {header("Idempotency-Key", "b"), other, other, other},
		"the sender": {header("Authorization", "y"), other, other, other},
		"the host":   {func(r *http.Request) { r.Host = "bank.example.com" }, other, other, other},
		"the key":    {header("Order", "43"), mismatch, other, other},
		"the method": {func(r *http.Request) { r.Method = "PUT" }, mismatch, mismatch, other},
		"the path":   {target("/pay/2?x=1"), mismatch, mismatch, other},
		"the query":  {target("/pay?x=2"), mismatch, mismatch, other},
		"the body":   {func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{"repository":{"id":2}}`)) }, mismatch, mismatch, same},

		"nothing":           {func(*http.Request) {}, same, same, same},
		"the host's case":   {func(r *http.Request) { r.Host = "SHOP.example.com." }, same, same, same},
		"the port":          {func(r *http.Request) { r.Host += ":8443" }, same, same, same},
		"the address":       {func(r *http.Request) { r.RemoteAddr = "198.51.100.1:2" }, same, same, same},
		"the version":       {func(r *http.Request) { r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0 }, same, same, same},
		"the Content-Type":  {header("Content-Type", "application/json; charset=utf-8"), same, same, same},
		"a cookie":          {header("Cookie", "a=b"), same, same, same},
		"a trace":           {header("Traceparent", "00-1-2-3"), same, same, same},
		"the program":       {header("User-Agent", "x"), same, same, same},
		"Accept":            {header("Accept", "application/pdf"), same, same, same},
		"Accept-Language":   {header("Accept-Language", "de"), same, same, same},
		"Accept-Encoding":   {header("Accept-Encoding", "gzip"), same, same, same},
		"Range":             {header("Range", "bytes=0-4"), same, same, same},
		"If-None-Match":     {header("If-None-Match", `"a"`), same, same, same},
		"the site's origin": {header("Origin", "https://other.example.com"), same, same, same},
	} {
		for i, rule := range []middleware.Rule{
			{IdempotencyKey: "required", Scope: scope}, {Dedupe: "{header.Idempotency-Key}", Scope: scope}, {Dedupe: "{header.Idempotency-Key}", Scope: scope, Fingerprint: new(false)},
			{IdempotencyKey: "required", User: func(r *http.Request) string { return r.Header.Get("Authorization") }},
		} {
			rule.Keys, rule.Remember = []string{"order:{header.Order}"}, hour
			cash := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Vary", "Accept, Accept-Language, Cookie, Origin")
				receipt(w, r)
			}}
			l := newLocker(t, live)
			base := atHost("shop.example.com")
			target("/pay?x=1")(base)
			first := answered(middleware.New(l, "", rule)(cash), base)
			r := atHost("shop.example.com")
			target("/pay?x=1")(r)
			c.change(r)
			rule.Name = "a rule by another name"
			got, verdict := answered(middleware.New(l, "", rule)(cash), r), other
			switch {
			case got.StatusCode == http.StatusUnprocessableEntity:
				verdict = mismatch
			case got.Header.Get("Idempotency-Replayed") != "" && got.body == first.body:
				verdict = same
			}
			if want := []string{c.byHeader, c.byDedupe, c.byPlace, c.byHeader}[i]; verdict != want || (cash.runs.Load() == 2) != (want == other) {
				t.Errorf("%s, rule %d: %s after %d runs, want %s", part, i, verdict, cash.runs.Load(), want)
			}
		}
	}
}

// A part of a response, or none, for which a client has asked in a header is nothing that a repeat may get who asks for the whole. Nothing was
// done for it. Without such a header it is the handler's own answer.
func TestPartOfAResponse(t *testing.T) {
	t.Parallel()
	for _, rule := range deliveries {
		if len(rule.Verify) > 0 {
			continue // whose statuses are 2xx
		}
		for _, status := range []int{206, 304, 412, 416} {
			for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If_none_match", ""} {
				c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Whole") == "" {
						w.WriteHeader(status)
						return
					}
					receipt(w, r)
				}}
				h := middleware.New(newLocker(t, live), "", rule)(c)
				part := func() *http.Request {
					r := atHost("shop.example.com")
					if name != "" {
						r.Header[name] = []string{"x"}
					}
					return r
				}
				first := answered(h, part())
				whole := answered(h, atHost("shop.example.com", "Whole", "1"))
				if name == "" {
					requireReplay(t, whole, first)
				} else if whole.StatusCode != http.StatusCreated {
					t.Errorf("%d after %d for %s", whole.StatusCode, status, name)
				} else {
					requireReplay(t, answered(h, part()), whole)
				}
				if t.Failed() {
					t.Fatal(status, name)
				}
			}
		}
	}
}

// What one method, query or tenant has been answered is no response to another, though the ID is the same and fingerprints are ignored.
func TestPlaceOfADelivery(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "github", Remember: hour,
		Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"one tenant"}}, {Scheme: "github", Name: "another", Secrets: []string{"another"}}}})(c))
	send := func(method, path, secret string) received {
		const body = `{"repository":{"id":1}}`
		sum := hmac.New(sha256.New, []byte(secret))
		_, _ = io.WriteString(sum, body)
		r := newRequest(t, server.URL+path, "X-GitHub-Delivery", "a", "X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)), "Content-Type", jsonType)
		r.Method, r.Body, r.ContentLength = method, io.NopCloser(strings.NewReader(body)), int64(len(body))
		return do(t, r)
	}
	for i, d := range [][3]string{
		{"POST", "/hook", "one tenant"}, {"HEAD", "/hook", "one tenant"}, {"PUT", "/hook", "one tenant"},
		{"POST", "/hook?tenant=b", "one tenant"}, {"POST", "/hook?tenant=b", "another"}, {"POST", "/hook", "another"},
	} {
		first := send(d[0], d[1], d[2])
		c.requireRuns(t, int64(i+1))
		requireReplay(t, send(d[0], d[1], d[2]), first)
		c.requireRuns(t, int64(i+1))
	}
}

// deliveries are rules that know repeats, each in another way.
var deliveries = map[string]middleware.Rule{
	"an ID alone":                   {Preset: "idempotency-key"},
	"an ID of an order":             {Preset: "idempotency-key", Keys: []string{"order:{header.Order}"}},
	"an ID that is not required":    {IdempotencyKey: "optional", Remember: hour, Scope: "off"},
	"dedupe, with a fingerprint":    {Keys: []string{"order:{header.Order}"}, Dedupe: "{header.Idempotency-Key}", Remember: hour},
	"dedupe, without a fingerprint": {Keys: []string{"order:{header.Order}"}, Dedupe: "{header.Idempotency-Key}", Remember: hour, Fingerprint: new(false)},
	"an ID without a fingerprint":   {Preset: "idempotency-key", Fingerprint: new(false)},
	"a user":                        {Preset: "idempotency-key", User: func(*http.Request) string { return "admin" }},
	"a signature":                   {Preset: "github", Dedupe: "{header.Idempotency-Key}", Remember: hour, Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"secret"}}}},
	"on_missing_key pass":           {Preset: "idempotency-key", OnMissingKey: middleware.Pass},
}

// atHost returns one and the same request, at a host.
func atHost(host string, headers ...string) *http.Request {
	const body = `{"repository":{"id":1}}`
	r := withBody(jsonType, body, append(headers, "Idempotency-Key", "a", "Authorization", "x", "Order", "42", "X-Hub-Signature-256", "sha256="+hex.EncodeToString(hmacOf("secret", body)))...)
	r.Host = host
	return r
}

func answered(h http.Handler, r *http.Request) received {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return received{w.Result(), w.Body.String()}
}

// What one site has been answered is no response to the same user of another, with the same ID: what tells them apart is the host.
func TestHostOfADelivery(t *testing.T) {
	t.Parallel()
	for name, rule := range deliveries {
		c := &cashier{answer: receipt}
		h := middleware.New(newLocker(t, live), "", rule)(c)
		first, other := answered(h, atHost("shop.example.com")), answered(h, atHost("bank.example.com"))
		if c.requireRuns(t, 2); t.Failed() {
			t.Fatal(name)
		}
		requireReplay(t, answered(h, atHost("bank.example.com")), other)
		for _, spelled := range []string{"shop.example.com", "Shop.Example.COM", "shop.example.com.:443"} {
			requireReplay(t, answered(h, atHost(spelled)), first)
		}
	}
}

// Hosts that are one site have one user of a name: a repeat at another of them is answered as the first was. Another site's is not, nor
// that at a host which is called as the site is.
func TestSiteOfADelivery(t *testing.T) {
	t.Parallel()
	for name, rule := range deliveries {
		c := &cashier{answer: receipt}
		l := newLocker(t, live)
		of := func(site string) http.Handler {
			rule.Site = site
			return middleware.New(l, "", rule)(c)
		}
		shop, bank, none := of("shop"), of("bank"), of("")
		first := answered(shop, atHost("shop.example.com"))
		for _, host := range []string{"www.shop.example.com", "backup.example.net:8443", ""} {
			requireReplay(t, answered(shop, atHost(host)), first)
		}
		if c.requireRuns(t, 1); t.Failed() {
			t.Fatal(name)
		}
		requireReplay(t, answered(shop, atHost("a.example.com", "Forwarded", "host=b.example.com")), first)
		other := answered(bank, atHost("shop.example.com"))
		requireReplay(t, answered(bank, atHost("www.shop.example.com")), other)
		_ = answered(none, atHost("shop"))
		_ = answered(none, atHost("shop.example.com"))
		if c.requireRuns(t, 4); t.Failed() {
			t.Fatal(name)
		}
	}
}

// While a delivery runs, the same ID at another host is another one, unless the two are one site: also where no response is remembered.
func TestHostsAtOnce(t *testing.T) {
	t.Parallel()
	for site, want := range map[string]int{"": http.StatusOK, "shop": http.StatusConflict} {
		var h http.Handler
		h = middleware.New(newLocker(t, live), "", middleware.Rule{IdempotencyKey: "required", Site: site})(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Host == "shop.example.com" {
					w.WriteHeader(answered(h, atHost("www.shop.example.com")).StatusCode)
				}
			}))
		if got := answered(h, atHost("shop.example.com")); got.StatusCode != want {
			t.Errorf("site %q: %d, want %d", site, got.StatusCode, want)
		}
	}
}

// An inner rule asks for its own site, whatever the outer one says.
func TestSiteOfAnInnerRule(t *testing.T) {
	t.Parallel()
	for _, sites := range [][2]string{{"", "shop"}, {"shop", ""}} {
		l, outer, inner := newLocker(t, live), deliveries["an ID alone"], deliveries["an ID alone"]
		outer.Site, inner.Site = sites[0], sites[1]
		c := &cashier{answer: receipt}
		h := middleware.New(l, "", outer)(middleware.New(l, "", inner)(c))
		first := answered(h, atHost("shop.example.com"))
		requireReplay(t, answered(h, atHost("shop.example.com")), first)
		requireReplay(t, answered(h, atHost("www.shop.example.com")), first)
		c.requireRuns(t, 1)
	}
}

// A request with an ID whose host isn't certain is nobody's: it is never served, not even without a lock.
func TestUncertainHostOfADelivery(t *testing.T) {
	t.Parallel()
	for name, rule := range deliveries {
		rule.OnMissingKey = middleware.Pass
		c := &cashier{answer: receipt}
		h := middleware.New(newLocker(t, live), "", rule)(c)
		requireProblem(t, answered(h, atHost("")), http.StatusBadRequest, "bad_key")
		requireProblem(t, answered(h, atHost("a.example.com", "Forwarded", "host=b.example.com")), http.StatusBadRequest, "bad_key")
		if c.requireRuns(t, 0); t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestBadSites(t *testing.T) {
	t.Parallel()
	for want, rule := range map[string]middleware.Rule{
		"site needs dedupe or idempotency_key":       {Site: "shop"},
		`site "{host}": is the same name`:            {Site: "{host}", Dedupe: "{header.X}"},
		`site " shop": must not begin`:               {Site: " shop", Dedupe: "{header.X}"},
		`site "sh\x00op": has characters that can't`: {Site: "sh\x00op", IdempotencyKey: "required"},
		"longer than 128 bytes":                      {Site: strings.Repeat("a", 129), IdempotencyKey: "required"},
	} {
		if err := wrong(rule); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// A webhook that was done doesn't run again because its sender's secret is rolled meanwhile: the secrets of one sender are no part of
// whose delivery it is, and their order neither. Stripe signs with both for a while.
func TestRolledSecret(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	l := newLocker(t, live)
	deliver := func(accepted []string, signers ...string) received {
		const body = `{"id":"evt_1","data":{"object":{"customer":"cus_1"}}}`
		var signature string
		for i, secret := range signers {
			header := signed("stripe", secret, body, time.Now())[1]
			if _, sum, _ := strings.Cut(header, ","); i > 0 {
				header = "," + sum
			}
			signature += header
		}
		rule := middleware.Rule{Preset: "stripe", Remember: hour, Verify: []middleware.Verify{{Scheme: "stripe", Secrets: accepted}}}
		return answered(middleware.New(l, "", rule)(c), withBody(jsonType, body, "Stripe-Signature", signature))
	}
	first := deliver([]string{"old"}, "old")
	for _, roll := range [][2][]string{
		{{"old", "new"}, {"old"}}, {{"new", "old"}, {"old"}}, {{"new", "old"}, {"old", "new"}}, {{"new", "old"}, {"new", "old"}}, {{"new", "old"}, {"new"}}, {{"new"}, {"new"}}, {{"newer", "new"}, {"newer"}},
	} {
		requireReplay(t, deliver(roll[0], roll[1]...), first)
	}
	c.requireRuns(t, 1)
	requireProblem(t, deliver([]string{"newer"}, "old"), http.StatusUnauthorized, "bad_signature")
}

// Several senders of one rule are told apart by their names, which stay when a sender is added, their order changes, or a secret is rolled.
func TestSendersOfARule(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	l := newLocker(t, live)
	deliver := func(secret string, senders ...middleware.Verify) received {
		const body = `{"id":"evt_1","data":{"object":{"customer":"cus_1"}}}`
		rule := middleware.Rule{Preset: "stripe", Remember: hour, Verify: senders}
		return answered(middleware.New(l, "", rule)(c), withBody(jsonType, body, append(signed("stripe", secret, body, time.Now()), "X-Hub-Signature-256", "sha256="+hex.EncodeToString(hmacOf(secret, body)))...))
	}
	of := func(name string, secrets ...string) middleware.Verify {
		return middleware.Verify{Scheme: "stripe", Name: name, Secrets: secrets}
	}
	alone := deliver("1", of("", "1"))
	requireReplay(t, deliver("1", of("", "1"), of("b", "2")), alone)
	b := deliver("2", of("", "1"), of("b", "2"))
	c.requireRuns(t, 2)
	requireReplay(t, deliver("2", of("b", "2"), of("", "1")), b)
	requireReplay(t, deliver("3", of("c", "4"), of("", "1", "5"), of("b", "3", "2")), b)
	requireReplay(t, deliver("5", of("c", "4"), of("", "5"), of("b", "3")), alone)
	requireReplay(t, deliver("3", middleware.Verify{Scheme: "github", Secrets: []string{"5"}}, of("b", "3")), b)
	c.requireRuns(t, 2)
	_ = deliver("4", of("c", "4"), of("", "1"))
	c.requireRuns(t, 3)
	requireProblem(t, deliver("6", of("c", "4"), of("", "1")), http.StatusUnauthorized, "bad_signature")
}

// A payment that is refused and then succeeds, and a request for information that is answered, are two events each to Adyen, with one
// reference and one code.
func TestUpdatesOfAdyen(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "adyen", Remember: hour})(c))
	json := `{"live":"true","notificationItems":[{"NotificationRequestItem":{"pspReference":"P1","eventCode":"%s","success":"%s","additionalData":{"disputeStatus":"%s"}}}]}`
	for i, event := range [][]any{
		{"AUTHORISATION", "false", ""}, {"AUTHORISATION", "true", ""},
		{"REQUEST_FOR_INFORMATION", "true", "Unresponded"}, {"REQUEST_FOR_INFORMATION", "true", "Responded"},
	} {
		for _, body := range []struct{ kind, text string }{
			{jsonType, fmt.Sprintf(json, event...)},
			{formType, fmt.Sprintf("pspReference=P2&eventCode=%s&success=%s&additionalData.disputeStatus=%s", event...)},
		} {
			first := postBody(t, server.URL, body.kind, strings.NewReader(body.text))
			requireReplay(t, postBody(t, server.URL, body.kind, strings.NewReader(body.text)), first)
		}
		c.requireRuns(t, int64(2*i+2))
	}
}

// A rule inside of another with the same ID knows its own request, whether the two remember responses or not.
func TestNestedDeliveries(t *testing.T) {
	t.Parallel()
	preset := middleware.Rule{Preset: "idempotency-key"}
	dedupe, remember := middleware.Rule{Dedupe: "{header.Idempotency-Key}"}, middleware.Rule{Dedupe: "{header.Idempotency-Key}", Remember: hour}
	for name, rules := range map[string]struct {
		outer, inner middleware.Rule
		template     string
		remembers    bool
	}{
		"the ID alone":       {preset, preset, "", true},
		"with a key":         {preset, preset, "order:{header.Order}", true},
		"dedupe twice":       {dedupe, dedupe, "order:{header.Order}", false},
		"dedupe outside":     {dedupe, remember, "order:{header.Order}", true},
		"dedupe inside":      {remember, dedupe, "order:{header.Order}", true},
		"remembering twice":  {remember, remember, "order:{header.Order}", true},
		"another rule's key": {preset, remember, "order:{header.Order}", true},
	} {
		l := newLocker(t, live)
		c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
			if turn, _ := middleware.TurnFromContext(r.Context()); turn.Lock == nil || turn.Key == "" || turn.Outcome != middleware.OutcomeAcquired || r.Header.Get("Fencing-Token") == "" {
				t.Errorf("%s: turn %+v", name, turn)
			}
			receipt(w, r)
		}}
		server := serve(t, middleware.New(l, rules.template, rules.outer)(middleware.New(l, rules.template, rules.inner)(c)))
		pay := func() received {
			return post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x", "Order", "42")
		}
		first := pay()
		if first.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %d %s", name, first.StatusCode, first.body)
		}
		if again := pay(); rules.remembers {
			requireReplay(t, again, first)
		} else if again.StatusCode != http.StatusCreated || again.body == first.body {
			t.Errorf("%s: %d %s", name, again.StatusCode, again.body)
		}
	}
}

// An Idempotency-Key names one request: with another key it is a mistake of the client.
func TestIdempotencyKeyOfAnotherOrder(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, orders(newLocker(t, live), c.ServeHTTP, middleware.Rule{Preset: "idempotency-key"}))
	pay := func(order string) received {
		return post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x", "Order", order)
	}
	first := pay("42")
	requireProblem(t, pay("43"), http.StatusUnprocessableEntity, "mismatch")
	requireReplay(t, pay("42"), first)
	c.requireRuns(t, 1)
}

// A request that has no key keeps its ID, where the rule lets it pass.
func TestIDWithoutAKey(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]middleware.Rule{
		"preset": {Preset: "idempotency-key"}, "dedupe": {Dedupe: "{header.Idempotency-Key}", Remember: hour, Scope: "{header.Authorization}"},
	} {
		rule.OnMissingKey = middleware.Pass
		c := &cashier{answer: receipt}
		server := serve(t, orders(newLocker(t, live), c.ServeHTTP, rule))
		first := post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x")
		requireReplay(t, post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x"), first)
		c.requireRuns(t, 1)
		requireProblem(t, post(t, server.URL, "Idempotency-Key", "a"), http.StatusUnauthorized, "missing_scope") // of nobody
		c.requireRuns(t, 1)
		if got := post(t, server.URL, "Authorization", "x"); name == "preset" {
			requireProblem(t, got, http.StatusBadRequest, "missing_id")
		} else if got.StatusCode != http.StatusCreated {
			t.Errorf("%s: without key and ID: %d %s", name, got.StatusCode, got.body)
		}
	}
}

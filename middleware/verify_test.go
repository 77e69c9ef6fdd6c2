package middleware_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const ages = 100 * 365 * 24 * time.Hour

// vectors are the examples of the senders' documentation. Stripe's shows no secret, so its signature was made as its text says,
// with openssl dgst -sha256 -hmac.
var vectors = []struct {
	scheme, secret, body string
	headers              []string
}{
	{"github", "It's a Secret to Everybody", "Hello, World!", []string{
		"X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}},
	{"slack", "8f742231b10e8888abcd99yyyzzz85a5",
		"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
		[]string{"X-Slack-Request-Timestamp", "1531420618",
			"X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}},
	{"standard-webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`, []string{
		"Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "Webhook-Timestamp", "1614265330",
		"Webhook-Signature", "v1a,bm9uZQ== v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}},
	{"standard-webhooks", "plJ3nmyCDGBKInavdOK15jsl", `{"event_type":"ping","data":{"success":true}}`, []string{
		"Webhook-Id", "msg_loFOjxBNrRLzqYUf", "Webhook-Timestamp", "1731705121",
		"Webhook-Signature", "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="}},
	{"stripe", "whsec_test_secret", `{"id":"evt_1"}`, []string{
		"Stripe-Signature", "t=1492774577,v1=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd,v1=799c4ba7bb339f3c8601adfd112f0e477c930a268be1243d341abb8286501c2f,v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"}},
	{"shopify", "hush", `{"id":820982911946154508}`, []string{"X-Shopify-Hmac-Sha256", "qBvrsZF7RfB1iS6BX6IHqJTp5L911P7intnPeTPsH0I="}},
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		server := serve(t, middleware.New(newLocker(t, live), "k", middleware.Rule{ReplayWindow: ages, Verify: []middleware.Verify{{Scheme: v.scheme, Secrets: []string{"d3Jvbmc=", v.secret}}}})(http.HandlerFunc(ok)))
		send := func(body string, headers ...string) received {
			t.Helper()
			r := newRequest(t, server.URL, headers...)
			r.Body = withBody("", body).Body
			return do(t, r)
		}
		if got := send(v.body, v.headers...); got.body != "served" {
			t.Errorf("%s: %d %s", v.scheme, got.StatusCode, got.body)
		}
		requireProblem(t, send(v.body+" ", v.headers...), http.StatusUnauthorized, "bad_signature")
		requireProblem(t, send("", v.headers...), http.StatusUnauthorized, "bad_signature")
		for i := 0; i < len(v.headers); i += 2 {
			rule := middleware.Rule{FenceHeader: v.headers[i], Verify: []middleware.Verify{{Scheme: v.scheme, Secrets: []string{v.secret}}}}
			if err := wrong(rule); err == nil || !strings.Contains(err.Error(), "the signature is read from this header") {
				t.Errorf("%s as fence_header: error %v", v.headers[i], err)
			}
			without := append(append([]string{}, v.headers[:i]...), v.headers[i+2:]...)
			requireProblem(t, send(v.body, without...), http.StatusUnauthorized, "bad_signature")
			twice := append(append([]string{}, v.headers...), v.headers[i:i+2]...)
			requireProblem(t, send(v.body, twice...), http.StatusUnauthorized, "bad_signature")
			wrong := append([]string{}, v.headers...)
			wrong[i+1] = strings.NewReplacer("a", "b", "1", "2", "W", "w", "J", "k", "m", "n").Replace(wrong[i+1])
			got := send(v.body, wrong...)
			requireProblem(t, got, http.StatusUnauthorized, "bad_signature")
			if got.Header.Get("Www-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		}
	}
}

func hmacOf(secret, text string) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(text))
	return h.Sum(nil)
}

// signed returns the headers with which a sender signs at this time.
func signed(scheme, secret, body string, at time.Time) []string {
	sum := func(text string) []byte { return hmacOf(secret, text) }
	switch sent := fmt.Sprint(at.Unix()); scheme {
	case "stripe":
		return []string{"Stripe-Signature", "t=" + sent + ",v1=" + hex.EncodeToString(sum(sent+"."+body))}
	case "slack":
		return []string{"X-Slack-Request-Timestamp", sent, "X-Slack-Signature", "v0=" + hex.EncodeToString(sum("v0:"+sent+":"+body))}
	case "standard-webhooks":
		return []string{"Webhook-Id", "msg_1", "Webhook-Timestamp", sent, "Webhook-Signature", "v1," + base64.StdEncoding.EncodeToString(sum("msg_1."+sent+"."+body))}
	}
	panic(scheme)
}

func TestReplayWindow(t *testing.T) {
	t.Parallel()
	const secret, body = "s3cr3t", `{"id":42}`
	for _, scheme := range []string{"stripe", "slack", "standard-webhooks"} {
		configured := secret
		if scheme == "standard-webhooks" {
			configured = "whsec_" + base64.StdEncoding.EncodeToString([]byte(secret))
		}
		for _, window := range []time.Duration{5 * time.Minute, time.Minute} {
			rule := middleware.Rule{Verify: []middleware.Verify{{Scheme: scheme, Secrets: []string{configured}}}}
			if window != 5*time.Minute { // the default
				rule.ReplayWindow = window
			}
			handler := middleware.New(newLocker(t, live), "order:{body.id}", rule)(http.HandlerFunc(ok))
			server := serve(t, handler)
			for shift, good := range map[time.Duration]bool{
				0: true, window - 20*time.Second: true, 20*time.Second - window: true, window + 20*time.Second: false, -window - 20*time.Second: false,
			} {
				r := newRequest(t, server.URL, append(signed(scheme, secret, body, time.Now().Add(shift)), "Content-Type", jsonType)...)
				r.Body = withBody("", body).Body
				got := do(t, r)
				if good && got.body != "served" {
					t.Errorf("%s, %v: %d %s", scheme, shift, got.StatusCode, got.body)
				} else if !good {
					requireProblem(t, got, http.StatusUnauthorized, "bad_signature")
				}
			}
		}
	}
}

// An ID of Standard Webhooks may have a dot if the body can't be mistaken for the time.
func TestDotsInIDs(t *testing.T) {
	t.Parallel()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("s3cr3t"))
	server := serve(t, middleware.New(newLocker(t, live), "{header.Webhook-Id}", middleware.Rule{Verify: []middleware.Verify{{Scheme: "standard-webhooks", Secrets: []string{secret}}}})(http.HandlerFunc(ok)))
	sent := fmt.Sprint(time.Now().Unix())
	for _, c := range []struct {
		id, body string
		good     bool
	}{
		{"msg_1.2", `{"id":42}`, true},
		{"3f2a.4b.x", `[42]`, true},
		{"msg_1." + sent, "42", false},
		{`a.` + sent + `.{"x":"y`, `{"id":42}`, false},
		{"a b.c", `{"id":42}`, false},
	} {
		sum := hmacOf("s3cr3t", c.id+"."+sent+"."+c.body)
		r := newRequest(t, server.URL, "Webhook-Id", c.id, "Webhook-Timestamp", sent, "Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sum))
		r.Body = withBody("", c.body).Body
		if got := do(t, r); (got.StatusCode == http.StatusOK) != c.good {
			t.Errorf("%s of %s: %d %s", c.id, c.body, got.StatusCode, got.body)
		}
	}
}

// Signatures that the senders' own libraries refuse are refused, even if a lenient reader would accept them.
func TestVerifyIsStrict(t *testing.T) {
	t.Parallel()
	const secret, body = "s3cr3t", `{"id":42}`
	upper := func(text string) string { return strings.ToUpper(text) }
	for scheme, changes := range map[string][]func(headers []string){
		"stripe": {
			func(h []string) { i := strings.Index(h[1], "v1="); h[1] = h[1][:i+3] + upper(h[1][i+3:]) },
			func(h []string) { h[1] = strings.Replace(h[1], ",", ", ", 1) },
			func(h []string) { h[1] = strings.Replace(h[1], "v1=", "v1 =", 1) },
			func(h []string) {
				sent := "+" + fmt.Sprint(time.Now().Unix())
				sum := hmac.New(sha256.New, []byte(secret))
				sum.Write([]byte(sent + "." + body))
				h[1] = "t=" + sent + ",v1=" + hex.EncodeToString(sum.Sum(nil))
			},
		},
		"slack":             {func(h []string) { h[3] = "v0=" + upper(h[3][3:]) }, func(h []string) { h[1] = "+" + h[1] }},
		"standard-webhooks": {func(h []string) { h[5] = strings.TrimRight(h[5], "=") }, func(h []string) { h[5] = "V" + h[5][1:] }},
	} {
		configured := secret
		if scheme == "standard-webhooks" {
			configured = "whsec_" + base64.StdEncoding.EncodeToString([]byte(secret))
		}
		server := serve(t, middleware.New(newLocker(t, live), "order:{body.id}", middleware.Rule{Verify: []middleware.Verify{{Scheme: scheme, Secrets: []string{configured}}}})(http.HandlerFunc(ok)))
		for i, change := range append(changes, nil) {
			headers := append(signed(scheme, secret, body, time.Now()), "Content-Type", jsonType)
			if change != nil {
				change(headers)
			}
			r := newRequest(t, server.URL, headers...)
			r.Body = withBody("", body).Body
			if got := do(t, r); (got.StatusCode == http.StatusOK) != (change == nil) {
				t.Errorf("%s, change %d: %d with %q", scheme, i, got.StatusCode, headers)
			}
		}
	}
}

// A client without the secret can neither hold a key nor learn whether it is held.
func TestVerifyComesBeforeTheLock(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, middleware.New(l, "order:{header.Order}", middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"secret"}}}, OnMissingKey: middleware.Pass})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") })))
	requireProblem(t, post(t, server.URL, "Order", "42"), http.StatusUnauthorized, "bad_signature")
	requireProblem(t, post(t, server.URL), http.StatusUnauthorized, "bad_signature")
	hold(t, l, "order:42")
	requireProblem(t, post(t, server.URL, "Order", "42"), http.StatusUnauthorized, "bad_signature")
	if _, err := l.TryLock(t.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
		t.Error(err)
	}
}

func TestBadVerifiers(t *testing.T) {
	t.Parallel()
	const decoded = "s3cr3tAA"
	for want, verify := range map[string][]middleware.Verify{
		"verify gitlab: unknown scheme; want one of adyen, github, shopify": {{Scheme: "gitlab", Secrets: []string{"s3cr3t"}}},
		"at least one secret":                              {{Scheme: "stripe", Secrets: []string{}}},
		"secret 2 is empty":                                {{Scheme: "stripe", Secrets: []string{"s3cr3t", ""}}},
		"secret 1 is blank":                                {{Scheme: "github", Secrets: []string{" \t\n"}}},
		"secret 1: want hexadecimal digits":                {{Scheme: "adyen", Secrets: []string{"s3cr3t"}}},
		"secret 1: want \"whsec_\" followed by base64":     {{Scheme: "standard-webhooks", Secrets: []string{"s3cr3t!"}}},
		"verify stripe as b: secret 1 is empty":            {{Scheme: "stripe", Secrets: []string{"s3cr3t"}}, {Scheme: "stripe", Name: "b", Secrets: []string{""}}},
		"verify github: another verify has no name either": {{Scheme: "stripe", Secrets: []string{"s3cr3t"}}, {Scheme: "github", Secrets: []string{"s3cr3t2"}}},
		"verify github as a: another verify has this name": {{Scheme: "github", Name: "a", Secrets: []string{"s3cr3t"}}, {Scheme: "github", Name: "a", Secrets: []string{"s3cr3t2"}}},
		"verify github as b: has a secret of verify github as a": {{Scheme: "github", Name: "a", Secrets: []string{"s3cr3t1", "s3cr3t"}},
			{Scheme: "github", Name: "b", Secrets: []string{"s3cr3t2", "s3cr3t"}}},
		"has a secret of verify standard-webhooks, too": {{Scheme: "standard-webhooks", Secrets: []string{"whsec_" + decoded}}, {Scheme: "standard-webhooks", Name: "b", Secrets: []string{decoded}}},
		"has a secret of verify github, too":            {{Scheme: "github", Secrets: []string{"s3cr3t"}}, {Scheme: "shopify", Name: "b", Secrets: []string{"s3cr3t"}}},
		`name "b ": must not begin or end`:              {{Scheme: "stripe", Name: "b ", Secrets: []string{"s3cr3t"}}},
		"the name has no placeholders":                  {{Scheme: "stripe", Name: "{env.B}", Secrets: []string{"s3cr3t"}}},
	} {
		if err := wrong(middleware.Rule{Verify: verify}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

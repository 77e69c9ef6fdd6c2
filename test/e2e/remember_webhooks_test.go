package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// webhook is a delivery as a sender sends it for the first time, and as it repeats it.
type webhook struct {
	secret string // for verify; empty for a sender whose signatures are not checked here
	send   func(secret string, repeat bool) (body string, header []string)
}

func hmacSHA256(key, text string) []byte {
	sum := hmac.New(sha256.New, []byte(key))
	sum.Write([]byte(text))
	return sum.Sum(nil)
}

// sentAt returns the time at which a delivery is signed: the repeat's is a minute later.
func sentAt(repeat bool) string {
	now := time.Now()
	if !repeat {
		now = now.Add(-time.Minute)
	}
	return fmt.Sprint(now.Unix())
}

// either returns what the first delivery has, or what the repeat has.
func either(repeat bool, first, again string) string {
	if repeat {
		return again
	}
	return first
}

// webhooks has what senders change in a repeat: they sign it anew, number it, or describe the object as it is by then.
var webhooks = map[string]webhook{
	"stripe": {"whsec_abc", func(secret string, repeat bool) (string, []string) {
		body := `{"id":"evt_1","object":"event","pending_webhooks":` + either(repeat, "2", "1") + `,"type":"charge.succeeded","data":{"object":{"id":"ch_1","customer":"cus_1"}}}`
		sent := sentAt(repeat)
		return body, []string{"Stripe-Signature", fmt.Sprintf("t=%s,v1=%x", sent, hmacSHA256(secret, sent+"."+body))}
	}},
	"github": {"github-secret", func(secret string, repeat bool) (string, []string) {
		const body = `{"action":"opened","repository":{"id":1296269}}`
		return body, []string{"X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Event", "issues", "X-Hub-Signature-256", githubSignature(secret, body),
			"User-Agent", either(repeat, "GitHub-Hookshot/044aadd", "GitHub-Hookshot/0b1c2d3")}
	}},
	"shopify": {"shopify-secret", func(secret string, repeat bool) (string, []string) {
		body := `{"id":820982911946154508,"updated_at":"` + either(repeat, "2026-11-22T10:00:00Z", "2026-11-22T10:05:00Z") + `"}`
		return body, []string{"X-Shopify-Event-Id", "98880550-7158-44d4-b7cd-2c97c8a091b5", "X-Shopify-Topic", "orders/paid", "X-Shopify-Shop-Domain", "x.myshopify.com",
			"X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(hmacSHA256(secret, body))}
	}},
	"paypal": {"", func(_ string, repeat bool) (string, []string) {
		return `{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","resource":{"id":"3C679366HH908993F"}}`,
			[]string{"Paypal-Transmission-Id", either(repeat, "a1", "b2"), "Paypal-Transmission-Time", sentAt(repeat), "Paypal-Transmission-Sig", either(repeat, "c3", "d4")}
	}},
	"adyen": {"44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056", func(secret string, repeat bool) (string, []string) {
		key, _ := hex.DecodeString(secret)
		body := `{"eventId":"EV1","type":"balancePlatform.transfer.updated","timestamp":"` + either(repeat, "2026-11-22T10:00:00Z", "2026-11-22T10:05:00Z") + `","data":{"id":"48POO45Z38ZM9J16"}}`
		return body, []string{"HmacSignature", base64.StdEncoding.EncodeToString(hmacSHA256(string(key), body))}
	}},
	"twilio": {"", func(_ string, repeat bool) (string, []string) {
		return "CallSid=CA1&CallStatus=completed&Timestamp=" + sentAt(repeat), []string{"I-Twilio-Idempotency-Token", "e1", "X-Twilio-Signature", either(repeat, "f1", "f2"), contentType, "application/x-www-form-urlencoded"}
	}},
	"slack": {"slack-secret", func(secret string, repeat bool) (string, []string) {
		const body = `{"type":"event_callback","team_id":"T1","event_id":"Ev1","event":{"type":"message","channel":"C1"}}`
		sent := sentAt(repeat)
		header := []string{"X-Slack-Request-Timestamp", sent, "X-Slack-Signature", fmt.Sprintf("v0=%x", hmacSHA256(secret, "v0:"+sent+":"+body))}
		if repeat {
			header = append(header, "X-Slack-Retry-Num", "1", "X-Slack-Retry-Reason", "http_timeout")
		}
		return body, header
	}},
	"square": {"", func(_ string, repeat bool) (string, []string) {
		return `{"merchant_id":"M1","type":"payment.updated","event_id":"e1","data":{"type":"payment","id":"P1","object":{"payment":{"id":"P1","order_id":"O1"}}}}`,
			[]string{"Square-Retry-Number", either(repeat, "0", "1"), "X-Square-Hmacsha256-Signature", either(repeat, "g1", "g2")}
	}},
	"standard-webhooks": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", func(secret string, repeat bool) (string, []string) {
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		const body = `{"type":"invoice.paid","data":{"id":"in_1"}}`
		sent := sentAt(repeat)
		return body, []string{"Webhook-Id", "msg_1", "Webhook-Timestamp", sent, "Webhook-Signature", "v1," + base64.StdEncoding.EncodeToString(hmacSHA256(string(key), "msg_1."+sent+"."+body))}
	}},
}

// TestRememberedWebhooks: under each preset, a delivery that its sender repeats is answered with the first response, and is handled once. The same event at another endpoint is
// another delivery, even if both have one path behind handle_path.
func TestRememberedWebhooks(t *testing.T) {
	needTime(t)
	t.Parallel()
	i := newTill(t)
	servers := redistest.Start(t, 3)
	rules := ""
	for _, preset := range engine.Presets() {
		if preset == "idempotency-key" {
			continue
		}
		w, ok := webhooks[preset]
		if !ok {
			t.Errorf("no webhook for the preset %s", preset)
		}
		verify := ""
		if w.secret != "" {
			verify = "verify " + preset + " " + w.secret + "\n"
		}
		rules += "redlock /" + preset + "/* {\npreset " + preset + "\nremember 1h\n" + verify + "}\n"
	}
	site := ""
	for _, endpoint := range []string{"/billing", "/shipping"} {
		site += "handle_path " + endpoint + "/* {\n" + rules + i.shop.proxy() + "\n}\n"
	}
	config := caddyfile(mastersOption(servers, "timeout "+calm.String()), site)
	urls := []string{runCaddy(t, config).url, runCaddy(t, config).url}
	for preset, w := range webhooks {
		deliver := func(url string, repeat bool) received {
			t.Helper()
			body, header := w.send(w.secret, repeat)
			r := withBody(url, body)
			r.Host = "127.0.0.1" // that of both, as behind a load balancer
			for k := 0; k < len(header); k += 2 {
				r.Header.Set(header[k], header[k+1])
			}
			return send(t, r)
		}
		var responses []received
		before := i.runs()
		for _, endpoint := range []string{"/billing", "/shipping"} {
			first := deliver(urls[0]+endpoint+"/"+preset+"/", false)
			if first.status != http.StatusOK || first.header.Get("Idempotency-Replayed") != "" {
				t.Errorf("%s%s: %d %v", preset, endpoint, first.status, first.header)
			}
			for _, url := range urls {
				if again := deliver(url+endpoint+"/"+preset+"/", true); !sameResponse(first, again) || again.header.Get("Idempotency-Replayed") != "true" {
					t.Errorf("%s%s: the repeat has %d %v %.100q, the first %d %.100q", preset, endpoint, again.status, again.header, again.body, first.status, first.body)
				}
			}
			responses = append(responses, first)
		}
		if runs := i.runs() - before; runs != 2 || responses[0].body == responses[1].body {
			t.Errorf("%s: deliveries to two endpoints were handled %d times", preset, runs)
		}
	}
}

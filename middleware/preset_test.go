package middleware_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// deliveries are made after the senders' public documentation, shortened to what matters.
var deliveries = []struct {
	sender, name, contentType, body string
	headers                         []string
	key, id                         string // id is empty where it isn't sent
}{
	{"stripe", "a charge of a customer", jsonType, `{"id":"evt_1","object":"event","api_version":"2024-06-20","created":1326853478,"type":"charge.succeeded","livemode":false,
		"data":{"object":{"id":"ch_1","object":"charge","amount":100,"customer":"cus_1","metadata":{}}},"request":{"id":null}}`, nil, "stripe:cus_1", "evt_1"},
	{"stripe", "the customer", jsonType, `{"id":"evt_2","object":"event","type":"customer.updated","data":{"object":{"id":"cus_1","object":"customer"},"previous_attributes":{"email":null}}}`, nil, "stripe:cus_1", "evt_2"},
	{"stripe", "without customer", jsonType, `{"id":"evt_3","data":{"object":{"id":"pi_1","customer":null}}}`, nil, "stripe:pi_1", "evt_3"},
	{"stripe", "an object without ID", jsonType, `{"id":"evt_4","type":"balance.available","data":{"object":{"object":"balance"}}}`, nil, "stripe:evt_4", "evt_4"},
	{"stripe", "a thin event", jsonType, `{"id":"evt_5","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered","related_object":{"id":"mtr_1","type":"billing.meter"}}`, nil, "stripe:mtr_1", "evt_5"},
	{"github", "a push", jsonType, `{"ref":"refs/heads/main","before":"0","after":"1","repository":{"id":1296269,"name":"Hello-World","owner":{"id":1}},"organization":{"id":7}}`,
		[]string{"X-GitHub-Event", "push", "X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID", "292430182"}, "github:1296269", "72d3162e-cc78-11e3-81ab-4c9367dc0958"},
	{"github", "an organization", jsonType, `{"action":"member_added","organization":{"id":7}}`, []string{"X-GitHub-Delivery", "g", "X-GitHub-Hook-ID", "292430182"}, "github:7", "g"},
	{"github", "a form", formType, "payload=%7B%22repository%22%3A%7B%22id%22%3A1%7D%7D", []string{"X-GitHub-Delivery", "g", "X-GitHub-Hook-ID", "292430182"}, "github:292430182", "g"},
	{"shopify", "an order", jsonType, `{"id":820982911946154508,"admin_graphql_api_id":"gid://shopify/Order/820982911946154508","email":"jon@example.com","line_items":[{"id":866550311766439020}]}`,
		[]string{"X-Shopify-Topic", "orders/create", "X-Shopify-Shop-Domain", "x.myshopify.com", "X-Shopify-Webhook-Id", "w1", "X-Shopify-Event-Id", "e1"}, "shopify:x.myshopify.com:820982911946154508", "e1:orders%2Fcreate"},
	{"shopify", "its refund", jsonType, `{"id":890088186047892319,"order_id":820982911946154508}`,
		[]string{"X-Shopify-Topic", "refunds/create", "X-Shopify-Shop-Domain", "x.myshopify.com", "X-Shopify-Webhook-Id", "w2"}, "shopify:x.myshopify.com:820982911946154508", "w2:refunds%2Fcreate"},
	{"paypal", "a capture", jsonType, `{"id":"WH-58D329510W468432D-8HN650336L201105X","event_version":"1.0","resource_type":"capture","event_type":"PAYMENT.CAPTURE.COMPLETED",
		"resource":{"id":"42311647XV020574X","amount":{"value":"2.51"},"supplementary_data":{"related_ids":{"order_id":"5O190127TN364715T"}}}}`, nil, "paypal:5O190127TN364715T", "WH-58D329510W468432D-8HN650336L201105X"},
	{"paypal", "its order", jsonType, `{"id":"WH-2","event_type":"CHECKOUT.ORDER.APPROVED","resource_type":"checkout-order","resource":{"id":"5O190127TN364715T","intent":"CAPTURE"}}`, nil, "paypal:5O190127TN364715T", "WH-2"},
	{"paypal", "a sale", jsonType, `{"id":"WH-3","event_type":"PAYMENT.SALE.COMPLETED","resource":{"id":"80021663DE681814L","parent_payment":"PAY-1PA12106FU478450MKRETS4A"}}`, nil, "paypal:PAY-1PA12106FU478450MKRETS4A", "WH-3"},
	{"paypal", "a dispute", jsonType, `{"id":"WH-4","event_type":"CUSTOMER.DISPUTE.CREATED","resource_type":"dispute","resource":{"dispute_id":"PP-000-003-648-191","disputed_transactions":[{}]}}`, nil, "paypal:PP-000-003-648-191", "WH-4"},
	{"adyen", "an authorisation", jsonType, `{"live":"false","notificationItems":[{"NotificationRequestItem":{"eventCode":"AUTHORISATION","success":"true","pspReference":"7914073381342284","merchantReference":"TestPayment-1407325143704","amount":{"value":1130,"currency":"EUR"}}}]}`,
		nil, "adyen:7914073381342284", "7914073381342284:AUTHORISATION"},
	{"adyen", "its capture", jsonType, `{"live":"false","notificationItems":[{"NotificationRequestItem":{"eventCode":"CAPTURE","success":"true","pspReference":"8825408195409505","originalReference":"7914073381342284"}}]}`,
		nil, "adyen:7914073381342284", "8825408195409505:CAPTURE"},
	{"adyen", "a form", formType, "live=false&eventCode=CAPTURE&pspReference=8825408195409505&originalReference=7914073381342284&success=true", nil, "adyen:7914073381342284", "8825408195409505:CAPTURE"},
	{"adyen", "a form without original", formType, "live=false&eventCode=AUTHORISATION&pspReference=7914073381342284&originalReference=&success=true", nil, "adyen:7914073381342284", "7914073381342284:AUTHORISATION"},
	{"adyen", "several items", jsonType, `{"live":"false","notificationItems":[{"NotificationRequestItem":{"eventCode":"AUTHORISATION","pspReference":"A"}},{"NotificationRequestItem":{"eventCode":"CAPTURE","pspReference":"C","originalReference":"B"}}]}`,
		nil, "adyen:A adyen:B", "A:AUTHORISATION"},
	{"twilio", "a call", formType, "CallSid=CA1234567890ABCDE&AccountSid=AC1&From=%2B14158675309&To=%2B18005551212&CallStatus=ringing", []string{"I-Twilio-Idempotency-Token", "t1"}, "twilio:CA1234567890ABCDE", "t1"},
	{"twilio", "a message", formType, "ToCountry=US&SmsMessageSid=SM1&MessageSid=SM1&SmsSid=SM1&Body=Hello", nil, "twilio:SM1", ""},
	{"slack", "a message", jsonType, `{"token":"x","team_id":"T1","api_app_id":"A1","event":{"type":"message","channel":"C1","user":"U1","text":"hi","ts":"1355517523.000005"},"type":"event_callback","event_id":"Ev1","event_time":1355517523}`,
		[]string{"X-Slack-Retry-Num", "1", "X-Slack-Retry-Reason", "http_timeout"}, "slack:T1:C1", "Ev1"},
	{"slack", "a new channel", jsonType, `{"team_id":"T1","event":{"type":"channel_created","channel":{"id":"C1","name":"fun"}},"type":"event_callback","event_id":"Ev2"}`, nil, "slack:T1:C1", "Ev2"},
	{"slack", "a reaction", jsonType, `{"team_id":"T1","event":{"type":"reaction_added","item":{"type":"message","channel":"C1"}},"type":"event_callback","event_id":"Ev3"}`, nil, "slack:T1:C1", "Ev3"},
	{"slack", "the challenge", jsonType, `{"token":"x","challenge":"3eZbrw1aBm2rZgRNFdxV","type":"url_verification"}`, nil, "slack:url_verification:url_verification", ""},
	{"slack", "a command", formType, "token=x&team_id=T1&channel_id=C1&command=%2Fweather&trigger_id=13345224609.738474920", nil, "slack:T1:C1", ""},
	{"square", "a payment", jsonType, `{"merchant_id":"6SSW7HV8K2ST5","type":"payment.updated","event_id":"6a8f5f28-54a1-4eb0-a98a-3111513fd4fc","data":{"type":"payment","id":"hYy9pRFVxpDsO1FB05SunFWUe9JZY","object":{"payment":{"id":"hYy9pRFVxpDsO1FB05SunFWUe9JZY","order_id":"03O3USaPaAaFnI6kkwB1JxGgBsUZY"}}}}`,
		nil, "square:6SSW7HV8K2ST5:03O3USaPaAaFnI6kkwB1JxGgBsUZY", "6a8f5f28-54a1-4eb0-a98a-3111513fd4fc"},
	{"square", "its order", jsonType, `{"merchant_id":"6SSW7HV8K2ST5","type":"order.updated","event_id":"e2","data":{"type":"order_updated","id":"03O3USaPaAaFnI6kkwB1JxGgBsUZY","object":{"order_updated":{"state":"OPEN"}}}}`,
		nil, "square:6SSW7HV8K2ST5:03O3USaPaAaFnI6kkwB1JxGgBsUZY", "e2"},
	{"standard-webhooks", "a contact", jsonType, `{"type":"contact.created","timestamp":"2022-11-03T20:26:10.344522Z","data":{"id":"1f81eb52-5198-4599-803e-771906343485","type":"contact"}}`,
		[]string{"Webhook-Id", "msg_1"}, "webhook:1f81eb52-5198-4599-803e-771906343485", "msg_1"},
	{"standard-webhooks", "a ping", jsonType, `{"event_type":"ping","data":{"success":true}}`, []string{"Webhook-Id", "msg_2"}, "webhook:msg_2", "msg_2"},
}

func TestPresets(t *testing.T) {
	seen := make(map[string]bool)
	for _, d := range deliveries {
		preset, err := middleware.PresetOf(d.sender)
		if err != nil {
			t.Fatal(err)
		}
		seen[d.sender] = true
		if got := keysFor(t, preset.Key, withBody(d.contentType, d.body, d.headers...)); got != d.key {
			t.Errorf("%s, %s: key %s, want %s", d.sender, d.name, got, d.key)
		}
		want := d.id
		if want == "" {
			want = "missing"
		}
		if got := keysFor(t, preset.Dedupe, withBody(d.contentType, d.body, d.headers...)); got != want {
			t.Errorf("%s, %s: ID %s, want %s", d.sender, d.name, got, want)
		}

		served := make(chan string, 1)
		l := newLocker(t, live)
		server := serve(t, middleware.New(l, "", middleware.WithPreset(d.sender))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnOf(r.Context())
			body, _ := io.ReadAll(r.Body)
			if string(body) != d.body {
				t.Errorf("%s, %s: the body was changed: %s", d.sender, d.name, body)
			}
			served <- turn.Key
		})))
		r := newRequest(t, server.URL, append(d.headers, "Content-Type", d.contentType)...)
		r.Body = io.NopCloser(strings.NewReader(d.body))
		if got := do(t, r); got.StatusCode != http.StatusOK {
			t.Errorf("%s, %s: %d %s", d.sender, d.name, got.StatusCode, got.body)
		} else if key := <-served; key != d.key {
			t.Errorf("%s, %s: locked %s", d.sender, d.name, key)
		}
	}
	_, err := middleware.PresetOf("")
	for sender := range seen {
		if !strings.Contains(err.Error(), sender) {
			t.Errorf("error %v doesn't name %s", err, sender)
		}
	}
	if names := strings.Count(err.Error(), ","); names != len(seen)-1 {
		t.Errorf("%d presets are tested; %v", len(seen), err)
	}
}

func TestPresetsCanBeChanged(t *testing.T) {
	l := newLocker(t, live)
	hold(t, l, "order:42")
	server := serve(t, middleware.New(l, "order:{body.CallSid}", middleware.WithPreset("twilio"),
		middleware.WithWait(0), middleware.WithHeldStatus(http.StatusTooManyRequests), middleware.WithDedupe(""))(http.HandlerFunc(ok)))
	requireProblem(t, postBody(t, server.URL, formType, strings.NewReader("CallSid=42")), http.StatusTooManyRequests, "held")
}

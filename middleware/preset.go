package middleware

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Preset are settings of a rule that fit a sender of webhooks; docs/presets.md has the reasons.
type Preset struct {
	Key        string        // template
	Dedupe     string        // template of the ID of a delivery
	Wait       time.Duration // less than the sender waits for an answer, so that the handler has time too
	HeldStatus int           // 0 for the default
	MaxBody    int64         // 0 for the default
}

var presets = map[string]Preset{
	"stripe": {
		Key:    "stripe:{body.data.object.customer.id|body.data.object.customer|body.data.object.id|body.related_object.id|body.id}",
		Dedupe: "{body.id}",
		Wait:   5 * time.Second,
	},
	"github": {
		Key:     "github:{body.repository.id|body.organization.id|body.installation.id|header.X-GitHub-Hook-ID}",
		Dedupe:  "{header.X-GitHub-Delivery}",
		Wait:    8 * time.Second,
		MaxBody: 25 << 20,
	},
	"shopify": {
		Key:     "shopify:{header.X-Shopify-Shop-Domain}:{body.order_id|body.id|header.X-Shopify-Webhook-Id}",
		Dedupe:  "{header.X-Shopify-Event-Id|header.X-Shopify-Webhook-Id}:{header.X-Shopify-Topic}",
		Wait:    3 * time.Second,
		MaxBody: 8 << 20,
	},
	"paypal": {
		Key:    "paypal:{body.resource.supplementary_data.related_ids.order_id|body.resource.parent_payment|body.resource.billing_agreement_id|body.resource.id|body.resource.dispute_id|body.id}",
		Dedupe: "{body.id}",
		Wait:   5 * time.Second,
	},
	"adyen": {
		Key:    "adyen:{body.notificationItems[].NotificationRequestItem.originalReference|body.notificationItems[].NotificationRequestItem.pspReference|body.originalReference|body.pspReference}",
		Dedupe: "{body.notificationItems.0.NotificationRequestItem.pspReference|body.pspReference}:{body.notificationItems.0.NotificationRequestItem.eventCode|body.eventCode}",
		Wait:   5 * time.Second,
	},
	"twilio": {
		Key:        "twilio:{body.CallSid|body.MessageSid|query.CallSid|query.MessageSid|header.I-Twilio-Idempotency-Token}",
		Dedupe:     "{header.I-Twilio-Idempotency-Token}",
		Wait:       10 * time.Second,
		HeldStatus: 503,
	},
	"slack": {
		Key:    "slack:{body.team_id|body.type}:{body.event.channel.id|body.event.channel|body.event.item.channel|body.channel_id|body.event_id|body.type}",
		Dedupe: "{body.event_id}",
		Wait:   time.Second,
	},
	"square": {
		Key:    "square:{body.merchant_id}:{body.data.object.payment.order_id|body.data.object.refund.order_id|body.data.id|body.event_id}",
		Dedupe: "{body.event_id}",
		Wait:   5 * time.Second,
	},
	"standard-webhooks": {
		Key:    "webhook:{body.data.id|header.Webhook-Id}",
		Dedupe: "{header.Webhook-Id}",
		Wait:   5 * time.Second,
	},
}

// PresetOf gives the preset of a sender: stripe, github, shopify, paypal, adyen, twilio, slack,
// square or standard-webhooks.
func PresetOf(sender string) (Preset, error) {
	p, ok := presets[sender]
	if !ok {
		return p, fmt.Errorf("preset %q: unknown; there are %s", sender, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
	}
	return p, nil
}

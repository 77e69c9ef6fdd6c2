package middleware

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
)

func anyOf(alternatives ...string) string { return strings.Join(alternatives, "|") }

// allOf puts the prefix before each name, and joins the names with "&": the placeholder takes the values of all of them.
func allOf(prefix string, names ...string) string {
	return prefix + strings.Join(names, "&"+prefix)
}

// The last alternative of each key is in every request. So events that the preset doesn't know are served one at a time, and aren't refused.
var presets = map[string]parts.Preset{
	"stripe": {
		Key: "stripe:{json.account|json.context|method}:{" + anyOf(
			allOf("json.data.object.", "customer.id", "customer", "customer_account", "payment_intent", "charge", "invoice", "subscription", "source", "fee", "authorization",
				"setup_intent", "transfer", "source_transaction", "dispute", "subscription_schedule", "payment.payment_intent", "payment.charge",
				"parent.subscription_details.subscription", "id")+"&json.related_object.id",
			"json.id", "method") + "}",
		Dedupe: "{json.id}",
		Wait:   5 * time.Second,
	},
	"github": {
		Key: "github:{" + anyOf("json.repository.id", "payload.repository.id", "org=json.organization.id", "org=payload.organization.id", "app=json.installation.id", "app=payload.installation.id",
			"enterprise=json.enterprise.id", "enterprise=payload.enterprise.id", "account=json.marketplace_purchase.account.id", "account=payload.marketplace_purchase.account.id",
			"sponsorship=json.sponsorship.node_id", "sponsorship=payload.sponsorship.node_id", "advisory=json.security_advisory.ghsa_id", "advisory=payload.security_advisory.ghsa_id",
			"user=json.sender.id", "user=payload.sender.id", "hook=header.X-GitHub-Hook-ID", "method") + "}",
		Dedupe:  "{header.X-GitHub-Delivery}",
		Wait:    8 * time.Second,
		MaxBody: 25 << 20,
	},
	"shopify": {
		Key: "shopify:{header.X-Shopify-Shop-Domain|header.Shopify-Shop-Domain|method}:{" + anyOf(
			allOf("json.", "order_id", "order.id", "order.admin_graphql_api_id", "order_edit.order_id", "return.id", "return.admin_graphql_api_id", "inventory_item_id", "product_id",
				"product_listing.product_id", "collection_listing.collection_id", "fulfillment_order.id", "original_fulfillment_order.id", "moved_fulfillment_order.id", "submitted_fulfillment_order.id",
				"subscription_contract_id", "app_subscription.admin_graphql_api_id", "app_purchase_one_time.admin_graphql_api_id", "id", "admin_graphql_api_id"),
			"header.Shopify-Resource-Id", allOf("json.", "customer_id", "customerId", "customer.id", "admin_graphql_api_customer_kept_id", "admin_graphql_api_customer_deleted_id"),
			"json.shop_id", "header.X-Shopify-Topic", "header.Shopify-Topic", "method") + "}",
		Dedupe:  "{header.X-Shopify-Event-Id|header.X-Shopify-Webhook-Id|header.Shopify-Event-Id}:{header.X-Shopify-Topic|header.Shopify-Topic}",
		Wait:    3 * time.Second,
		MaxBody: 8 << 20,
	},
	"paypal": {
		Key: "paypal:{" + anyOf(
			allOf("json.resource.", "supplementary_data.related_ids.order_id", "supplementary_data.related_ids.authorization_id", "supplementary_data.related_ids.capture_id", "order_id",
				"parent_payment", "sale_id", "capture_id", "billing_agreement_id", "invoice.id", "dispute_id", "disputed_transactions[].seller_transaction_id",
				"batch_header.payout_batch_id", "payout_batch_id", "payout_item_id", "merchant_id", "links[].href", "id"),
			"json.id", "method") + "}",
		Dedupe: "{json.id}",
		Wait:   5 * time.Second,
	},
	"adyen": {
		Key: "adyen:{" + anyOf(
			allOf("json.notificationItems[].NotificationRequestItem.", "originalReference", "pspReference")+"&form.originalReference&form.pspReference",
			allOf("json.data.", "id", "cardOrderItemId", "transfer.id", "transactionId", "categoryData.pspPaymentReference", "categoryData.modificationPspReference"),
			"json.data.storedPaymentMethodId",
			allOf("json.data.", "sweep.id", "mandate.id", "paymentInstrument.id", "balanceAccount.id", "balanceAccountId", "balanceAccountPayoutScheduleId", "accountHolder.id"),
			"json.data.balancePlatformPayoutScheduleId", "json.data.uniqueTerminalId", "json.uniqueTerminalId", "json.data.terminalId", "json.data.storeId", "json.data.merchantId", "json.data.companyId",
			"json.data.fileName", "json.id", "json.eventId", "json.type", "method") + "}",
		Dedupe: "{json.notificationItems.0.NotificationRequestItem.pspReference|form.pspReference|json.eventId}:{json.notificationItems.0.NotificationRequestItem.eventCode|form.eventCode|json.type}:{json.notificationItems.0.NotificationRequestItem.success|form.success|method}:{json.notificationItems.0.NotificationRequestItem.additionalData.disputeStatus|form.additionalData.disputeStatus|method}",
		Wait:   5 * time.Second,
	},
	"twilio": {
		Key: "twilio:{" + anyOf(
			allOf("form.", twilioSIDs...), allOf("form.", "TaskSid", "WorkerSid"), "form.Sid",
			allOf("query.", twilioSIDs...), allOf("json.", twilioSIDs...), allOf("json.", "sms_sid", "message_sid", "call_sid"), "json.0.id",
			"header.I-Twilio-Idempotency-Token", "form.AccountSid", "query.AccountSid", "json.AccountSid", "method") + "}",
		Dedupe:     "{header.I-Twilio-Idempotency-Token}",
		Wait:       10 * time.Second,
		HeldStatus: 503,
	},
	"slack": {
		Key: "slack:{" + anyOf("json.team_id", "payload.team.id", "form.team_id", "json.enterprise_id", "payload.enterprise.id", "form.enterprise_id", "json.api_app_id", "method") + "}:{" + anyOf(
			allOf("json.event.", "channel.id", "channel", "channel_id", "item.channel", "file_id", "file.id", "call.id")+"&"+
				allOf("payload.", "channel.id", "container.channel_id")+"&form.channel_id",
			"usergroup=json.event.subteam.id", "usergroup=json.event.subteam_id", "view=payload.view.root_view_id", "view=payload.view.id",
			"user=json.event.user.id", "user=json.event.user", "user=payload.user.id", "user=form.user_id", "app=json.api_app_id", "app=payload.api_app_id", "method") + "}",
		Dedupe: "{json.event_id|form.response_url|payload.response_url}",
		Wait:   time.Second,
	},
	"square": {
		Key: "square:{json.merchant_id|method}:{" + anyOf(
			allOf("json.data.object.", "payment.order_id", "refund.order_id", "refund.payment_id", "invoice.order_id", "invoice.subscription_id", "dispute.disputed_payment.payment_id", "checkout.order_id", "checkout.payment_ids[]",
				"order_fulfillment_updated.order_id", "gift_card_activity.gift_card_id", "loyalty_event.loyalty_account_id")+"&json.data.id",
			"json.event_id", "json.type", "method") + "}",
		Dedupe: "{json.event_id}",
		Wait:   5 * time.Second,
	},
	"idempotency-key": {
		IdempotencyKey: true,
		Scope:          "{header.Authorization}",
		Remember:       24 * time.Hour,
	},
	"standard-webhooks": {
		Key:    "webhook:{json.data.id|form.data.id|header.Webhook-Id|header.Svix-Id|method}",
		Dedupe: "{header.Webhook-Id|header.Svix-Id}",
		Wait:   5 * time.Second,
	},
}

// twilioSIDs are the fields that name the subject of a callback from Twilio.
var twilioSIDs = []string{"CallSid", "ParentCallSid", "ConferenceSid", "MessageSid", "SmsSid", "FaxSid", "RecordingSid", "RoomSid", "CompositionSid", "ConversationSid", "ChannelSid", "BundleSid", "VerificationSid"}

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }

func presetOf(sender string) (parts.Preset, error) {
	p, ok := presets[sender]
	if !ok {
		return p, fmt.Errorf("preset %q: unknown; want one of %s", sender, strings.Join(presetNames(), ", "))
	}
	if !p.IdempotencyKey { // a repeated webhook may differ from the first, for example in a date, and senders repeat each webhook that isn't answered with 2xx
		p.IgnoreFingerprint, p.RememberStatus = true, []string{"2xx"}
	}
	return p, nil
}

package signature

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// claim has the signatures in the headers of a request, and the signed values in them. Nothing in a claim is checked yet.
type claim struct {
	prefix     string // the text that is signed before the body
	signatures [][]byte
	dotted     bool   // the ID in the prefix has a dot, so that it isn't clear where the time begins
	sent       string // the time of the signature in seconds since 1970; empty if the sender doesn't sign a time
}

// add adds a signature if it is valid and spelled exactly as the sender spells it, because the senders' own libraries compare the texts.
func (c *claim) add(text string, decode func(string) ([]byte, error), encode func([]byte) string) {
	if signature, err := decode(text); err == nil && len(signature) == size && encode(signature) == text {
		c.signatures = append(c.signatures, signature)
	}
}

func (c *claim) addHex(text string) { c.add(text, hex.DecodeString, hex.EncodeToString) }

func (c *claim) addBase64(text string) {
	c.add(text, base64.StdEncoding.DecodeString, base64.StdEncoding.EncodeToString)
}

// one returns the only value of a header, and reports false if there are none or several.
func one(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

// stripeClaim: https://docs.stripe.com/webhooks/signature
func stripeClaim(h http.Header) (c claim, ok bool) {
	header, found := one(h["Stripe-Signature"])
	if !found {
		return c, false
	}
	for item := range strings.SplitSeq(header, ",") {
		name, value, found := strings.Cut(item, "=")
		switch {
		case !found, name == "t" && c.sent != "":
			return c, false
		case name == "t":
			c.sent = value
		case name == "v1":
			c.addHex(value)
		}
	}
	c.prefix = c.sent + "."
	return c, c.sent != ""
}

// githubClaim: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
func githubClaim(h http.Header) (c claim, ok bool) {
	header, found := one(h["X-Hub-Signature-256"])
	value, hasPrefix := strings.CutPrefix(header, "sha256=")
	c.addHex(value)
	return c, found && hasPrefix
}

// shopifyClaim: https://shopify.dev/docs/apps/build/webhooks/subscribe/https
// The webhooks called events have the header without X-.
func shopifyClaim(h http.Header) (c claim, ok bool) {
	header, found := one(slices.Concat(h["X-Shopify-Hmac-Sha256"], h["Shopify-Hmac-Sha256"]))
	c.addBase64(header)
	return c, found
}

// slackClaim: https://docs.slack.dev/authentication/verifying-requests-from-slack
func slackClaim(h http.Header) (c claim, ok bool) {
	header, found := one(h["X-Slack-Signature"])
	sent, hasTime := one(h["X-Slack-Request-Timestamp"])
	value, hasPrefix := strings.CutPrefix(header, "v0=")
	c.addHex(value)
	c.sent, c.prefix = sent, "v0:"+sent+":"
	return c, found && hasTime && hasPrefix && sent != ""
}

// standardClaim: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
func standardClaim(h http.Header) (c claim, ok bool) {
	id, hasID := standardHeader(h, "Id")
	sent, hasTime := standardHeader(h, "Timestamp")
	header, found := standardHeader(h, "Signature")
	for item := range strings.SplitSeq(header, " ") {
		if value, hasPrefix := strings.CutPrefix(item, "v1,"); hasPrefix {
			c.addBase64(value)
		}
	}
	c.sent, c.prefix = sent, id+"."+sent+"."
	c.dotted = strings.Contains(id, ".")
	return c, found && hasID && hasTime && sent != "" && id != "" && (!c.dotted || strings.Trim(id, inDotted) == "")
}

// inDotted are the characters that an ID with a dot may have. The body must be a JSON object or list in this case. So the signed text can be split in
// one way only: into the ID, the time and the body.
const inDotted = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// standardHeader returns a header, or the header that Svix sends in its place. If a request has both, they must be equal, because some libraries read
// the first header, and some the second.
func standardHeader(h http.Header, name string) (string, bool) {
	svix := h["Svix-"+name]
	if len(svix) == 0 && len(h["Svix-Id"])+len(h["Svix-Timestamp"])+len(h["Svix-Signature"]) == 0 {
		return one(h["Webhook-"+name])
	}
	value, found := one(svix)
	if others := h["Webhook-"+name]; len(others) > 1 || len(others) == 1 && others[0] != value {
		return "", false
	}
	return value, found
}

func standardKey(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return nil, errors.New(`want "whsec_" followed by base64`)
	}
	return key, nil
}

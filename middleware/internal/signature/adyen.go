package signature

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// adyenClaim: https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures
// Only the webhooks of platforms, of tokens and of the management API have their signature in a header.
func adyenClaim(h http.Header) (c claim, ok bool) {
	header, found := one(h["Hmacsignature"])
	c.addBase64(header)
	return c, found
}

func adyenKey(secret string) ([]byte, error) {
	key, err := hex.DecodeString(secret)
	if err != nil {
		return nil, errors.New("want hexadecimal digits")
	}
	return key, nil
}

// adyenNotification is a webhook about payments. Each item in it has a signature over some of the item's fields.
type adyenNotification struct {
	Items []struct {
		Item struct {
			PSPReference        string `json:"pspReference"`
			OriginalReference   string `json:"originalReference"`
			MerchantAccountCode string `json:"merchantAccountCode"`
			MerchantReference   string `json:"merchantReference"`
			Amount              struct {
				Value    jsontext.Value `json:"value"`
				Currency string         `json:"currency"`
			} `json:"amount"`
			EventCode      string `json:"eventCode"`
			Success        string `json:"success"`
			AdditionalData struct {
				Signature string `json:"hmacSignature"`
			} `json:"additionalData"`
		} `json:"NotificationRequestItem"`
	} `json:"notificationItems"`
}

// adyenItems reports whether all items of a notification are signed with one of the keys. The parser refuses duplicate names.
func adyenItems(body []byte, keys [][]byte) bool {
	var n adyenNotification
	if err := json.Unmarshal(body, &n); err != nil || len(n.Items) == 0 || len(n.Items) > maxSignatures {
		return false
	}
	for i := range n.Items {
		item := &n.Items[i].Item
		if !fold.IsInt(string(item.Amount.Value)) {
			return false
		}
		signed := strings.Join([]string{item.PSPReference, item.OriginalReference, item.MerchantAccountCode, item.MerchantReference,
			string(item.Amount.Value), item.Amount.Currency, item.EventCode, item.Success}, ":")
		signature, err := base64.StdEncoding.DecodeString(item.AdditionalData.Signature)
		if err != nil {
			return false
		}
		if !slices.ContainsFunc(keys, func(key []byte) bool { return hmac.Equal(signature, sign(key, signed, nil)) }) {
			return false
		}
	}
	return true
}

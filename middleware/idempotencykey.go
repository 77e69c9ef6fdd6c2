package middleware

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// IdempotencyHeader is the header in which a client names a request that it may repeat.
const IdempotencyHeader = "Idempotency-Key"

const maxIdempotencyKey = 255 // bytes

// IdempotencyKey is the KeyFunc of the header Idempotency-Key: a string as draft-ietf-httpapi-idempotency-key-header has it,
// "8e03978e-40d5-43dd-bc93-6894a57f9324", or the same without the quotes, as most clients send it. The two are one ID. Letters
// are compared as they are: IDs that differ in case are different.
func IdempotencyKey(r *http.Request) (string, error) {
	id, err := oneHeader(r, IdempotencyHeader) // PHP takes Idempotency_Key for the same header, and may read that one
	if err == nil && id == "" {
		err = ErrMissingKey
	}
	if err != nil {
		return "", &KeyError{Placeholder: idempotencyPlaceholder, Err: err}
	}
	if strings.HasPrefix(id, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{id})
		text, isString := item.Value.(string)
		if err != nil || !isString {
			return "", errBadIdempotencyKey
		}
		id = text
	} else if strings.ContainsAny(id, `",;`) { // a list, or parameters of what is no string
		return "", errBadIdempotencyKey
	}
	if id == "" || len(id) > maxIdempotencyKey || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errBadIdempotencyKey
	}
	return id, nil
}

const idempotencyPlaceholder = "header." + IdempotencyHeader

var errBadIdempotencyKey = &refusalReason{OutcomeBadKey, http.StatusBadRequest,
	fmt.Sprintf("header %s is no string of 1 to %d printable characters without spaces", IdempotencyHeader, maxIdempotencyKey)}

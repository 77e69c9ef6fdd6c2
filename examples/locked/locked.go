// Package locked serves only what a gateway has locked. The other files have the same for other languages, to be copied.
package locked

import (
	"encoding/json"
	"net/http"
	"slices"
)

// Locked says whether the request came with the lock of this value, such as r.PathValue("id"). Refuse it with 400 otherwise: a client repeats
// a request after a 409, which wouldn't help.
func Locked(r *http.Request, value string) bool {
	var key map[string][]string
	err := json.Unmarshal([]byte(r.Header.Get("Redlock-Key")), &key)
	return err == nil && r.Header.Get("Fencing-Token") != "" && slices.Contains(key["path.1"], value)
}

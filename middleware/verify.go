package middleware

import "net/http"

// verify returns an error unless the request is signed as the rule demands.
func (rule *Serializer) verify(r *http.Request) error {
	if rule.verifier == nil {
		return nil
	}
	return rule.verifier.Check(r.Header, rule.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
}

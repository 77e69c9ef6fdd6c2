package middleware

import "net/http"

// verify returns the secret with which the request is signed, or an error unless it is signed as the rule demands.
func (rule *Serializer) verify(r *http.Request) (secret string, err error) {
	if rule.verifier == nil {
		return "", nil
	}
	i, err := rule.verifier.Check(r.Header, rule.ReplayWindow, func() ([]byte, error) { return bodyBytes(r) })
	if err != nil {
		return "", err
	}
	return rule.Verify.Secrets[i], nil
}

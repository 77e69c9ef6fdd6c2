package middleware

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

var errUpgrade = &rejection{Upgrade, http.StatusForbidden, "request asks for another protocol, which would hold the lock for as long as it lasts"}

// admit finds the keys that a request must hold, and the ID of its delivery; or why it may not have any.
func (rule *Rule) admit(turn *Turn, derive KeysFunc, r *http.Request) (id string, err error) {
	if err := rule.permit(r); err != nil {
		return "", err
	}
	return rule.identify(turn, derive, r)
}

// permit says why a request may not hold any key, or nil.
func (rule *Rule) permit(r *http.Request) error {
	if !rule.AllowUpgrade && upgrades(r) {
		return errUpgrade
	}
	if rule.Verify == nil {
		return nil
	}
	return rule.Verify.check(r, cmp.Or(rule.ReplayWindow, defaultReplayWindow))
}

func (rule *Rule) identify(turn *Turn, derive KeysFunc, r *http.Request) (id string, err error) {
	if turn.keys, err = rule.keys(derive, r); err != nil {
		return "", err
	}
	turn.Key = strings.Join(turn.keys, " ")
	return rule.deliveryID(r)
}

// deliveryID is empty for a request that has none.
func (rule *Rule) deliveryID(r *http.Request) (string, error) {
	if rule.Dedupe == nil {
		return "", nil
	}
	id, err := rule.Dedupe(r)
	if errors.Is(err, ErrMissingKey) {
		return "", nil
	}
	return id, err
}

// upgrades says whether a request asks for another protocol. The offer of h2c, which some clients
// make with every request, is taken away instead: a server need not accept it.
func upgrades(r *http.Request) bool {
	if strings.EqualFold(r.Header.Get("Upgrade"), "h2c") && len(r.Header["Upgrade"]) == 1 {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	return r.Method == http.MethodConnect || // as WebSocket over HTTP/2 does
		len(r.Header["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

package middleware

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// retried are the statuses below 500 with which a server asks to try again, so that they are not the answer for good.
var retried = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
	http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests}

// isFinal is what counts as final without Rule.RememberStatus.
func isFinal(status int) bool { return !slices.Contains(retried, status) }

// parseStatuses returns what reports whether a status is one of these: 201, or all of a class, such as 2xx. Only statuses from 200 to 499 can be remembered.
func parseStatuses(texts []string) (func(status int) bool, error) {
	one, class := map[int]bool{}, map[int]bool{}
	for _, text := range texts {
		in, digits := one, text
		if strings.HasSuffix(text, "xx") {
			in, digits = class, text[:len(text)-2]+"00"
		}
		status, err := strconv.Atoi(digits)
		if err != nil || status < 200 || status > 499 {
			return nil, fmt.Errorf("remember_status %q: want a status from 200 to 499, or 2xx, 3xx or 4xx", text)
		}
		if strings.HasSuffix(text, "xx") {
			status /= 100
		}
		in[status] = true
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("remember_status: want at least one status, such as 2xx")
	}
	return func(status int) bool { return one[status] || class[status/100] }, nil
}

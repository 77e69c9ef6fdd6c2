// Package remember keeps the response to a request for clients that repeat the request. A Policy says which responses are kept, and how large they
// may be. An Exchange records one response and decides which part of it the masters are to remember, or recalls a remembered response. A Response can
// be encoded for the masters, with encryption if there is a key, and sent again.
//
// The package asks no master and takes no lock. Its caller stores the Result of a Decision, and passes remembered results to Recall.
package remember

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	leastKeep = time.Second

	// HeaderRoom is how many of the bytes that a master can remember for a lock are set aside for headers.
	HeaderRoom = 64 << 10
)

// Settings are the settings of a rule whose names in a configuration begin with "remember".
type Settings struct {
	Keep      time.Duration // how long the masters remember a response; 0 if they remember none
	Size      int64         // the most bytes that the body may have
	Quota     int64         // the most bytes that the responses may take on each master
	Statuses  []string      // the statuses that are remembered; nil for all below 500, except for the statuses in retried
	Sealer    *Sealer       // nil if the masters may read the responses
	MaxResult int           // the most bytes that a master remembers for a lock
}

type Policy struct {
	size      int
	maxResult int
	final     func(status int) bool
	sealer    *Sealer
	quota     *quota
}

// Compile returns the Policy, or nil if the rule remembers no responses. Errors begin with the name of the wrong setting.
func (s Settings) Compile() (*Policy, error) {
	maxSize := int64(s.MaxResult - HeaderRoom)
	switch {
	case s.Quota < 0 || s.Quota > math.MaxInt32:
		return nil, fmt.Errorf("remember_quota %d: must be from 1 to %d bytes", s.Quota, math.MaxInt32)
	case s.Keep != 0 && s.Keep < leastKeep:
		return nil, fmt.Errorf("remember %v: must be at least %v", s.Keep, leastKeep)
	case s.Size < 0 || s.Size > maxSize:
		return nil, fmt.Errorf("remember_size %d: must be from 1 to %d bytes", s.Size, maxSize)
	}
	final := func(status int) bool { return !slices.Contains(retried, status) }
	if s.Statuses != nil {
		var err error
		if final, err = parseStatuses(s.Statuses); err != nil {
			return nil, err
		}
	}
	if s.Keep == 0 {
		return nil, nil
	}
	return &Policy{size: int(s.Size), maxResult: s.MaxResult, final: final, sealer: s.Sealer, quota: newQuota(s.Quota, s.Keep)}, nil
}

// retried are the statuses below 500 with which a server asks the client to try again. Such a response is not final.
var retried = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
	http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests}

// parseStatuses returns a function that reports whether a status is one of the texts: a status such as 201, or a class such as 2xx. Only
// statuses from 200 to 499 can be remembered.
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
		return nil, errors.New("remember_status: want at least one status, such as 2xx")
	}
	return func(status int) bool { return one[status] || class[status/100] }, nil
}

package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	leastRemember = time.Second

	// DefaultRememberSize is how many bytes a body may have that is remembered, unless something else is set.
	DefaultRememberSize = 64 << 10
	// MaxRememberSize is how many bytes that can be: headers need some of what a master remembers for a lock.
	MaxRememberSize = redlock.MaxResult - 64<<10
)

// errMismatch reports that the ID of a request was used for another one.
var errMismatch = errors.New("the ID belongs to another request")

// errMissingID reports a request without the ID that it must have.
var errMissingID = &refusalReason{OutcomeMissingID, http.StatusBadRequest, "the request must have an ID, by which a repeat is told from a new request"}

// errNoID reports a request that has nothing to lock, as it has neither keys nor an ID.
var errNoID = fmt.Errorf("%w: the request has no ID", ErrMissingKey)

func (rule *Serializer) checkRemember() error {
	switch {
	case rule.Remember != 0 && rule.Remember < leastRemember:
		return fmt.Errorf("remember %v: must be at least %v", rule.Remember, leastRemember)
	case rule.Remember > 0 && rule.dedupe == nil:
		return errors.New("remember needs dedupe or idempotency_key: a repeat is told from a new request by its ID")
	case rule.waitsForResponses() && (rule.Remember == 0 || rule.Wait == 0):
		return errors.New("on_duplicate wait: needs remember, for the response that a repeat waits for, and wait, for how long")
	case rule.Remember > 0 && !rule.runsToEnd():
		return errors.New("on_client_abort cancel: remember needs requests that run to their end: a client that has left is the one that repeats")
	case rule.RememberSize < 0 || rule.RememberSize > MaxRememberSize:
		return fmt.Errorf("remember_size %d: must be from 1 to %d bytes", rule.RememberSize, MaxRememberSize)
	}
	return nil
}

func (rule *Serializer) sealer() *remembered.Sealer {
	if rule.Sealer == nil {
		return nil
	}
	return rule.Sealer.sealer
}

func (rule *Serializer) originalURL(r *http.Request) *url.URL {
	if rule.OriginalURL != nil {
		return rule.OriginalURL(r)
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		return u
	}
	return r.URL // no server has received it
}

// takeFingerprint reads the body for what tells one request from another with the same ID.
func (s *serving) takeFingerprint() error {
	if s.rule.Remember == 0 || !*s.rule.Fingerprint || s.delivery.ID == "" {
		return nil
	}
	body, err := bodyBytes(s.r)
	if err != nil {
		return err
	}
	sum := sha256.New()
	for _, part := range append(s.notInDelivery(), s.r.Method, s.rule.originalURL(s.r).RequestURI()) {
		_ = binary.Write(sum, binary.BigEndian, uint64(len(part)))
		_, _ = io.WriteString(sum, part)
	}
	_, _ = sum.Write(body)
	sum.Sum(s.fingerprint[:0])
	return nil
}

// notInDelivery returns the keys of the request, if they are none of its delivery.
func (s *serving) notInDelivery() []string {
	if s.rule.comparesKeys() {
		return s.turn.keys
	}
	return nil
}

// comparesKeys reports whether an ID that was used with other keys belongs to another request. One in the header Idempotency-Key is its
// client's for all that it does; one of dedupe is only known to be the only one of its kind for a key.
func (rule *Serializer) comparesKeys() bool {
	return rule.identifiesByHeader() && rule.Remember > 0 && *rule.Fingerprint
}

// recall returns the response that the masters remember for the delivery, unless that was to another request. If there is no room for it
// in memory now, needs is how many bytes it takes there.
func (s *serving) recall(result []byte) (a *remembered.Response, needs int, err error) {
	room := func(more int) bool { // besides the result
		if s.roomToReplay(len(result) + more) {
			return true
		}
		needs = len(result) + more
		return false
	}
	a, err = remembered.DecodeWithin(result, s.rule.sealer(), s.turn.claimKey, room)
	if errors.Is(err, remembered.ErrNotSealed) { // it is from before the rule had keys
		a, err = remembered.DecodeWithin(result, nil, s.turn.claimKey, room)
	}
	if err != nil {
		return nil, needs, err
	}
	if *s.rule.Fingerprint && a.Fingerprint != [sha256.Size]byte{} && a.Fingerprint != s.fingerprint {
		return nil, 0, errMismatch
	}
	return a, 0, nil
}

// newRecorder returns what keeps a copy of the response, or nil if that is not remembered.
func (s *serving) newRecorder() *remembered.Recorder {
	if s.rule.Remember == 0 || s.turn.claimed == nil {
		return nil
	}
	return remembered.NewRecorder(s.w.Header(), int(s.rule.RememberSize), s.roomToWrite)
}

// acceptIdentity has the handler answer without an encoding, and returns what undoes that: a repeat may accept others than the first
// request.
func (s *serving) acceptIdentity() (undo func()) {
	accepted, sent := s.r.Header["Accept-Encoding"]
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Set("Accept-Encoding", "identity")
	return func() {
		if s.r.Header.Del("Accept-Encoding"); sent { // it is a copy again
			s.r.Header["Accept-Encoding"] = accepted
		}
	}
}

// conclude decides what the masters are to remember of the response, once the handler has returned.
func (s *serving) conclude(recorder *remembered.Recorder, written *response.Writer, broken bool, lost error) {
	if recorder == nil {
		return
	}
	defer func() { s.room.settle(len(s.result)) }()
	switch {
	case lost != nil:
		s.why = ReasonLostLease
	case broken:
		s.why = ReasonBrokenOff
	case recorder.Status() >= 500 || !s.rule.final(recorder.Status()) && recorder.Status() != http.StatusSwitchingProtocols:
		s.why = ReasonNotFinal
	default:
		a, why := recorder.Response(s.r.Method, written.Header())
		if s.why = Reason(why); a != nil {
			s.encode(a, recorder.Crowded())
		}
	}
}

// encode makes of the response what the masters are to remember. If it is too large, that is its status: the request is done.
func (s *serving) encode(a *remembered.Response, crowded bool) {
	a.Fingerprint = s.fingerprint
	result, err := a.Encode(s.rule.sealer(), s.turn.claimKey)
	if errors.Is(err, remembered.ErrTooLarge) || len(result) > redlock.MaxResult {
		a.Header, a.Removed, a.Body, a.TooLarge = nil, nil, nil, true
		result, err = a.Encode(s.rule.sealer(), s.turn.claimKey)
	}
	switch {
	case err != nil:
		s.why, s.unremembered = ReasonFailed, err
		return
	case crowded:
		s.why = ReasonNoRoom
	case a.TooLarge:
		s.why = ReasonTooLarge
	}
	if !s.mayRemember(a.Status, len(result)) {
		s.why = ReasonQuota
		return
	}
	s.result = result
}

// unlockWith releases the lock on the delivery, and has the masters remember its response. It returns what tells how that went.
func (s *serving) unlockWith(result []byte) (tell func()) {
	err := s.turn.claimed.UnlockWith(result, s.keep)
	return func() {
		if why := reasonOf(err); why != "" {
			s.noteRemembered(0, why, err)
			return
		}
		s.noteRemembered(len(result), s.why, nil)
	}
}

// retried are the statuses below 500 with which a server asks to try again, so that they are not the response for good.
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

// Sealer encrypts the responses that are remembered, so that the masters can't read them.
type Sealer struct{ sealer *remembered.Sealer }

// NewSealer returns a Sealer with AES-256-GCM. Each key has 32 bytes; the first encrypts, and all decrypt, so that a key can be
// replaced: first add the new one everywhere as the second, then make it the first, and remove the old one when the last response
// that it has encrypted is forgotten. Its errors don't show the keys.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	sealer, err := remembered.NewSealer(keys...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer}, nil
}

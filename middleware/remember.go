package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/answer"
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
	case rule.Remember > 0 && !rule.runsToEnd():
		return errors.New("on_client_abort cancel: remember needs requests that run to their end: a client that has left is the one that repeats")
	case rule.RememberSize < 0 || rule.RememberSize > MaxRememberSize:
		return fmt.Errorf("remember: size %d: must be from 1 to %d bytes", rule.RememberSize, MaxRememberSize)
	}
	return nil
}

func (rule *Serializer) sealer() *answer.Sealer {
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

// recall returns the answer that the masters remember for the delivery, unless that was to another request.
func (s *serving) recall(result []byte) (*answer.Answer, error) {
	a, err := answer.Decode(result, s.rule.sealer(), s.turn.claimKey)
	if errors.Is(err, answer.ErrNotSealed) { // it is from before the rule had keys
		a, err = answer.Decode(result, nil, s.turn.claimKey)
	}
	if err != nil {
		return nil, err
	}
	if *s.rule.Fingerprint && a.Fingerprint != [sha256.Size]byte{} && a.Fingerprint != s.fingerprint {
		return nil, errMismatch
	}
	return a, nil
}

// newRecorder returns what keeps a copy of the answer, or nil if that is not remembered.
func (s *serving) newRecorder() *answer.Recorder {
	if s.rule.Remember == 0 || s.turn.claimed == nil {
		return nil
	}
	return answer.NewRecorder(s.w.Header(), s.rule.RememberSize)
}

// remember returns the answer as the masters are to remember it, or nil if it isn't the final one, or not all of it is known.
func (s *serving) remember(recorder *answer.Recorder) []byte {
	a, ok := recorder.Answer(s.r.Method, s.w.Header())
	if !ok || a.Status >= 500 || !s.rule.final(a.Status) {
		return nil
	}
	a.Fingerprint = s.fingerprint
	result, err := a.Encode(s.rule.sealer(), s.turn.claimKey)
	if err == nil && len(result) > redlock.MaxResult {
		err = fmt.Errorf("with its headers it has %d bytes: at most %d can be remembered", len(result), redlock.MaxResult)
	}
	if err != nil {
		s.unremembered = err
		return nil
	}
	return result
}

// unlockWith releases the lock on the delivery, and has the masters remember its answer. It returns what tells how that went.
func (s *serving) unlockWith(result []byte) (tell func()) {
	err := s.turn.claimed.UnlockWith(result, s.rule.Remember)
	return func() { s.noteRemembered(len(result), err) }
}

func (s *serving) noteRemembered(bytes int, err error) {
	if err != nil {
		s.rule.Logger.Warn("answer is not remembered by a majority of the masters: a repeat of the delivery may run again", "rule", s.turn.Rule, "error", err)
	}
	if s.rule.Observer != nil {
		s.rule.Observer.Remembered(s.rule.Name, bytes, err)
	}
}

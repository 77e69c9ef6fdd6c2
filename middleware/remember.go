package middleware

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Delivery is what tells a delivery from all others: only one that has all of it in common is a repeat.
type Delivery struct {
	Keys   []string // of the request, in any order; none under a rule with IdempotencyKey that compares fingerprints
	ID     string   // that its sender has given it
	Place  string   // where it goes, if the rule ignores fingerprints: "POST shop.example.com/hooks/stripe?tenant=a"
	Secret string   // with which it was signed, if the rule verifies that
	Scope  string   // who has sent it, if the rule knows that by its scope
	User   string   // who has sent it, if authentication has found that, and the rule sets no scope
}

// Key returns the key of the delivery, which is locked while that is served, and under which its response is remembered. All parts are
// hashed, each with its length, so that no two deliveries have the same key.
func (d Delivery) Key() string {
	keys := d.Keys
	if !slices.IsSorted(keys) {
		keys = slices.Sorted(slices.Values(keys))
	}
	var parts []byte
	for _, part := range append(keys[:len(keys):len(keys)], d.ID, cleanPlace(d.Place), d.Secret, d.Scope, d.User) {
		parts = binary.AppendUvarint(parts, uint64(len(part)))
		parts = append(parts, part...)
	}
	sum := sha256.Sum256(parts)
	return "dedupe:" + hex.EncodeToString(sum[:])
}

// runningKey is the key of the delivery under a rule that remembers no responses. It is another one, so that a rule that does, inside of
// one that doesn't, has a lock of its own to ask for the response.
func (d Delivery) runningKey() string { return "running:" + strings.TrimPrefix(d.Key(), "dedupe:") }

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

// cleanPlace returns a place with its host and path in one spelling. All spellings by which a request may reach the same handler are one
// place: who copies a delivery chooses among them.
func cleanPlace(place string) string {
	if place == "" {
		return ""
	}
	method, place, _ := strings.Cut(place, " ")
	place, query, _ := strings.Cut(place, "?")
	host, escaped, _ := strings.Cut(place, "/")
	text, err := url.PathUnescape(escaped)
	if err != nil {
		text = escaped
	}
	segments := strings.FieldsFunc(text, isSlash)
	for i, segment := range segments {
		segment, _, _ = strings.Cut(segment, ";")
		segments[i] = strings.TrimFunc(segment, fold.IsBlank)
	}
	clean := url.URL{Path: path.Clean("/" + strings.ToLower(strings.Join(segments, "/")))} // which follows the dots, as routers do
	return method + " " + hostname(host) + clean.EscapedPath() + "?" + query
}

// parseDedupe reads the template of the ID of a delivery, as ParseTemplate does. An ID has a single value, so that
// {body.items[].id} is an error. IDs are compared as they are sent: those that differ in case are different.
func parseDedupe(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("dedupe", text, placeholder, "ID", "is the same for all deliveries; name the sender's ID, such as {header.X-GitHub-Delivery}")
}

// parseScope reads the template of who has sent an ID, as parseDedupe does.
func parseScope(text string, placeholder PlaceholderFunc) (*Template, error) {
	return parseExact("scope", text, placeholder, "sender", "is the same for all clients; name what tells them apart, such as {header.Authorization}")
}

func parseExact(setting, text string, placeholder PlaceholderFunc, what, global string) (*Template, error) {
	t, err := ParseTemplate(text, placeholder)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", setting, err)
	case t.Global():
		return nil, fmt.Errorf("%s: %q %s", setting, text, global)
	case t.each >= 0:
		return nil, fmt.Errorf("%s: {%s} may have several values, and there is only one %s; name an element, such as {body.items.0.id}", setting, t.parts[t.each].name, what)
	}
	t.setExact()
	return t, nil
}

// exactKey returns what reads the value of a template that parseExact has read. That of a single placeholder is its value; in a longer
// one the values are escaped, as in keys.
func (t *Template) exactKey() KeyFunc {
	if !t.isValue() {
		return t.Key
	}
	return func(r *http.Request) (string, error) { // operators name it as they know it: Bearer abc, and not Bearer%20abc
		key, err := t.Key(r)
		if err != nil {
			return "", err
		}
		return url.PathUnescape(key)
	}
}

// identifySender finds out who has sent the ID.
func (s *serving) identifySender() (err error) {
	if s.rule.byUser {
		if s.delivery.User = s.rule.User(s.r); s.delivery.User != "" {
			return nil
		}
	}
	if s.rule.scope == nil {
		return nil
	}
	s.delivery.Scope, err = s.rule.scope(s.r)
	if err == nil && s.rule.Remember > 0 && s.rule.scopeIsAuthorization() {
		if kind := changing(s.r.Header.Get("Authorization")); kind != "" {
			s.rule.logSometimes(slog.LevelWarn, "scope changes while the client stays the same: a repeat with "+kind+" is another client's to this rule, and runs again; see docs/recipes.md#an-api-with-idempotency-key", "scope")
		}
	}
	return err
}

// changing returns what is in a header Authorization that is not the same in each request of one client, or "".
func changing(authorization string) string {
	scheme, rest, _ := strings.Cut(authorization, " ")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "bearer" && strings.HasPrefix(rest, "eyJ") && strings.Count(rest, ".") == 2:
		return "a refreshed token (JWT)"
	case scheme == "digest", scheme == "hawk", scheme == "mac", scheme == "oauth", scheme == "dpop", scheme == "signature", scheme == "negotiate", scheme == "ntlm",
		strings.HasPrefix(scheme, "aws4-"):
		return "another signature or nonce (" + scheme + ")"
	}
	return ""
}

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

// claim takes the lock on the delivery, which all processes share: the request that doesn't get it comes second, and may wait for the
// response to the first. It is held besides the lock on the keys, until unlockClaim is called. If the response to the delivery is
// remembered, it returns that.
func (s *serving) claim(alone bool) (*remembered.Response, error) {
	opts := append(s.options, redlock.WithConcurrency(1))
	if !alone { // it ends with the request, or with its lock
		opts = append(opts, redlock.WithMaxHold(0))
	}
	if s.rule.Remember > 0 {
		opts = append(opts, redlock.WithRecall())
	}
	try := func(ctx context.Context) (*redlock.Lock, error) {
		return s.turn.locker.TryLock(ctx, s.turn.claimKey, opts...)
	}
	for {
		var lock *redlock.Lock
		var err error
		if s.rule.waitsForResponses() {
			lock, err = s.wait(try, func(ctx context.Context) (*redlock.Lock, error) {
				return s.turn.locker.Lock(ctx, s.turn.claimKey, opts...)
			})
		} else {
			lock, err = try(s.r.Context())
		}
		var held *redlock.HeldError
		var done *redlock.DoneError
		switch {
		case errors.As(err, &done):
			if first, needs, err := s.recall(done.Result); needs == 0 {
				return first, err
			} else if err := s.waitToReplay(needs); err != nil {
				return nil, err
			}
			continue // the masters have it, and this request must not, while it waited
		case errors.As(err, &held):
			return nil, &duplicateError{held}
		}
		s.turn.claimed = lock
		return nil, err
	}
}

// setClaimKey finds out which key the delivery has. If a rule around this one has claimed that for the same request, it knows repeats,
// and remembers the response.
func (s *serving) setClaimKey() {
	if s.delivery.ID == "" {
		return
	}
	s.turn.claimKey = s.delivery.runningKey()
	if s.rule.Remember > 0 {
		s.turn.claimKey = s.delivery.Key()
	}
	if holder := s.turn.claimer(); holder != nil {
		s.delivery.ID, s.turn.claimKey = "", ""
		if s.turn.Lock == nil {
			s.turn.Lock = holder.Lock
		}
		s.turn.Key = cmp.Or(s.turn.Key, holder.Key)
	}
}

// unlockClaim releases the lock on the delivery, with the response that the masters are to remember, or nil. It returns what tells the
// log and the Observer how that went.
func (s *serving) unlockClaim(result []byte) (tell func()) {
	tell = func() {}
	if result != nil { // the lock on the keys may be lost at this moment, and have taken that on the delivery with it
		tell = func() { s.noteRemembered(0, ReasonLostLease, nil) }
	}
	s.claimOnce.Do(func() {
		switch {
		case s.turn.claimed == nil:
		case result == nil:
			tell = s.unlock(s.turn.claimed)
		default:
			tell = s.unlockWith(result)
		}
	})
	return tell
}

// releaseWith releases the claim when the lock on the keys is lost, so that it doesn't outlast that if the request is stuck.
func (s *serving) releaseWith(lock *redlock.Lock) {
	context.AfterFunc(lock.Context(), func() {
		if context.Cause(lock.Context()) != context.Canceled { // Unlock was not called, with which the claim is released too
			s.unlockClaim(nil)()
		}
	})
}

const (
	// DefaultRememberQuota is how many bytes of each master the responses of a rule may take that one process has stored.
	DefaultRememberQuota = 1 << 30

	rememberRefusals = time.Hour // at most: whoever has no rights may cause responses of 4xx, and needs none of them for long
	refusalsPart     = 8         // one part in so many of a quota is for them, and nothing else
	storedOverhead   = 500       // bytes that a response takes on a master beside its own

	quotaSteps = 64 // in which what was stored is forgotten
)

// quota bounds what the masters are asked to remember under a rule: clients that repeat nothing must not fill them. Responses of 4xx have
// a part of their own, so that they keep out no others, and no scope takes more than three times what it leaves to others. It counts what
// this process has stored since the rule was made.
type quota struct {
	mu            sync.Mutex
	finals, other ledger // other is for 4xx
}

// ledger is what was stored of one kind of responses.
type ledger struct {
	limit int64
	keep  time.Duration
	pool  budget.Pool // by scope, hashed
	steps []step      // what was stored in the same step of time, the oldest first
}

type step struct {
	ends time.Time // when another step begins
	of   map[string]int64
}

func newQuota(size int64, keep time.Duration) *quota {
	part := max(size/refusalsPart, 1)
	return &quota{
		finals: ledger{limit: size - part, keep: keep, pool: budget.NewPool()},
		other:  ledger{limit: part, keep: min(keep, rememberRefusals), pool: budget.NewPool()},
	}
}

func (q *quota) ledger(status int) *ledger {
	if status >= 400 {
		return &q.other
	}
	return &q.finals
}

// take counts a response with this status, and reports whether it may be stored.
func (q *quota) take(status int, scope string, bytes int64, now time.Time) (ok bool, used int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.ledger(status)
	l.forget(now)
	if scope != "" {
		sum := sha256.Sum256([]byte(scope))
		scope = string(sum[:8])
	}
	ok = l.pool.Leaves(scope, bytes, l.limit) || scope == "" && l.pool.Used()+bytes <= l.limit
	if ok {
		l.pool.Add(scope, bytes)
		last := len(l.steps) - 1
		if last < 0 || now.After(l.steps[last].ends) {
			l.steps = append(l.steps, step{now.Add(l.keep / quotaSteps), make(map[string]int64)})
			last++
		}
		l.steps[last].of[scope] += bytes
	}
	return ok, l.pool.Used()
}

// forget gives back what the masters have forgotten.
func (l *ledger) forget(now time.Time) {
	for len(l.steps) > 0 && now.After(l.steps[0].ends.Add(l.keep)) {
		for scope, bytes := range l.steps[0].of {
			l.pool.Add(scope, -bytes)
		}
		l.steps = l.steps[1:]
	}
}

// mayRemember counts the response against the quota of its rule, and reports whether the masters may be asked to remember it.
func (s *serving) mayRemember(status, bytes int) bool {
	l := s.rule.quota.ledger(status)
	s.keep = l.keep
	ok, used := s.rule.quota.take(status, s.delivery.User+s.delivery.Scope, int64(bytes+storedOverhead), time.Now())
	if s.rule.Observer != nil {
		s.rule.Observer.Quota(s.rule.Name, status >= 400, used, l.limit)
	}
	return ok
}

package remember

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/http"
	"time"
)

// Fingerprint is a hash that distinguishes a request from other requests with the same ID. It is zero for a request that isn't compared.
type Fingerprint [sha256.Size]byte

func FingerprintOf(body []byte, parts ...string) (f Fingerprint) {
	sum := sha256.New()
	for _, part := range parts {
		sum.Write(append(binary.BigEndian.AppendUint64(nil, uint64(len(part))), part...)) // writing to a hash never fails
	}
	sum.Write(body)
	sum.Sum(f[:0])
	return f
}

// Request has the facts about a request that a Policy needs.
type Request struct {
	Key         string // the key under which the response is stored
	Fingerprint Fingerprint
	Sender      string // the response counts against this sender's part of the quota; empty if the sender is unknown
	Client      string // the response counts against this client's share of the memory
}

// Exchange is a request whose response is to be remembered, and its response. Free and Close do nothing with a nil Exchange.
type Exchange struct {
	policy   *Policy
	request  Request
	room     room
	lacked   int       // how many bytes of room Recall lacked
	recorder *Recorder // nil until the handler is called
}

func (p *Policy) Begin(r Request) *Exchange {
	return &Exchange{policy: p, request: r, room: room{client: r.Client}}
}

// ErrMismatch is the error for a request whose ID was used for a different request.
var ErrMismatch = errors.New("the ID belongs to another request")

// Recall returns the response that the masters remember as result, or ErrMismatch if the response belongs to a different request. After
// ErrNoRoom the caller must drop result, call AwaitRoom, and then ask the masters again.
func (e *Exchange) Recall(result []byte) (*Response, error) {
	room := func(more int) bool { // takes room for result and for more bytes
		if e.room.take(noWait, len(result)+more) {
			return true
		}
		e.lacked = len(result) + more
		return false
	}
	a, err := DecodeWithin(result, e.policy.sealer, e.request.Key, room)
	if errors.Is(err, ErrNotSealed) { // the response was stored before the rule had keys
		a, err = DecodeWithin(result, nil, e.request.Key, room)
	}
	if err != nil {
		return nil, err
	}
	var none Fingerprint
	if e.request.Fingerprint != none && a.Fingerprint != none && a.Fingerprint != e.request.Fingerprint {
		return nil, ErrMismatch
	}
	return a, nil
}

// AwaitRoom waits for the room that Recall lacked, and reports whether it was found.
func (e *Exchange) AwaitRoom(ctx context.Context) bool {
	e.room.settle(0) // while the request waits, others may use its room
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	return e.room.take(ctx, e.lacked)
}

// Record returns the Recorder that copies the response. before has the headers as they are before the handler runs. Each write of the handler waits
// for room for at most roomTimeout, and no longer than until ctx ends.
func (e *Exchange) Record(ctx context.Context, before http.Header) *Recorder {
	e.recorder = NewRecorder(before, e.policy.size, func(bytes int) bool {
		if bytes == 0 {
			e.room.settle(0)
			return true
		}
		ctx, cancel := context.WithTimeout(ctx, roomTimeout)
		defer cancel()
		return e.room.take(ctx, bytes)
	})
	return e.recorder
}

// Decision says which part of a response the masters are to remember.
type Decision struct {
	Result []byte // the response to be remembered; nil for none
	Keep   time.Duration
	Why    string // the reason if the masters are to remember nothing, or only a part of the response; empty otherwise
	Err    error  // the failure behind Why, if there is one
	Usage  *Usage // how full the quota is, if the response was counted
}

// The reasons why a response isn't remembered, or not all of it.
const (
	NotFinal  = "not_final"  // the rule doesn't remember responses with this status
	Hijacked  = "hijacked"   // the handler took over the connection, for another protocol
	Streamed  = "stream"     // the response is sent in parts, and the client waits for each part; or it has trailers
	Truncated = "truncated"  // the body is shorter or longer than declared
	TooLarge  = "too_large"  // the response is too large: only the status is remembered
	NoRoom    = "no_room"    // there is no memory: only the status is remembered
	OverQuota = "quota"      // the quota of such responses, or of the sender, is used up
	Failed    = "failed"     // the response can't be encoded
	LostLease = "lost_lease" // the request no longer had its lock
	BrokenOff = "broken_off" // the handler has failed, or given up on an upstream
)

// Discard returns the Decision that the masters remember nothing of the response. why is the reason.
func (e *Exchange) Discard(why string) Decision {
	e.Free()
	return Decision{Why: why}
}

// Conclude decides, once the handler has returned, which part of the response the masters are to remember. h has the headers of the handler's
// writer, and perhaps trailers.
func (e *Exchange) Conclude(method string, h http.Header) (d Decision) {
	defer func() { e.room.settle(len(d.Result)) }()
	status := e.recorder.Status()
	if status >= 500 || !e.policy.final(status) && status != http.StatusSwitchingProtocols {
		return Decision{Why: NotFinal}
	}
	a, why := e.recorder.Response(method, h)
	if a == nil {
		return Decision{Why: why}
	}
	return e.encode(a)
}

// encode encodes the response for the masters. If it is too large, they remember only its status, so that the request isn't served again.
func (e *Exchange) encode(a *Response) (d Decision) {
	a.Fingerprint = e.request.Fingerprint
	result, err := a.Encode(e.policy.sealer, e.request.Key)
	if errors.Is(err, ErrTooLarge) || len(result) > e.policy.maxResult {
		a.Header, a.Removed, a.Body, a.TooLarge = nil, nil, nil, true
		result, err = a.Encode(e.policy.sealer, e.request.Key)
	}
	switch {
	case err != nil:
		return Decision{Why: Failed, Err: err}
	case e.recorder.Crowded():
		d.Why = NoRoom
	case a.TooLarge:
		d.Why = TooLarge
	}
	fits, keep, usage := e.policy.quota.count(a.Status, e.request.Sender, int64(len(result)+storedOverhead), time.Now())
	d.Usage = &usage
	if !fits {
		d.Why = OverQuota
		return d
	}
	d.Result, d.Keep = result, keep
	return d
}

// Free gives back the room of the response. The Exchange may take room again later.
func (e *Exchange) Free() {
	if e != nil {
		e.room.settle(0)
	}
}

// Close gives back all room for good. A handler that still writes gets no more room.
func (e *Exchange) Close() {
	if e != nil {
		e.room.close()
	}
}

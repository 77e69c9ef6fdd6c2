package remember

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/http"
	"time"
)

// Fingerprint is what tells a request from others with the same ID; zero for one that isn't compared.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the Fingerprint of a request with these parts and this body.
func FingerprintOf(body []byte, parts ...string) (f Fingerprint) {
	sum := sha256.New()
	for _, part := range parts {
		sum.Write(append(binary.BigEndian.AppendUint64(nil, uint64(len(part))), part...)) // a hash never fails
	}
	sum.Write(body)
	sum.Sum(f[:0])
	return f
}

// Request is what a Policy needs to know of one.
type Request struct {
	Key         string // under which its response is stored
	Fingerprint Fingerprint
	Sender      string // against whose part of the quota its response counts; empty if that is not known
	Client      string // against whose share of the memory it counts
}

// Exchange is a request and its response, which is remembered. To Free or Close a nil one does nothing.
type Exchange struct {
	policy   *Policy
	request  Request
	room     room
	lacked   int       // bytes of the room that Recall didn't find
	recorder *Recorder // nil before the handler is called
}

// Begin returns the Exchange of a request.
func (p *Policy) Begin(r Request) *Exchange {
	return &Exchange{policy: p, request: r, room: room{client: r.Client}}
}

// ErrMismatch reports that the ID of a request was used for another one.
var ErrMismatch = errors.New("the ID belongs to another request")

// Recall returns the response that is stored as result, or ErrMismatch if that was to another request. After ErrNoRoom the caller
// must let result go, call AwaitRoom, and ask the masters again.
func (e *Exchange) Recall(result []byte) (*Response, error) {
	room := func(more int) bool { // besides the result
		if e.room.take(noWait, len(result)+more) {
			return true
		}
		e.lacked = len(result) + more
		return false
	}
	a, err := DecodeWithin(result, e.policy.sealer, e.request.Key, room)
	if errors.Is(err, ErrNotSealed) { // it is from before the rule had keys
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

// AwaitRoom waits for the room that Recall didn't find, and reports whether there is any.
func (e *Exchange) AwaitRoom(ctx context.Context) bool {
	e.room.settle(0) // what waits here has nothing that others wait for
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	return e.room.take(ctx, e.lacked)
}

// Record returns what keeps a copy of the response. before has the headers before the handler runs. A body waits for room until ctx ends.
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

// Decision is what the masters are to remember of a response.
type Decision struct {
	Result []byte        // nil for nothing
	Keep   time.Duration // how long they remember it
	Why    string        // they don't, or not all of it; else empty
	Err    error         // with Why, if something has failed
	Usage  *Usage        // of the quota, if the response was counted
}

// Why not all of a response is remembered.
const (
	NotFinal  = "not_final"  // its status isn't remembered
	Hijacked  = "hijacked"   // its connection has become one of another protocol
	Streamed  = "stream"     // a client waits for each of its parts, or it has trailers
	Truncated = "truncated"  // its body is not as long as was declared
	TooLarge  = "too_large"  // only its status is remembered
	NoRoom    = "no_room"    // in memory: only its status is remembered
	OverQuota = "quota"      // the responses of its kind, or to its sender, take as much as they may
	Failed    = "failed"     // it can't be encoded
	LostLease = "lost_lease" // its request had no lock any more
	BrokenOff = "broken_off" // its handler has failed, or given up on an upstream
)

// Discard decides that the masters remember nothing of the response.
func (e *Exchange) Discard(why string) Decision {
	e.Free()
	return Decision{Why: why}
}

// Conclude decides what the masters are to remember of the response, once its handler has returned. h has the headers of the handler's
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

// encode makes of the response what the masters are to remember. If it is too large, that is its status: the request is done.
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

// Free gives back the room that a response has, until it needs some again.
func (e *Exchange) Free() {
	if e != nil {
		e.room.settle(0)
	}
}

// Close gives back all room for good: a handler that writes on gets none.
func (e *Exchange) Close() {
	if e != nil {
		e.room.close()
	}
}

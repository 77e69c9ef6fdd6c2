package inspect

import (
	"context"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
)

// KeyStatus is a key that a Locker holds or waits for.
type KeyStatus struct {
	Key   string // the key as it was given to Lock: by the first holder or, without one, by the first call in line
	Label string // the label of the call that holds the key, or of the first call in line: see redlock.WithLabel
	Held  bool   // the Locker holds the key
	// Since is when the key was taken or, if it isn't held, when the first call in line came.
	Since   time.Time
	Until   time.Time // the end of the lease so far; zero if the key isn't held
	Fence   uint64    // the lock's fencing token; 0 if the key isn't held
	Request *Request  // the request of the same call as Label; or nil
	Waiting int       // how many calls of this Locker wait for the lock; for a key with several held slots, only the first slot's status counts them
	Line    []Call    // the calls that wait, except the call of Label; the next one is first
	// Slot is the number of the held slot, from 0 to Slots-1; Slots is 0 if the key has one holder, or isn't held: see redlock.WithConcurrency. Each
	// held slot has a KeyStatus of its own.
	Slot, Slots int
}

// Keys returns the keys with this prefix, in whatever case, that the Locker holds or waits for, sorted. It asks no master: Key shows the locks of other
// processes. Keys doesn't hold up calls noticeably, so keys that come or go meanwhile may be missing.
func Keys(l *redlock.Locker, prefix string) []KeyStatus {
	in, err := enter(context.Background(), l)
	if err != nil {
		return nil
	}
	keys := in.Keys(prefix)
	all := make([]KeyStatus, len(keys))
	for i, k := range keys {
		all[i] = KeyStatus{k.Key, k.Label, k.Held, k.Since, k.Until, k.Fence, (*Request)(k.Request), k.Waiting, callsOf(k.Line), k.Slot, k.Slots}
	}
	return all
}

func callsOf(line []hook.Call) (calls []Call) {
	for _, c := range line {
		calls = append(calls, Call{c.Label, c.Since, (*Request)(c.Request)})
	}
	return calls
}

// Request describes the request for which a lock is taken. Package middleware fills it in. Each field may be empty.
type Request struct {
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`     // without the query
	ID      string `json:"id,omitempty"`       // the ID of the request, as in the header X-Request-Id
	TraceID string `json:"trace_id,omitempty"` // the trace ID of W3C Trace Context
	Client  string `json:"client,omitempty"`   // the sender of the request, if the rule shows the sender
	// Delivery is the key of the request's delivery, which the request has also locked so that nobody else works on the delivery.
	Delivery string `json:"delivery,omitempty"`
}

// String returns the request as one line of text. The text doesn't have the delivery.
func (r *Request) String() string {
	if r == nil {
		return ""
	}
	text := strings.TrimSpace(r.Method + " " + r.Path)
	for _, part := range [][2]string{{"request", r.ID}, {"trace", r.TraceID}, {"client", r.Client}} {
		if part[1] != "" {
			text += ", " + part[0] + " " + part[1]
		}
	}
	return strings.TrimPrefix(text, ", ")
}

// Call is a call that holds a key, or waits for it.
type Call struct {
	Label   string    `json:"label,omitempty"`   // see redlock.WithLabel
	Since   time.Time `json:"since,omitzero"`    // when the call got the lock or, if it waits, when it came; by the clock of its process
	Request *Request  `json:"request,omitempty"` // the request that the call is for; or nil
}

// String returns the call as one line of text.
func (c Call) String() string {
	text := c.Request.String()
	if c.Label != "" {
		text += ", label " + c.Label
	}
	return strings.TrimPrefix(text, ", ")
}

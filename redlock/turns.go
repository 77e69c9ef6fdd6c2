package redlock

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Request is what is known of the request for which a lock is: see WithRequest. Each may be empty.
type Request struct {
	Method  string `json:"m,omitempty"`
	Path    string `json:"p,omitempty"`
	ID      string `json:"i,omitempty"` // as in the header X-Request-Id
	TraceID string `json:"t,omitempty"` // of W3C Trace Context
}

// Turn is a call that holds a key, or waits for it, as its process tells of it.
type Turn struct {
	Label   string    // see WithLabel
	Since   time.Time // when it was taken, or when the call that waits came; by the clock of its process
	Request *Request  // see WithRequest; or nil
	Waiting int       // calls of that process that wait for the key
}

// toldTurn is a Turn as the masters keep it.
type toldTurn struct {
	Label string `json:"l,omitempty"`
	Since int64  `json:"s"` // in milliseconds
	Fence uint64 `json:"f,omitempty"`
	Wait  int    `json:"w,omitempty"`
	*Request
}

const (
	// longTurn is how long a key is held, or waited for, before others are told: what is short is over before anybody asks.
	longTurn = 2 * time.Second
	maxTurns = 16 << 10 // bytes
)

// longTurns returns what the masters are told of the turns that last for long, the oldest first.
func (l *Locker) longTurns(now time.Time) string {
	long := slices.DeleteFunc(l.Keys(""), func(k KeyStatus) bool { return now.Sub(k.Since) <= longTurn })
	slices.SortFunc(long, func(a, b KeyStatus) int { return a.Since.Compare(b.Since) })
	var text strings.Builder
	for _, k := range long {
		line, _ := json.Marshal(toldOf(k)) // strings and numbers always encode
		if text.Len()+len(line) > maxTurns {
			continue
		}
		text.WriteString(KeyHash(k.Key) + " ")
		text.Write(line)
		text.WriteByte('\n')
	}
	return text.String()
}

func toldOf(k KeyStatus) *toldTurn {
	return &toldTurn{k.Label, k.Since.UnixMilli(), k.Fence, k.Waiting, k.Request}
}

// ownTurn returns the turn of this process on a slot of a key, or nil.
func (l *Locker) ownTurn(key string, slot int) *toldTurn {
	full := protocol.Key(l.prefix, key)
	l.gates.mu.Lock()
	defer l.gates.mu.Unlock()
	at := l.gates.byKey[full]
	if at == nil {
		return nil
	}
	all := at.statuses(key)
	if i := slices.IndexFunc(all, func(k KeyStatus) bool { return k.Slot == slot }); i >= 0 {
		return toldOf(all[i])
	}
	return nil
}

// parseTurn returns nil for what another version has written.
func parseTurn(text string) *toldTurn {
	t := new(toldTurn)
	if json.Unmarshal([]byte(text), t) != nil {
		return nil
	}
	return t
}

// turn returns what is told of the call that has the lock with this fence or, with none, waits; or nil.
func (t *toldTurn) turn(fence uint64) *Turn {
	if t == nil || t.Fence != fence {
		return nil
	}
	return &Turn{Label: t.Label, Since: time.UnixMilli(t.Since), Request: t.Request, Waiting: t.Wait}
}

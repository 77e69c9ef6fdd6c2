package redlock

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// KeyStatus is a key that this process holds or waits for.
type KeyStatus struct {
	Key   string // as it was given to Lock
	Label string // of the call that holds it or, while none does, is first in line: see WithLabel
	Held  bool   // by this process
	// Since is when it was taken or, if it isn't held, when the first call in line came.
	Since   time.Time
	Until   time.Time // the end of the lease so far; zero if it isn't held
	Fence   uint64    // the lock's fencing token; 0 if it isn't held
	Request *Request  // that of the same call as Label, see WithRequest; or nil
	Waiting int       // calls of this process that don't have the lock yet; of a key with several holders, it is with the first of them
	Line    []Call    // those of them that are behind the call above, in the order of their turns
	// Slot is the slot that is held, of as many as Slots says, where that is more than one: see WithConcurrency. Each has a KeyStatus.
	Slot, Slots int
}

// Keys returns the keys with this prefix that this process holds or waits for, sorted. It asks no master: Inspect
// shows what other processes hold. No call waits for it noticeably, so keys that come or go meanwhile may be missing.
func (l *Locker) Keys(prefix string) []KeyStatus {
	keys := l.gates.keys(func(full string) (string, bool) {
		key := protocol.KeyOf(l.prefix, full)
		return key, strings.HasPrefix(key, prefix)
	})
	sorted := sortedRefs(keys, func(a, b *KeyStatus) int { return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot)) })
	all := make([]KeyStatus, len(keys))
	for i, k := range sorted {
		all[i] = *k
	}
	return all
}

// sortedRefs returns where the keys are, in the order that compare says: it would take long to move them again and again.
func sortedRefs(keys []KeyStatus, compare func(a, b *KeyStatus) int) []*KeyStatus {
	refs := make([]*KeyStatus, len(keys))
	for i := range keys {
		refs[i] = &keys[i]
	}
	slices.SortFunc(refs, compare)
	return refs
}

// keys returns the status of all keys that name accepts. It gets the key as it is on the masters.
func (g *gates) keys(name func(full string) (key string, accepted bool)) []KeyStatus {
	var parts [][]KeyStatus // a slice that grows would be copied again and again
	for some := range g.seen() {
		part := make([]KeyStatus, 0, len(some))
		for i := range some {
			if key, accepted := name(some[i].key); accepted {
				part = some[i].appendStatuses(part, key)
			}
		}
		parts = append(parts, part)
	}
	return slices.Concat(parts...)
}

// count returns how many keys are locked here and since when the oldest, and how many calls don't have their lock yet.
func (g *gates) count() (held, waiting int, oldest time.Time) {
	several := make(map[*caller]bool) // the calls for several keys, by their first caller: they may stand at several gates
	wait := func(c *caller) {
		if c.several {
			several[c.call[0]] = true
		} else {
			waiting++
		}
	}
	for some := range g.seen() {
		for i := range some {
			at := &some[i]
			for _, k := range at.locks {
				held++
				if since := k.since(); oldest.IsZero() || since.Before(oldest) {
					oldest = since
				}
			}
			for _, c := range at.waiting {
				wait(c)
			}
		}
	}
	return held, waiting + len(several), oldest
}

const maxInstance = 64 // bytes of an instance name

func unprintable(c rune) bool { return c <= ' ' || c > '~' }

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(c rune) rune {
		if unprintable(c) {
			return '-'
		}
		return c
	}, host)
	pid := fmt.Sprint("/", os.Getpid())
	return host[:min(len(host), maxInstance-len(pid))] + pid
}

// Instance returns the name of this process: see WithInstance.
func (l *Locker) Instance() string { return l.instance }

// random returns the part of a token, or of a name, that is made by chance: the ID of this process, so that others can
// find out whose it is, and 90 random bits.
func (l *Locker) random() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // that of rand.Text
	var text [protocol.RandomLen]byte
	_, _ = rand.Read(text[copy(text[:], l.id):]) // it never fails
	for i := protocol.IDLen; i < len(text); i++ {
		text[i] = alphabet[text[i]%byte(len(alphabet))]
	}
	return string(text[:])
}

// idOf returns the ID of the process in its token or the end of its name. Of one that isn't ours it returns a part, too.
func idOf(random string) string { return random[:min(protocol.IDLen, len(random)/2)] }

// Request is what is known of the request for which a lock is: see WithRequest. Each may be empty.
type Request struct {
	Method  string `json:"m,omitempty"`
	Path    string `json:"p,omitempty"`
	ID      string `json:"i,omitempty"` // as in the header X-Request-Id
	TraceID string `json:"t,omitempty"` // of W3C Trace Context
	Client  string `json:"c,omitempty"` // who has sent it
	// Delivery is the key that it has locked besides, so that nobody else works on the same delivery. Package middleware does that.
	Delivery string `json:"d,omitempty"`
}

// Call is a call that holds a key, or waits for it.
type Call struct {
	Label   string    // see WithLabel
	Since   time.Time // when it got the lock, or when it came if it waits; by the clock of its process
	Request *Request  // see WithRequest; or nil
}

// Turn is a call that holds a key, or waits for it, as its process tells of it.
type Turn struct {
	Call
	Waiting int    // calls of that process that wait for the key
	Line    []Call // those of them that are behind this one, in the order of their turns; other processes know of some, 20 at the most
}

// toldTurn is a Turn as the masters keep it.
type toldTurn struct {
	Label string `json:"l,omitempty"`
	Since int64  `json:"s"` // in milliseconds
	Fence uint64 `json:"f,omitempty"`
	Wait  int    `json:"w,omitempty"`
	*Request
	Line []toldTurn `json:"q,omitempty"`
}

const (
	// longTurn is how long a key is held, or waited for, before others are told: what is short is over before anybody asks.
	longTurn = 2 * time.Second
	maxTurns = 16 << 10 // bytes, of which one of them takes a quarter at most
	toldLine = 20
)

// longTurns returns what the masters are told of the turns that last for long, the oldest first.
func (l *Locker) longTurns(now time.Time) string {
	keys := l.gates.keys(func(full string) (string, bool) { return protocol.KeyOf(l.prefix, full), true })
	keys = slices.DeleteFunc(keys, func(k KeyStatus) bool { return now.Sub(k.Since) <= longTurn })
	var text strings.Builder
	for _, k := range sortedRefs(keys, func(a, b *KeyStatus) int { return a.Since.Compare(b.Since) }) {
		told := toldOf(*k)
		told.Line = told.Line[:min(len(told.Line), toldLine)]
		line, _ := json.Marshal(told) // strings and numbers always encode
		for ; len(line) > maxTurns/4 && len(told.Line) > 0; line, _ = json.Marshal(told) {
			told.Line = told.Line[:len(told.Line)/2]
		}
		if text.Len()+len(line) > maxTurns {
			break
		}
		text.WriteString(KeyHash(k.Key) + " ")
		text.Write(line)
		text.WriteByte('\n')
	}
	return text.String()
}

func toldOf(k KeyStatus) *toldTurn {
	told := &toldTurn{Label: k.Label, Since: k.Since.UnixMilli(), Fence: k.Fence, Wait: k.Waiting, Request: k.Request}
	for _, c := range k.Line {
		told.Line = append(told.Line, toldTurn{Label: c.Label, Since: c.Since.UnixMilli(), Request: c.Request})
	}
	return told
}

// ownTurn returns the turn of this process on a slot of a key, or nil.
func (l *Locker) ownTurn(key string, slot int) *toldTurn {
	full := protocol.Key(l.prefix, key)
	l.gates.mu.Lock()
	at := l.gates.byKey[full]
	if at == nil {
		l.gates.mu.Unlock()
		return nil
	}
	seen := at.see()
	l.gates.mu.Unlock()
	seen.settle()
	all := seen.appendStatuses(nil, key)
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

// turn returns what is told of the call that has the lock with this fence or, with none, is the first that waits; or nil.
func (t *toldTurn) turn(fence uint64) *Turn {
	if t == nil {
		return nil
	}
	turn := &Turn{Call: t.call(), Waiting: t.Wait}
	for _, c := range t.Line {
		turn.Line = append(turn.Line, c.call())
	}
	switch {
	case t.Fence == fence:
		return turn
	case fence == 0 && len(turn.Line) > 0: // it has a slot, and wants another
		return &Turn{Call: turn.Line[0], Waiting: t.Wait, Line: turn.Line[1:]}
	}
	return nil
}

func (t *toldTurn) call() Call {
	return Call{Label: t.Label, Since: time.UnixMilli(t.Since), Request: t.Request}
}

// keyspace returns the prefix and the masters. Those in memory are nobody else's, whatever their names.
func (l *Locker) keyspace() string {
	names := []string{l.prefix}
	for _, s := range l.streams {
		names = append(names, s.String())
	}
	slices.Sort(names[1:])
	if l.heart == nil {
		names = append(names, l.id)
	}
	return strings.Join(names, "\n")
}

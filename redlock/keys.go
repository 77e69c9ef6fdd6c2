package redlock

import (
	"cmp"
	"crypto/rand"
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
	// Slot is the slot that is held, of as many as Slots says, where that is more than one: see WithConcurrency. Each has a KeyStatus.
	Slot, Slots int
}

// Keys returns the keys with this prefix that this process holds or waits for, sorted. It asks no master: Inspect
// shows what other processes hold.
func (l *Locker) Keys(prefix string) []KeyStatus {
	keys := l.gates.keys(func(full string) (string, bool) {
		key := protocol.KeyOf(l.prefix, full)
		return key, strings.HasPrefix(key, prefix)
	})
	slices.SortFunc(keys, func(a, b KeyStatus) int { return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot)) })
	return keys
}

// keysAtOnce is how many keys are looked at while no call can come or go.
const keysAtOnce = 256

// keys returns the status of all keys that name accepts. It gets the key as it is on the masters. Keys that come or go meanwhile may be
// missing.
func (g *gates) keys(name func(full string) (key string, accepted bool)) (keys []KeyStatus) {
	g.mu.Lock()
	names := make([]string, 0, len(g.byKey))
	for full := range g.byKey {
		names = append(names, full)
	}
	g.mu.Unlock()
	for some := range slices.Chunk(names, keysAtOnce) {
		g.mu.Lock()
		for _, full := range some {
			if at := g.byKey[full]; at != nil {
				if key, accepted := name(full); accepted {
					keys = append(keys, at.statuses(key)...)
				}
			}
		}
		g.mu.Unlock()
	}
	return keys
}

// statuses returns what is shown of the gate, with one for each slot that is held. The mu of the gates is held.
func (g *gate) statuses(key string) (all []KeyStatus) {
	if g.slots == nil || len(g.slots.locks) == 0 {
		return []KeyStatus{g.status(key)}
	}
	for _, k := range g.slots.locks {
		all = append(all, KeyStatus{Key: key, Slot: int(k.attempt.slot), Slots: int(k.attempt.slots), Label: k.caller.label, Request: k.caller.request, Held: true, Since: k.since(), Until: k.ownUntil(), Fence: k.Fence()})
	}
	slices.SortFunc(all, func(a, b KeyStatus) int { return cmp.Compare(a.Slot, b.Slot) })
	all[0].Waiting = len(g.line) + len(g.slots.asking)
	return all
}

// status returns what is shown of the gate. The mu of the gates is held.
func (g *gate) status(key string) KeyStatus {
	first, asking := g.head, 0
	switch {
	case first != nil:
	case g.slots.busy() > 0:
		first, asking = g.slots.asking[0], len(g.slots.asking)
	default:
		first = g.line[0]
	}
	status := KeyStatus{Key: key, Label: first.label, Request: first.request, Held: g.isHeld(), Since: first.began, Waiting: len(g.line) + asking}
	if status.Held {
		status.Since = g.lock.since()
		status.Until, status.Fence = g.lock.ownUntil(), g.lock.Fence()
	} else if g.head != nil {
		status.Waiting++
	}
	return status
}

// isHeld reports whether the head has the lock now. The mu of the gates is held.
func (g *gate) isHeld() bool { return g.lock != nil && g.lock.ctx.Err() == nil }

// count returns how many keys are locked here and since when the oldest, and how many calls don't have their lock yet.
func (g *gates) count() (held, waiting int, oldest time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	several := make(map[*caller]bool) // the calls for several keys, by their first caller: they may stand at several gates
	wait := func(c *caller) {
		if c.several {
			several[c.call[0]] = true
		} else {
			waiting++
		}
	}
	for _, at := range g.byKey {
		for _, c := range at.line {
			wait(c)
		}
		locks := at.slots.all()
		if at.isHeld() {
			locks = append(locks, at.lock)
		}
		for _, k := range locks {
			held++
			if since := k.since(); oldest.IsZero() || since.Before(oldest) {
				oldest = since
			}
		}
		if at.slots != nil {
			waiting += len(at.slots.asking)
		}
		if len(locks) > 0 {
			continue
		}
		if at.head != nil {
			wait(at.head)
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

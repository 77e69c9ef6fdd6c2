package redlock

import (
	"slices"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// succession has the keys that are in use by Lockers of this process which succeed each other, as at a reload. Where the masters or the
// prefix have changed, the masters don't keep two of them from holding one key. So a call waits here for the keys of the other Lockers.
// Its zero value is empty; the methods of nil, for a Locker that succeeds none, do nothing.
type succession struct {
	mu    sync.Mutex
	byKey map[string]*keyUse // by the key without a prefix
}

// successors are the Lockers of WithSuccession.
var successors succession

// keyUse is who uses a key.
type keyUse struct {
	users []keyUser
	left  chan struct{} // closed when one of them has left; nil while nobody waits for that

	room [1]keyUser // for users: mostly enough
}

// keyUser is a Locker with calls that hold the key, or ask its masters for it.
type keyUser struct {
	locker *Locker
	calls  int
}

// enter counts a call as a user of its keys. If another Locker uses one that the masters don't keep it from, it does nothing but return
// the caller for that key, and what is closed when it should be called again.
func (s *succession) enter(l *Locker, callers []*caller) (blocked *caller, left <-chan struct{}) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range callers {
		use := s.byKey[protocol.KeyOf(l.prefix, c.key)]
		if use != nil && slices.ContainsFunc(use.users, func(u keyUser) bool { return !l.meets(u.locker) }) {
			if use.left == nil {
				use.left = make(chan struct{})
			}
			return c, use.left
		}
	}
	if s.byKey == nil {
		s.byKey = make(map[string]*keyUse)
	}
	for _, c := range callers {
		key := protocol.KeyOf(l.prefix, c.key)
		use := s.byKey[key]
		if use == nil {
			use = new(keyUse)
			use.users = use.room[:0]
			s.byKey[key] = use
		}
		i := slices.IndexFunc(use.users, func(u keyUser) bool { return u.locker == l })
		if i < 0 {
			i = len(use.users)
			use.users = append(use.users, keyUser{locker: l})
		}
		use.users[i].calls++
	}
	return nil, nil
}

// leave ends the use of keys by a call that has entered with these callers.
func (s *succession) leave(l *Locker, callers ...*caller) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range callers {
		key := protocol.KeyOf(l.prefix, c.key)
		use := s.byKey[key]
		i := slices.IndexFunc(use.users, func(u keyUser) bool { return u.locker == l })
		if use.users[i].calls--; use.users[i].calls > 0 {
			continue
		}
		use.users = slices.Delete(use.users, i, i+1)
		if use.left != nil {
			close(use.left)
			use.left = nil
		}
		if len(use.users) == 0 {
			delete(s.byKey, key)
		}
	}
}

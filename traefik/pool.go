package traefik

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"
)

// Traefik calls New for each router, and at each reload it ends the contexts of New before it calls New again. So equal
// configurations share a locker, which is only closed when it has not been used for a while.
var (
	poolMu    sync.Mutex
	pool      = map[string]*shared{}
	lingering = 10 * time.Second
)

// shared is a locker with the number of handlers and requests that use it.
type shared struct {
	l     *locker
	users int
	since time.Time // when the last one left
}

// borrow returns the locker for these options. The caller must call giveUp when it no longer uses it.
func borrow(key string, o *options) *locker {
	poolMu.Lock()
	defer poolMu.Unlock()
	s := pool[key]
	if s == nil {
		s = &shared{l: newLocker(o)}
		pool[key] = s
	}
	s.users++
	return s.l
}

// borrowUntil borrows a locker for a handler, until the handler's context ends.
func borrowUntil(ctx context.Context, key string, o *options) {
	borrow(key, o)
	context.AfterFunc(ctx, func() { guarded(func() { giveUp(key) }) })
}

// giveUp ends the use of a locker.
func giveUp(key string) {
	poolMu.Lock()
	defer poolMu.Unlock()
	s := pool[key]
	s.users--
	if s.users == 0 {
		s.since = time.Now()
		closeLater(key, lingering)
	}
}

func closeLater(key string, after time.Duration) {
	time.AfterFunc(after, func() { guarded(func() { closeUnused(key) }) })
}

// closeUnused closes a locker that has not been used for a while, as soon as it owes no more releases.
func closeUnused(key string) {
	poolMu.Lock()
	defer poolMu.Unlock()
	s := pool[key]
	if s == nil || s.users > 0 || time.Since(s.since) < lingering {
		return
	}
	if !s.l.idle() {
		closeLater(key, time.Second)
		return
	}
	delete(pool, key)
	go guarded(s.l.close)
}

// guarded calls the function of a goroutine, and recovers from a panic, which would end Traefik.
func guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Print("redlock: internal error: " + fmt.Sprint(p))
		}
	}()
	f()
}

package redlock_test

import (
	"bytes"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const tooLong = "$9223372036854775806\r\n"

// lies are what a master may say that breaks the limits of replies.
var lies = map[string]func(reply []byte) []byte{
	"a slot that there is none": changes(`(?s)(\*6\r\n:-?\d+\r\n\$\d+\r\n[^\r]*\r\n:\d+\r\n:-?\d+\r\n):-?\d+\r\n`, "${1}:999\r\n"),
	"numbers without end":       changes(`(?m)^:-?\d+\r$`, ":9223372036854775807\r"),
	"numbers below zero":        changes(`(?m)^:-?\d+\r$`, ":-9223372036854775808\r"),
	"strings without end":       changes(`(?m)^\$\d+\r$`, tooLong[:len(tooLong)-1]),
	"arrays without end":        changes(`(?m)^\*\d+\r$`, "*9223372036854775806\r"),
	"a long subscription":       onSubscription("*3\r\n" + tooLong),
	"another subscription":      onSubscription("*3\r\n$7\r\nmessage\r\n:1\r\n*-1\r\n"),
	"a greeting without end":    func([]byte) []byte { return []byte(tooLong) },
	"a large greeting":          func([]byte) []byte { return []byte("*1073741824\r\n") },
}

func changes(pattern, to string) func([]byte) []byte {
	find := regexp.MustCompile(pattern)
	return func(reply []byte) []byte { return find.ReplaceAll(reply, []byte(to)) }
}

func onSubscription(lie string) func([]byte) []byte {
	return func(reply []byte) []byte {
		if bytes.Contains(reply, []byte("subscribe\r\n")) {
			return []byte(lie)
		}
		return reply
	}
}

// TestMasterThatLies: one of three masters breaks the limits of replies. It is as good as away: the others decide.
func TestMasterThatLies(t *testing.T) {
	t.Parallel()
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urls, servers, ways := behindForwarders(t, 3)
			holder, waiter := newLocker(t, redistest.URLs(servers)), newLocker(t, append(urls[:1], redistest.URLs(servers[1:])...))
			lockUnlock(t, waiter, "key")
			ways[0].Lie(lie)
			if name == "a greeting without end" || name == "a large greeting" {
				ways[0].Cut()
			}
			for _, key := range []string{"key", "slots"} {
				var held []*redlock.Lock
				options := []redlock.LockOption{redlock.WithConcurrency(1)}
				if key == "slots" {
					options[0] = redlock.WithConcurrency(2)
					held = append(held, mustLock(t, holder, key, options...))
				}
				held = append(held, mustLock(t, holder, key, options...))
				wait := append(options, redlock.WithWait(3*time.Second))
				if err := answered(t, func() error { _, err := waiter.Lock(t.Context(), key, wait...); return err }); !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("%s: %v, want that it is held", key, err)
				}
				for _, lock := range held {
					mustUnlock(t, lock)
				}
				mustUnlock(t, mustLock(t, waiter, key, options...))
			}
		})
	}
}

// TestOnlyMasterLies: a caller that is alone with its master reads the replies itself, and meets the same limits.
func TestOnlyMasterLies(t *testing.T) {
	t.Parallel()
	urls, _, ways := behindForwarders(t, 1)
	l := newLocker(t, urls)
	for range 100 { // from some on it is taken to be alone
		lockUnlock(t, l, "key")
	}
	ways[0].Lie(func([]byte) []byte { return []byte(tooLong) })
	if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Errorf("%v, want that no quorum was reached", err)
	}
}

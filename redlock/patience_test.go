package redlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// waysToBeAway are what makes masters useless while away is set: they hang, or refuse each connection.
var waysToBeAway = map[string]func(m *farMaster, away *atomic.Bool){
	"hang": func(m *farMaster, away *atomic.Bool) {
		m.there = func() time.Duration {
			for away.Load() {
				time.Sleep(100 * time.Millisecond)
			}
			return 0
		}
	},
	"refuse": func(m *farMaster, away *atomic.Bool) { m.refuses = away.Load },
}

// awayMasters returns three masters, of which two are away while away is set.
func awayMasters(away *atomic.Bool, be func(m *farMaster, away *atomic.Bool)) []redlock.Master {
	return awayFrom(farServers(3), away, be)
}

func awayFrom(servers []*farServer, away *atomic.Bool, be func(m *farMaster, away *atomic.Bool)) []redlock.Master {
	return view(servers, func(m *farMaster) {
		if m.farServer != servers[0] {
			be(m, away)
		}
	})
}

// requireGaveUp wants a call to have ended for lack of a quorum after so long, within the time of a few attempts.
func requireGaveUp(t *testing.T, what string, err error, waited, want time.Duration, waitOver bool) {
	t.Helper()
	var quorum *redlock.QuorumError
	if !errors.As(err, &quorum) || len(quorum.Masters) == 0 || errors.Is(err, redlock.ErrHeld) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) != waitOver {
		t.Errorf("%s: %v, want a *QuorumError", what, err)
	}
	if waited < want || waited > want+5*time.Second {
		t.Errorf("%s: after %v, want %v", what, waited, want)
	}
}

// Calls end once their patience with the masters is over, at the head of the line and in it, whatever the masters do; with a wait they use
// all of it. A call without a patience waits until the masters are back.
func TestPatience(t *testing.T) {
	for name, be := range waysToBeAway {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				away.Store(true)
				l := lockerOn(t, awayMasters(&away, be))
				time.Sleep(time.Second) // the first connect is over
				var calls sync.WaitGroup
				for what, c := range map[string]struct {
					keys []string
					opts []redlock.LockOption
					want time.Duration
				}{
					"alone":              {[]string{"a"}, nil, time.Minute},
					"one of several":     {[]string{"b"}, nil, time.Minute},
					"another":            {[]string{"b"}, nil, time.Minute},
					"yet another":        {[]string{"b"}, nil, time.Minute},
					"for two keys":       {[]string{"b", "c"}, nil, time.Minute},
					"for a slot":         {[]string{"d"}, []redlock.LockOption{redlock.WithConcurrency(2)}, time.Minute},
					"with a wait":        {[]string{"e"}, []redlock.LockOption{redlock.WithWait(20 * time.Second)}, 20 * time.Second},
					"with a longer wait": {[]string{"f"}, []redlock.LockOption{redlock.WithWait(20 * time.Minute)}, time.Minute},
					"with less":          {[]string{"g"}, []redlock.LockOption{redlock.WithWait(20 * time.Minute), redlock.WithPatience(5 * time.Second)}, 5 * time.Second},
				} {
					calls.Go(func() {
						start := time.Now()
						lock, err := l.LockAll(t.Context(), c.keys, append([]redlock.LockOption{redlock.WithPatience(time.Minute)}, c.opts...)...)
						if err == nil {
							_ = lock.Unlock()
						}
						requireGaveUp(t, what, err, time.Since(start), c.want, what == "with a wait")
					})
				}
				calls.Go(func() {
					lock, err := l.Lock(t.Context(), "h")
					if err != nil {
						t.Error(err)
						return
					}
					_ = lock.Unlock()
				})
				calls.Go(func() {
					time.Sleep(90 * time.Second)
					away.Store(false)
				})
				calls.Wait()
				for _, key := range []string{"a", "b", "c", "d", "e"} { // nothing is left of the calls
					lockUnlock(t, l, key)
				}
			})
		})
	}
}

// The patience counts from when no quorum is left, however long others have had the key before that, and anew after each return.
func TestPatienceBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		servers := farServers(3)
		l := lockerOn(t, awayFrom(servers, &away, waysToBeAway["hang"]), redlock.WithPatience(time.Minute), redlock.WithTTL(3*time.Second))
		holder := lockerOn(t, view(servers, func(*farMaster) {}))
		lock := mustLock(t, holder, "key")
		var calls sync.WaitGroup
		start := time.Now()
		for range 2 { // the head and one in line
			calls.Go(func() {
				other, err := l.Lock(t.Context(), "key")
				if err == nil {
					_ = other.Unlock()
				}
				requireGaveUp(t, "after an hour", err, time.Since(start), time.Hour+time.Minute, false)
			})
		}
		for _, outage := range []time.Duration{40 * time.Second, 50 * time.Second} {
			time.Sleep(10 * time.Minute)
			away.Store(true)
			time.Sleep(outage)
			away.Store(false)
		}
		time.Sleep(time.Until(start.Add(time.Hour)))
		away.Store(true)
		calls.Wait()
		away.Store(false)
		mustUnlock(t, lock)
		lockUnlock(t, l, "key")
	})
}

// While one master of three is away there is a quorum, so who waits for a holder elsewhere loses no patience.
func TestPatienceWithQuorum(t *testing.T) {
	for name, be := range waysToBeAway {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				away.Store(true)
				servers := farServers(3)
				l := lockerOn(t, view(servers, func(m *farMaster) {
					if m.farServer == servers[2] {
						be(m, &away)
					}
				}), redlock.WithPatience(time.Minute))
				lock := mustLock(t, lockerOn(t, view(servers, func(*farMaster) {})), "key")
				time.AfterFunc(10*time.Minute, func() { mustUnlock(t, lock) })
				var calls sync.WaitGroup
				for range 2 { // the head and one in line
					calls.Go(func() {
						lock, err := l.Lock(t.Context(), "key")
						if err != nil {
							t.Error(err)
							return
						}
						_ = lock.Unlock()
					})
				}
				calls.Wait()
				away.Store(false)
			})
		})
	}
}

// Who waits for a lock of this process waits for its holder, and not for masters.
func TestPatienceWithHolderHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, []string{"memory://a", "memory://b", "memory://c"}, redlock.WithPatience(time.Minute))
		lock := mustLock(t, l, "key")
		time.AfterFunc(time.Hour, func() { mustUnlock(t, lock) })
		lock, err := l.Lock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lock)
	})
}

func TestPatienceIsNotNegative(t *testing.T) {
	l := newLocker(t, []string{"memory://a"})
	if err := l.Check(redlock.WithPatience(-1)); err == nil {
		t.Error("a negative patience is accepted")
	}
}

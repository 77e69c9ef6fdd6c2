package redlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// outages are what leaves a process without a quorum.
var outages = map[string]struct{ begin, end func(*simnet.Server) }{
	"refuse": {(*simnet.Server).Kill, (*simnet.Server).Restart},
	"hang":   {(*simnet.Server).Hang, (*simnet.Server).Resume},
	"full":   {(*simnet.Server).Fill, func(s *simnet.Server) { s.Refuse("") }},
}

// inOutages runs a test in each outage of two masters of three, without a restart guard.
func inOutages(t *testing.T, test func(t *testing.T, net *simnet.Net, begin, end func())) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				away := func(change func(*simnet.Server)) func() {
					return func() { change(net.Servers[1]); change(net.Servers[2]) }
				}
				test(t, net, away(outage.begin), away(outage.end))
			})
		})
	}
}

// requireGaveUp wants a call to have ended for lack of a quorum after so long, or a bit more.
func requireGaveUp(t *testing.T, what string, err error, waited, want, more time.Duration, waitOver bool) {
	t.Helper()
	var quorum *redlock.QuorumError
	if !errors.As(err, &quorum) || len(quorum.Masters) == 0 || errors.Is(err, redlock.ErrHeld) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) != waitOver || (quorum.Err != nil) != waitOver {
		t.Errorf("%s: %v, want a *QuorumError", what, err)
	}
	if waited < want || waited > want+more {
		t.Errorf("%s: after %v, want %v", what, waited, want)
	}
}

// TestMastersWait: calls end once they have waited for masters for long enough, counted from when the process knows that there are too few, at the head of
// the line and in it, whatever the masters do.
func TestMastersWait(t *testing.T) {
	inOutages(t, func(t *testing.T, net *simnet.Net, begin, end func()) {
		l := simLocker(t, net.Masters())
		time.Sleep(time.Second)
		begin()
		knows := time.Now()
		if _, err := l.TryLock(t.Context(), "key"); err == nil {
			t.Fatal("a lock without a quorum")
		}
		masters, wait := redlock.WithMastersWait, redlock.WithWait
		var calls sync.WaitGroup
		for what, c := range map[string]struct {
			keys     []string
			opts     []redlock.LockOption
			at, want time.Duration // since the process knows
		}{
			"alone":                   {[]string{"a"}, nil, 0, time.Minute},
			"one of several":          {[]string{"b"}, nil, 0, time.Minute},
			"another":                 {[]string{"b"}, nil, 0, time.Minute},
			"with less, in line":      {[]string{"b"}, []redlock.LockOption{masters(7 * time.Second)}, time.Second, 7 * time.Second},
			"with none, in line":      {[]string{"b"}, []redlock.LockOption{masters(0)}, 2 * time.Second, 2 * time.Second},
			"for two keys":            {[]string{"b", "c"}, nil, 0, time.Minute},
			"for a slot":              {[]string{"d"}, []redlock.LockOption{redlock.WithConcurrency(2)}, 0, time.Minute},
			"with a wait":             {[]string{"e"}, []redlock.LockOption{wait(20 * time.Second)}, 0, 20 * time.Second},
			"with a longer wait":      {[]string{"f"}, []redlock.LockOption{wait(20 * time.Minute)}, 0, time.Minute},
			"with less":               {[]string{"g"}, []redlock.LockOption{masters(5 * time.Second)}, 0, 5 * time.Second},
			"with none":               {[]string{"h"}, []redlock.LockOption{masters(0)}, 0, 0},
			"later":                   {[]string{"i"}, nil, 40 * time.Second, time.Minute},
			"later, in line":          {[]string{"b"}, nil, 40 * time.Second, time.Minute},
			"too late":                {[]string{"j"}, nil, 70 * time.Second, 70 * time.Second},
			"too late, for a slot":    {[]string{"k"}, []redlock.LockOption{redlock.WithConcurrency(5)}, 70 * time.Second, 70 * time.Second},
			"too late, with a result": {[]string{"l"}, []redlock.LockOption{redlock.WithRecall()}, 70 * time.Second, 70 * time.Second},
			"too late, in line":       {[]string{"m"}, nil, 71 * time.Second, 71 * time.Second},
		} {
			calls.Go(func() {
				time.Sleep(time.Until(knows.Add(c.at)))
				lock, err := l.LockAll(t.Context(), c.keys, c.opts...)
				if err == nil {
					_ = lock.Unlock()
				}
				requireGaveUp(t, what, err, time.Since(knows), c.want, time.Second/2, what == "with a wait")
			})
		}
		calls.Go(func() {
			for _, key := range []string{"m", "without end"} {
				calls.Go(func() {
					lock, err := l.Lock(t.Context(), key, masters(1<<62))
					if err != nil {
						t.Error(err)
						return
					}
					_ = lock.Unlock()
				})
			}
			time.Sleep(90 * time.Second)
			end()
		})
		calls.Wait()
		for _, key := range []string{"a", "b", "c", "d", "e", "m"} { // nothing is left of the calls
			lockUnlock(t, l, key)
		}
	})
}

// TestMastersWaitBegins: the wait for masters counts from when no quorum is left, however long others have had the key before that, and anew after each return.
func TestMastersWaitBegins(t *testing.T) {
	inOutages(t, func(t *testing.T, net *simnet.Net, begin, end func()) {
		l := simLocker(t, net.Masters())
		for _, s := range net.Servers {
			s.Give("key", "another", 24*time.Hour)
		}
		var calls sync.WaitGroup
		start := time.Now()
		for range 2 { // the head and one in line
			calls.Go(func() {
				other, err := l.Lock(t.Context(), "key")
				if err == nil {
					_ = other.Unlock()
				}
				requireGaveUp(t, "after ten minutes", err, time.Since(start), 10*time.Minute+time.Minute, simTTL/3, false) // so often the head asks
			})
		}
		for _, outage := range []time.Duration{40 * time.Second, 50 * time.Second} {
			time.Sleep(2 * time.Minute)
			begin()
			time.Sleep(outage)
			end()
			for _, s := range net.Servers {
				s.Give("key", "another", 24*time.Hour)
			}
		}
		time.Sleep(time.Until(start.Add(10 * time.Minute)))
		begin()
		calls.Wait()
		end()
	})
}

// TestMastersWaitWithQuorum: while one master of three is away there is a quorum, so who waits for a holder elsewhere waits for no masters.
func TestMastersWaitWithQuorum(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				outage.begin(net.Servers[2])
				l, holder := simLocker(t, net.Masters()), simLocker(t, net.Masters())
				lock := mustLock(t, holder, "key")
				time.AfterFunc(10*time.Minute, func() { mustUnlock(t, lock) })
				var calls sync.WaitGroup
				for range 2 { // the head and one in line
					calls.Go(func() {
						lock, err := l.Lock(t.Context(), "key", redlock.WithMastersWait(0))
						if err != nil {
							t.Error(err)
							return
						}
						mustUnlock(t, lock)
					})
				}
				calls.Wait()
			})
		})
	}
}

// TestMastersWaitBehindHolderHere: who waits for a lock of this process waits for its holder, and not for masters, until the lease is lost.
func TestMastersWaitBehindHolderHere(t *testing.T) {
	inOutages(t, func(t *testing.T, net *simnet.Net, begin, end func()) {
		l := simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		begin()
		time.AfterFunc(time.Hour, func() { _ = lock.Unlock() })
		second, err := l.Lock(t.Context(), "key", redlock.WithMastersWait(time.Second))
		if err == nil {
			mustUnlock(t, second)
		}
		if lock.Err() == nil || !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("beside a lock that ended with %v: %v", lock.Err(), err)
		}
		end()
	})
}

// TestMastersWaitInAGuard: a call waits for masters that have restarted, if they have their votes in time, and otherwise not at all.
func TestMastersWaitInAGuard(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second))
		time.Sleep(time.Second)
		for _, s := range net.Servers {
			s.Reboot()
		}
		start := time.Now()
		for range 2 {
			_, err := l.Lock(t.Context(), "key", redlock.WithMastersWait(5*time.Second), redlock.WithWait(time.Hour))
			requireGaveUp(t, "with less than the guard", err, time.Since(start), 0, time.Second/2, false)
			var quorum *redlock.QuorumError
			if !errors.As(err, &quorum) || quorum.RetryAfter < 10*time.Second {
				t.Errorf("%v, want to be asked to come again after the guard", err)
			}
		}
		lock, err := l.Lock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lock)
		if waited := time.Since(start); waited > 13*time.Second {
			t.Errorf("waited for %v", waited)
		}
	})
}

func TestMastersWaitIsNotNegative(t *testing.T) {
	l := newLocker(t, []string{"memory://a"})
	if err := freed(l.TryLock(t.Context(), "a", redlock.WithMastersWait(-1))); err == nil {
		t.Error("a negative wait for masters is accepted")
	}
}

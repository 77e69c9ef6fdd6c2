package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// A verdict is what a call is told. It follows from what was seen of the masters and of holders, whatever the options of the call and its place in
// line are.
const (
	isOurs = "got it"
	isHeld = "held"
	isOut  = "no quorum"
	either = "held, or no quorum" // two calls that can't have it have votes from each other
)

func verdictOf(err error) string {
	others, masters := errors.Is(err, redlock.ErrHeld), errors.Is(err, redlock.ErrNoQuorum)
	switch {
	case err == nil:
		return isOurs
	case others && !masters:
		return isHeld
	case masters && !others:
		return isOut
	}
	return fmt.Sprint("neither, or both: ", err)
}

// verdicts are all that can be seen of the key "a", and what calls for it are told. At three masters two are a quorum.
var verdicts = []struct {
	seen    string
	happens func(w *verdictWorld)
	alone   string // who comes first, in this process and on the masters
	here    string // who comes behind a call of this process that waits, or has got the lock
	there   string // who comes behind one of another process
}{
	{"nobody", func(w *verdictWorld) {}, isOurs, isHeld, isHeld},
	{"one is away", func(w *verdictWorld) { w.each(refuses, 2) }, isOurs, isHeld, isHeld},
	{"one hangs", func(w *verdictWorld) { w.each(hangs, 2) }, isOurs, isHeld, isHeld},

	{"two refuse connections", func(w *verdictWorld) { w.each(refuses, 1, 2) }, isOut, isOut, isOut},
	{"all refuse connections", func(w *verdictWorld) { w.each(refuses, 0, 1, 2) }, isOut, isOut, isOut},
	{"two hang", func(w *verdictWorld) { w.each(hangs, 1, 2) }, isOut, isOut, isOut},
	{"all hang", func(w *verdictWorld) { w.each(hangs, 0, 1, 2) }, isOut, isOut, isOut},
	{"one refuses connections, one hangs", func(w *verdictWorld) { w.each(refuses, 1); w.each(hangs, 2) }, isOut, isOut, isOut},
	{"two are full", func(w *verdictWorld) { w.each((*simnet.Server).Fill, 1, 2) }, isOut, isOut, isOut},
	{"two are read only", func(w *verdictWorld) { w.each((*simnet.Server).Demote, 1, 2) }, isOut, isOut, isOut},
	{"two forbid it", func(w *verdictWorld) { w.each(forbids, 1, 2) }, isOut, isOut, isOut},
	{"two have just restarted", func(w *verdictWorld) { w.each((*simnet.Server).Reboot, 1, 2) }, isOut, isOut, isOut},
	{"the clocks of two have jumped", func(w *verdictWorld) { w.each(jumps, 1, 2) }, isOut, isOut, isOut},
	{"all come and go, and are there", func(w *verdictWorld) { w.comeAndGo() }, isOurs, isHeld, isHeld},

	{"another has it", func(w *verdictWorld) { w.anotherHas() }, isHeld, isHeld, isHeld},
	{"another has it, and one is away", func(w *verdictWorld) { w.anotherHas(); w.each(refuses, 2) }, isHeld, isHeld, isHeld},
	{"another has it, and one hangs", func(w *verdictWorld) { w.anotherHas(); w.each(hangs, 0) }, isHeld, isHeld, isHeld},
	{"another has it on two, and the third refuses connections", func(w *verdictWorld) { w.give("x", 1, 2); w.each(refuses, 0) }, isHeld, isHeld, isHeld},
	{"another has it on two, and the third forbids it", func(w *verdictWorld) { w.give("x", 0, 1); w.each(forbids, 2) }, isHeld, isHeld, isHeld},
	{"another has it, and two hang", func(w *verdictWorld) { w.anotherHas(); w.each(hangs, 1, 2) }, isOut, isOut, isOut},
	{"another has it, and two refuse connections", func(w *verdictWorld) { w.anotherHas(); w.each(refuses, 0, 1) }, isOut, isOut, isOut},
	{"this process has it, and two hang", func(w *verdictWorld) { w.thisHas(); w.each(hangs, 1, 2) }, isHeld, isHeld, isHeld},
	{"this process has it, and all refuse connections", func(w *verdictWorld) { w.thisHas(); w.each(refuses, 0, 1, 2) }, isHeld, isHeld, isHeld},

	{"votes are split between three", func(w *verdictWorld) { w.give("x", 0); w.give("y", 1); w.give("z", 2) }, isHeld, isHeld, isHeld},
	{"votes are split between two, and one hangs", func(w *verdictWorld) { w.give("x", 0); w.give("y", 1); w.each(hangs, 2) }, isHeld, isHeld, isHeld},
	{"votes are split between two, and one refuses connections", func(w *verdictWorld) { w.give("x", 2); w.give("y", 1); w.each(refuses, 0) }, isHeld, isHeld, isHeld},
	{"one has a vote, and one hangs", func(w *verdictWorld) { w.give("x", 0); w.each(hangs, 2) }, isOut, isOut, either},
	{"one has a vote, and one refuses connections", func(w *verdictWorld) { w.give("x", 0); w.each(refuses, 2) }, isOut, isOut, either},
	{"one has a vote, and two are full", func(w *verdictWorld) { w.give("x", 0); w.each((*simnet.Server).Fill, 1, 2) }, isOut, isOut, isOut},
}

// verdictWorld is three masters, and this process.
type verdictWorld struct {
	t     *testing.T
	net   *simnet.Net
	l     *redlock.Locker
	slots int             // that the key has
	locks []*redlock.Lock // that this process has
}

func (w *verdictWorld) each(trouble func(s *simnet.Server), servers ...int) {
	for _, i := range servers {
		trouble(w.net.Servers[i])
	}
}

func refuses(s *simnet.Server) { s.Kill() }

func hangs(s *simnet.Server) { s.Hang() }

func forbids(s *simnet.Server) {
	s.Refuse("NOPERM User u has no permissions to run the 'eval' command", simnet.Acquire, simnet.Trial)
}

func jumps(s *simnet.Server) { s.SetClock(time.Hour) }

// comeAndGo has all masters fail twice within a minute: then it is told for a while that they do.
func (w *verdictWorld) comeAndGo() {
	for range 2 {
		w.weather(simnet.Weather{Away: true})
		time.Sleep(time.Second)
		w.weather(simnet.Weather{})
		time.Sleep(2 * time.Second)
	}
	for _, m := range w.l.Status().Masters {
		if m.State == redlock.MasterAvailable {
			w.t.Errorf("%s is told to be well", m.Name)
		}
	}
}

func (w *verdictWorld) weather(now simnet.Weather) {
	for _, a := range w.net.Addresses {
		if a.Set(now); now.Away {
			a.Cut()
		}
	}
}

func (w *verdictWorld) anotherHas() {
	w.has(simLocker(w.t, w.net.Masters()))
}

func (w *verdictWorld) thisHas() { w.locks = w.has(w.l) }

func (w *verdictWorld) has(l *redlock.Locker) (locks []*redlock.Lock) {
	for range w.slots {
		locks = append(locks, mustLock(w.t, l, "a", redlock.WithConcurrency(w.slots)))
	}
	return locks
}

func (w *verdictWorld) give(token string, servers ...int) {
	w.each(func(s *simnet.Server) {
		for slot := range w.slots {
			s.Give("a", token, simTTL, slot)
		}
	}, servers...)
}

// verdictCalls are the ways to ask.
var verdictCalls = map[string]struct {
	keys  []string
	slots int
	wait  time.Duration // 0 for a try
	opts  []redlock.LockOption
}{
	"a try":                            {keys: []string{"a"}},
	"a try for two keys":               {keys: []string{"a", "b"}},
	"a try for a slot":                 {keys: []string{"a"}, slots: 2},
	"a wait that is over at once":      {keys: []string{"a"}, wait: time.Nanosecond},
	"a wait for as long as a time-out": {keys: []string{"a"}, wait: 50 * time.Millisecond},
	"a wait":                           {keys: []string{"a"}, wait: time.Second},
	"a wait for two keys":              {keys: []string{"b", "a"}, wait: time.Second},
	"a wait for a slot":                {keys: []string{"a"}, slots: 2, wait: time.Second},
	"a wait with recall":               {keys: []string{"a"}, wait: time.Second, opts: []redlock.LockOption{redlock.WithRecall()}},
}

// verdictPlaces are who has come before, and waits or has got the lock: nobody, or a call of this process or of another one.
var verdictPlaces = []string{"alone", "second here", "second on the masters"}

// TestVerdicts: what was seen is what a call is told.
func TestVerdicts(t *testing.T) {
	for _, row := range verdicts {
		for name, call := range verdictCalls {
			for _, place := range verdictPlaces {
				t.Run(row.seen+"/"+name+"/"+place, func(t *testing.T) {
					simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
						w := &verdictWorld{t: t, net: net, l: simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second)), slots: max(call.slots, 1)}
						slots := redlock.WithConcurrency(w.slots)
						before := w.l
						if place == "second on the masters" {
							before = simLocker(t, net.Masters())
						}
						lockUnlock(t, w.l, "warm")
						time.Sleep(time.Second)
						row.happens(w)
						var ahead sync.WaitGroup
						ctx, leave := context.WithCancel(t.Context())
						if place != "alone" {
							ahead.Go(func() {
								if lock, err := before.Lock(ctx, "a", slots); err == nil {
									<-ctx.Done()
									_ = lock.Unlock()
								}
							})
							time.Sleep(10 * time.Microsecond)
						}
						lock, err := w.l.LockAll(t.Context(), call.keys, append(call.opts, slots, redlock.WithWait(call.wait))...)
						want := map[string]string{"alone": row.alone, "second here": row.here, "second on the masters": row.there}[place]
						if w.slots > 1 && want == isHeld {
							want = row.alone // there is one more slot
						}
						if got := verdictOf(err); got != want && (want != either || got == isOurs) {
							t.Errorf("%s (%v), want %s", got, err, want)
						}
						leave()
						ahead.Wait()
						if lock != nil {
							w.locks = append(w.locks, lock)
						}
						for _, lock := range w.locks {
							_ = lock.Unlock()
						}
					})
				})
			}
		}
	}
}

// TestNobodyWasAsked: a call whose wait is over before the masters were asked for its key, neither for it nor for one before it, is told that: nobody
// has seen a holder, nor that the masters fail.
func TestNobodyWasAsked(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lockUnlock(t, l, "warm")
		for _, a := range net.Addresses {
			a.Set(simnet.Weather{Delay: 20 * time.Millisecond})
		}
		ctx, leave := context.WithCancel(t.Context())
		var before sync.WaitGroup
		for i := range 1000 {
			before.Go(func() {
				if lock, err := l.Lock(ctx, fmt.Sprint(i)); err == nil {
					_ = lock.Unlock()
				}
			})
			time.Sleep(time.Microsecond)
		}
		before.Go(func() { _, _ = l.Lock(ctx, "a") }) // so many are before it as may ask
		time.Sleep(time.Microsecond)
		_, err := l.Lock(t.Context(), "a", redlock.WithWait(10*time.Millisecond))
		if !errors.Is(err, redlock.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redlock.ErrHeld) || errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("%v, want ErrBusy", err)
		}
		leave()
		before.Wait()
	})
}

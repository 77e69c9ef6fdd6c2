package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// outage is three masters that hang from one moment on.
type outage struct {
	servers []*farServer
	hang    delay
}

const outageTimeout = 100 * time.Millisecond

func newOutage() *outage { return &outage{servers: farServers(3)} }

func (o *outage) locker(t *testing.T) *redlock.Locker {
	l := lockerOn(t, view(o.servers, func(m *farMaster) { m.there = o.hang.get }), redlock.WithTimeout(outageTimeout))
	synctest.Wait()
	return l
}

func (o *outage) begin() { o.hang.set(time.Hour) }

// end lets what hangs pass, so that Lockers can close.
func (o *outage) end() {
	o.hang.set(0)
	time.Sleep(2 * time.Hour)
}

// lockCall is a call for a lock, with a number.
type lockCall func(ctx context.Context, i int) (*redlock.Lock, error)

// atOnce makes n calls, each a moment after the other, and returns their errors in this order. What they get they release.
func atOnce(t *testing.T, n int, call lockCall) []error {
	errs := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			time.Sleep(time.Duration(i) * time.Microsecond)
			lock, err := call(t.Context(), i)
			if errs[i] = err; err == nil {
				_ = lock.Unlock()
			}
		})
	}
	calls.Wait()
	return errs
}

// requireMet fails the test unless an error says that there was no quorum, or, if held is set, that there was a holder, and nothing else.
func requireMet(t *testing.T, what string, err error, held bool) {
	t.Helper()
	if errors.Is(err, redlock.ErrHeld) != held || errors.Is(err, redlock.ErrNoQuorum) == held {
		t.Errorf("%s: %v, want held: %v, else no quorum", what, err, held)
	}
}

// TestLineInAnOutage: calls that stand in the line of their process behind one that finds no quorum are told that, and nothing of a
// holder that nobody has seen.
func TestLineInAnOutage(t *testing.T) {
	const calls = 8
	end := func(i int) time.Duration { return 5*time.Second - time.Duration(i)*time.Second/10 } // that of the call ahead is later
	wait := func(i int) redlock.LockOption { return redlock.WithWait(end(i)) }
	for name, call := range map[string]func(l *redlock.Locker) lockCall{
		"waits": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) { return l.Lock(ctx, "a", wait(i)) }
		},
		"contexts": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) {
				ctx, cancel := context.WithTimeout(ctx, end(i))
				defer cancel()
				return l.Lock(ctx, "a")
			}
		},
		"short waits": func(l *redlock.Locker) lockCall { // that are over before the first attempt is
			return func(ctx context.Context, _ int) (*redlock.Lock, error) {
				return l.Lock(ctx, "a", redlock.WithWait(outageTimeout/10))
			}
		},
		"slots": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) {
				return l.Lock(ctx, "a", wait(i), redlock.WithConcurrency(3))
			}
		},
		"several": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) {
				return l.LockAll(ctx, [][]string{{"a"}, {"a", "b"}, {"b", "c"}}[i%3], wait(i))
			}
		},
		"tries": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, _ int) (*redlock.Lock, error) { return l.TryLock(ctx, "a") }
		},
		"tries for slots": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, _ int) (*redlock.Lock, error) {
				return l.TryLock(ctx, "a", redlock.WithConcurrency(3))
			}
		},
		"tries among waits": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) {
				if i%2 > 0 {
					return l.LockAll(ctx, []string{"a", "b"}, redlock.WithWait(0))
				}
				return l.LockAll(ctx, []string{"b", "a"}, wait(i))
			}
		},
		"too many waiters": func(l *redlock.Locker) lockCall {
			return func(ctx context.Context, i int) (*redlock.Lock, error) {
				time.Sleep(time.Duration(i) * time.Second / 10)
				lock, err := l.Lock(ctx, "a", wait(i), redlock.WithMaxWaiters(2))
				if i > 2 && !errors.Is(err, redlock.ErrTooManyWaiters) {
					t.Errorf("call %d: %v, want ErrTooManyWaiters", i, err)
				}
				return lock, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage()
				l := o.locker(t)
				o.begin()
				start := time.Now()
				for i, err := range atOnce(t, calls, call(l)) {
					requireMet(t, fmt.Sprint("call ", i), err, false)
				}
				if took := time.Since(start); took > 6*time.Second {
					t.Errorf("the calls took %v", took)
				}
				o.end()
			})
		})
	}
}

// TestHolderInAnOutage: those behind a holder of their own process are told that the lock is held, whatever becomes of the masters, and
// whatever others have met: their work must not be done without a lock meanwhile.
func TestHolderInAnOutage(t *testing.T) {
	for _, slots := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage()
				l := o.locker(t)
				n := redlock.WithConcurrency(slots)
				lock := mustLock(t, l, "a", n)
				o.begin()
				errs := atOnce(t, 8, func(ctx context.Context, i int) (*redlock.Lock, error) {
					wait := redlock.WithWait(time.Second)
					switch i % 4 {
					case 0:
						return l.LockAll(ctx, []string{"b", "a"}, n, wait)
					case 1:
						time.Sleep(time.Second / 2)
						return l.TryLock(ctx, "a", n)
					case 2:
						time.Sleep(time.Second / 2)
						return l.Lock(ctx, "a", n, wait, redlock.WithMaxWaiters(1))
					}
					return l.Lock(ctx, "a", n, wait)
				})
				for i, err := range errs {
					if errors.Is(err, redlock.ErrTooManyWaiters) && !errors.Is(err, redlock.ErrNoQuorum) && i%4 == 2 {
						continue
					}
					if slots == 1 || i%4 == 1 || i%4 == 2 { // the others have asked masters for a slot that is left
						requireMet(t, fmt.Sprint("call ", i), err, true)
					}
				}
				o.hang.set(0)
				_ = lock.Unlock()
				o.end()
			})
		})
	}
}

// TestWaitEndsBeforeFirstAttempt: a call in line whose wait is over before the call ahead has had any reply learns how that ends, which may have
// the lock a moment later.
func TestWaitEndsBeforeFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage()
		l := o.locker(t)
		const trip = outageTimeout / 2
		o.hang.set(trip)
		var ahead sync.WaitGroup
		ahead.Go(func() {
			lock := mustLock(t, l, "a")
			time.Sleep(time.Minute)
			mustUnlock(t, lock)
		})
		synctest.Wait()
		start := time.Now()
		_, err := l.Lock(t.Context(), "a", redlock.WithWait(trip/5))
		requireMet(t, "the call behind", err, true)
		if took := time.Since(start); took != trip {
			t.Errorf("it took %v, want %v", took, trip)
		}
		ahead.Wait()
	})
}

// TestHolderSeenBySeveral: whoever comes behind a call for several keys that has met a holder is told of it at once.
func TestHolderSeenBySeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage()
		other, l := o.locker(t), o.locker(t)
		held := mustLock(t, other, "a")
		var ahead sync.WaitGroup
		ahead.Go(func() { _, _ = l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithWait(time.Hour)) })
		time.Sleep(time.Second)
		start := time.Now()
		_, err := l.TryLock(t.Context(), "a")
		requireMet(t, "a try-lock", err, true)
		if took := time.Since(start); took > 0 {
			t.Errorf("a try-lock waited for %v", took)
		}
		if lock, err := l.TryLock(t.Context(), "b"); err != nil {
			t.Errorf("a try-lock of the key that is free: %v", err)
		} else {
			mustUnlock(t, lock)
		}
		_, err = l.Lock(t.Context(), "a", redlock.WithWait(time.Second))
		requireMet(t, "a wait", err, true)
		ahead.Wait()
		mustUnlock(t, held)
	})
}

// TestTryWhileSeveralAskAgain: what a call for several keys has met is forgotten once the key was free: it isn't told to those who come while the
// call asks again, for the sake of another key.
func TestTryWhileSeveralAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage()
		other, l := o.locker(t), o.locker(t)
		a, b := mustLock(t, other, "a"), mustLock(t, other, "b")
		o.hang.set(outageTimeout / 10)
		var ahead sync.WaitGroup
		ahead.Go(func() { _, _ = l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithWait(longTTL)) })
		time.Sleep(time.Second)
		mustUnlock(t, a)
		time.Sleep(time.Second)
		for end := time.Now().Add(longTTL / 2); time.Now().Before(end); time.Sleep(time.Millisecond) {
			lock, err := l.TryLock(t.Context(), "a")
			if err != nil {
				t.Fatalf("a try-lock of the key that is free: %v", err)
			}
			ahead.Go(func() { mustUnlock(t, lock) }) // the call that asks again goes on with this
		}
		ahead.Wait()
		mustUnlock(t, b)
	})
}

// TestResultMetAhead: a call in line that asks for no results, and whose wait is over, has its turn after the first attempt of one that has met a
// result.
func TestResultMetAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage()
		l := o.locker(t)
		if !unlockWith(t, mustLock(t, l, "a"), []byte("done"), time.Hour) {
			t.Fatal("the result isn't remembered")
		}
		synctest.Wait() // on all three masters: what only two remember is spread first
		o.hang.set(outageTimeout / 2)
		var ahead sync.WaitGroup
		ahead.Go(func() {
			if _, err := l.Lock(t.Context(), "a", redlock.WithRecall()); !errors.Is(err, redlock.ErrDone) {
				t.Errorf("the call ahead: %v, want ErrDone", err)
			}
		})
		synctest.Wait()
		lock, err := l.Lock(t.Context(), "a", redlock.WithWait(outageTimeout/10))
		if err != nil {
			t.Fatalf("the call behind: %v", err)
		}
		mustUnlock(t, lock)
		ahead.Wait()
	})
}

// TestTriesShareAnOutage: thousands of try-locks for slots cost a process in an outage what a few do.
func TestTriesShareAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, most = 1000, 160
		o := newOutage()
		var attempts atomic.Int32
		l := lockerOn(t, view(o.servers, func(m *farMaster) { m.there = o.hang.get }), redlock.WithTimeout(outageTimeout),
			redlock.WithObserver(redlock.Observer{Attempted: func(fmt.Stringer) { attempts.Add(1) }}))
		synctest.Wait()
		o.begin()
		for i, err := range atOnce(t, calls, func(ctx context.Context, _ int) (*redlock.Lock, error) {
			return l.TryLock(ctx, "a", redlock.WithConcurrency(40))
		}) {
			requireMet(t, fmt.Sprint("call ", i), err, false)
		}
		synctest.Wait()
		if n := attempts.Load(); n > most {
			t.Errorf("%d attempts of %d calls, want at most %d", n, calls, most)
		}
		o.end()
	})
}

// brokenFor is a master that gives the first calls, whose attempts it gets, no usable reply.
type brokenFor struct {
	*farServer
	lost *lostCalls
}

// lostCalls are the calls to which no master gives a reply, at most so many.
type lostCalls struct {
	mu    sync.Mutex
	most  int
	calls map[string]bool
}

func (l *lostCalls) has(call string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) < l.most {
		l.calls[call] = true
	}
	return l.calls[call]
}

func (m brokenFor) Do(cmds []*protocol.Command) {
	time.Sleep(time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Stepwise.Do(cmds)
	for _, cmd := range cmds {
		if cmd.Op == protocol.OpAcquire && m.lost.has(cmd.Process) {
			cmd.Reply = protocol.Reply{Err: errCut}
		}
	}
}

// TestLostCalls: that masters have not answered some calls, even all that were asking, is told to nobody else while they answer others.
func TestLostCalls(t *testing.T) {
	for _, lost := range []int{1, 16} { // so many of a process ask for slots at a time
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const slots, calls = 40, 500
				broken := &lostCalls{most: lost, calls: make(map[string]bool)}
				var masters []redlock.Master
				for _, server := range farServers(3) {
					masters = append(masters, redlock.MasterOf(brokenFor{server, broken}))
				}
				l := lockerOn(t, masters)
				synctest.Wait()
				var won, held, failed atomic.Int32
				atOnce(t, calls, func(ctx context.Context, _ int) (*redlock.Lock, error) {
					lock, err := l.TryLock(ctx, "a", redlock.WithConcurrency(slots))
					switch {
					case err == nil:
						won.Add(1)
						time.Sleep(time.Second)
					case errors.Is(err, redlock.ErrHeld):
						held.Add(1)
					default:
						failed.Add(1)
					}
					return lock, err
				})
				if int(won.Load()) < slots-lost || int(failed.Load()) != lost {
					t.Errorf("%d won, %d were told that all slots are taken, %d that there is no quorum", won.Load(), held.Load(), failed.Load())
				}
			})
		})
	}
}

// TestStreamInAnOutage: of calls that come one after the other while no master answers, none is told of a holder: there is none.
func TestStreamInAnOutage(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(l *redlock.Locker, i int, wait redlock.LockOption) (*redlock.Lock, error){
		"slots": func(l *redlock.Locker, _ int, wait redlock.LockOption) (*redlock.Lock, error) {
			return l.Lock(context.Background(), "a", redlock.WithConcurrency(3), wait)
		},
		"several keys": func(l *redlock.Locker, i int, wait redlock.LockOption) (*redlock.Lock, error) {
			return l.LockAll(context.Background(), [][]string{{"a", "b"}, {"b", "c"}, {"c", "a"}, {"b"}}[i%4], wait)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage()
				l := o.locker(t)
				o.begin()
				const n = 900
				var errs [n]error
				var calls sync.WaitGroup
				for i := range n {
					calls.Go(func() {
						time.Sleep(time.Duration(i) * 100 * time.Microsecond)
						_, errs[i] = call(l, i, redlock.WithWait(time.Duration(50+i%7*30)*time.Millisecond))
					})
				}
				calls.Wait()
				held := 0
				for _, err := range errs {
					if errors.Is(err, redlock.ErrHeld) || !errors.Is(err, redlock.ErrNoQuorum) {
						if held == 0 {
							t.Log(err)
						}
						held++
					}
				}
				if held > 0 {
					t.Errorf("%d of %d calls were told of a holder, or of nothing", held, n)
				}
				o.end()
			})
		})
	}
}

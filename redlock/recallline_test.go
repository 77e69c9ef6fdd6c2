package redlock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Calls with WithRecall that stand in line for one key get the result that the first of them meets: a thousand cost the masters what one
// does. Those without it take their turns.
func TestRecallInLine(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(time.Second), redlock.WithMaxWaiters(2000))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lock, err := l.Lock(t.Context(), "work", redlock.WithRecall())
	if err != nil {
		t.Fatal(err)
	}
	const calls = 1000
	var waiters sync.WaitGroup
	for range calls {
		waiters.Go(func() {
			var done *redlock.DoneError
			if _, err := l.Lock(t.Context(), "work", redlock.WithRecall()); !errors.As(err, &done) || string(done.Result) != "result" || done.Fence != lock.Fence() {
				t.Errorf("a call that waits: %v", err)
			}
		})
	}
	for deadline := time.Now().Add(bound); l.Status().Waiting < calls; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d calls wait", l.Status().Waiting, calls)
		}
	}
	waiters.Go(func() { // behind them
		lock, err := l.Lock(t.Context(), "work")
		if err != nil {
			t.Errorf("a call that asks for no result: %v", err)
			return
		}
		_ = lock.Unlock()
	})
	before := scripts(servers)
	unlockWith(t, lock, []byte("result"), time.Hour)
	waiters.Wait()
	if after := scripts(servers); after-before > calls/10 {
		t.Errorf("%d commands for %d calls", after-before, calls)
	}
}

// scripts returns how many scripts the servers have run.
func scripts(servers []*redistest.Server) (sum int) {
	for _, s := range servers {
		sum += commands(s)
	}
	return sum
}

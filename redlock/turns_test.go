package redlock_test

import (
	"context"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestTurnsHaveRequests: for which request a key is held, or waited for, its process tells at once, and any other after some seconds.
func TestTurnsHaveRequests(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one, two, third := simLocker(t, net.Masters(), redlock.WithInstance("one")), simLocker(t, net.Masters(), redlock.WithInstance("two")), simLocker(t, net.Masters())
		pay := &inspect.Request{Method: "POST", Path: "/orders/42/\"pay\"\n", ID: "r1", TraceID: "t1"}
		again := &inspect.Request{Method: "PUT", Path: "/orders/42"}
		const key = "order:42 \xff\n"
		began := time.Now()
		lock := mustLock(t, one, key, redlock.WithLabel("pay"), withRequest(pay))
		if keys := inspect.Keys(one, ""); len(keys) != 1 || keys[0].Request != pay {
			t.Errorf("%+v", keys)
		}
		waits := make(chan error, 1)
		go func() {
			got, err := two.Lock(t.Context(), key, redlock.WithLabel("put"), withRequest(again))
			if err == nil {
				err = got.Unlock()
			}
			waits <- err
		}()
		eventually(t, bound, "the other waits", func() bool { return two.Status().Waiting == 1 })
		if seen := mustInspect(t, one, key); seen.Turn == nil || seen.Turn.Label != "pay" || !reflect.DeepEqual(seen.Turn.Request, pay) {
			t.Errorf("its own process: %+v", seen.Turn)
		}
		var seen *inspect.View
		eventually(t, bound, "a third process sees both requests", func() bool {
			seen = mustInspect(t, third, key)
			return seen.Turn != nil && len(seen.Masters[0].Queue) == 1 && seen.Masters[0].Queue[0].Turn != nil
		})
		if turn := seen.Turn; seen.Holder != "one" || turn.Label != "pay" || !reflect.DeepEqual(turn.Request, pay) || turn.Since.Before(began.Truncate(time.Millisecond)) || turn.Since.After(time.Now()) {
			t.Errorf("holder %s: %+v", seen.Holder, turn)
		}
		if w := seen.Masters[0].Queue[0]; w.Process != "two" || w.Turn.Label != "put" || w.Turn.Waiting != 1 || !reflect.DeepEqual(w.Turn.Request, again) {
			t.Errorf("waiter %+v: %+v", w, w.Turn)
		}
		mustUnlock(t, lock)
		if err := <-waits; err != nil {
			t.Error(err)
		}
		short := mustLock(t, one, key) // another turn, of which nobody has been told yet
		if seen := mustInspect(t, third, key); seen.Held && seen.Fence == short.Fence() && seen.Turn != nil && seen.Turn.Label != "" {
			t.Errorf("of the turn before: %+v", seen.Turn)
		}
		mustUnlock(t, short)
	})
}

// TestCallsInLine: each call that waits is known by its request, in the process of the holder and in another, there and elsewhere.
func TestCallsInLine(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		lockers := []*redlock.Locker{simLocker(t, net.Masters(), redlock.WithInstance("one")), simLocker(t, net.Masters(), redlock.WithInstance("two"))}
		third := simLocker(t, net.Masters())
		ctx, leave := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		defer calls.Wait()
		defer leave()
		lock := mustLock(t, lockers[0], "key", withRequest(&inspect.Request{ID: "holder"}))
		defer mustUnlock(t, lock)
		for i := range 30 {
			l, place := lockers[i%2], i/2
			calls.Go(func() {
				_, _ = l.Lock(ctx, "key", redlock.WithLabel("pay"), withRequest(&inspect.Request{ID: strconv.Itoa(place)}))
			})
			eventually(t, bound, "it stands in line", func() bool { return l.Status().Waiting == place+1 })
		}
		requireLine := func(where string, line []inspect.Call, first, n int) {
			t.Helper()
			if len(line) != n {
				t.Fatalf("%s: %d calls in line, want %d", where, len(line), n)
			}
			for i, c := range line {
				if c.Label != "pay" || c.Since.IsZero() || c.Request == nil || c.Request.ID != strconv.Itoa(first+i) {
					t.Errorf("%s: at %d: %+v %+v", where, i, c, c.Request)
				}
			}
		}
		requireLine("behind the holder", inspect.Keys(lockers[0], "")[0].Line, 0, 15)
		requireLine("behind the first that waits", inspect.Keys(lockers[1], "")[0].Line, 1, 14)
		requireLine("behind the holder, at once", mustInspect(t, lockers[0], "key").Turn.Line, 0, 15)
		var seen *inspect.View
		eventually(t, bound, "a third process sees both lines", func() bool {
			seen = mustInspect(t, third, "key")
			queue := seen.Masters[0].Queue
			return seen.Turn != nil && len(seen.Turn.Line) == 15 && len(queue) == 1 && queue[0].Turn != nil && queue[0].Turn.Waiting == 15
		})
		requireLine("behind the holder, elsewhere", seen.Turn.Line, 0, 15)
		first := seen.Masters[0].Queue[0].Turn
		requireLine("the first that waits, elsewhere", []inspect.Call{first.Call}, 0, 1)
		requireLine("behind it, elsewhere", first.Line, 1, 14)
	})
}

package redlock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

func endless() time.Time { return time.Time{} }

// begins counts how many attempts may begin now.
func (p *pace) begins() (n int) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for len(p.places) > 0 && p.begin(ended, nil, endless) {
		n++
	}
	return n
}

// TestPace: an attempt that isn't answered in time lowers the bound, down to the least, and as many answers as the bound raise it by one.
func TestPace(t *testing.T) {
	p := newPace()
	require := func(want int) {
		t.Helper()
		if n := p.begins(); n != want {
			t.Fatalf("%d attempts may be under way, want %d", n, want)
		}
	}
	end := func(n int, late bool) {
		for range n {
			p.end(late)
		}
	}
	require(firstPace)
	end(firstPace, true)
	require(leastPace)
	end(leastPace, true)
	require(leastPace)
	end(leastPace, false)
	require(leastPace + 1)
	if p.begin(context.Background(), nil, func() time.Time { return time.Now().Add(time.Millisecond) }) {
		t.Error("there was no place, and yet one after the time to wait for it")
	}
	for most := leastPace + 1; most < firstPace; most++ {
		end(most, false)
		require(most + 1)
	}
	for range mostPace - firstPace { // as if there had been many more answers
		p.places <- struct{}{}
	}
	p.most.Store(mostPace)
	require(mostPace - firstPace)
	end(mostPace, false)
	require(mostPace)
}

// TestPaceOfMany: none of many attempts waits for ever, whatever the others' ends are like, and no place is lost or made.
func TestPaceOfMany(t *testing.T) {
	p := newPace()
	var all sync.WaitGroup
	for i := range 8 * firstPace {
		all.Go(func() {
			for k := range 50 {
				if p.begin(context.Background(), nil, endless) {
					p.end((i+k)%7 == 0)
				}
			}
		})
	}
	all.Wait()
	if n, most := p.begins(), int(p.most.Load()); n != most || n < leastPace || n > mostPace {
		t.Errorf("%d attempts may be under way, by the bound %d", n, most)
	}
}

// TestPaceEndsWithItsContext: a call whose wait is over waits for no place.
func TestPaceEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace()
		p.begins()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p.begin(ctx, nil, endless) {
			t.Error("there was no place, and yet one after the context's end")
		}
	})
}

// TestPaceOfLateAttempts: attempts that masters don't answer in time lower the bound of their Locker.
func TestPaceOfLateAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(t, 1)
		l, err := New([]Master{hook.MasterOf(net.Addresses[0]).(Master)}, WithTimeout(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		lock, err := l.Lock(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		_ = lock.Unlock()
		net.Servers[0].Hang()
		var calls sync.WaitGroup
		for i := range firstPace / 2 {
			calls.Go(func() {
				if _, err := l.TryLock(t.Context(), fmt.Sprint(i)); err == nil {
					t.Error("a master that hangs has granted a lock")
				}
			})
		}
		calls.Wait()
		if most := l.pace.most.Load(); most != firstPace/2 {
			t.Errorf("%d attempts may be under way, want %d", most, firstPace/2)
		}
		net.Servers[0].Resume()
	})
}

// TestPaceOfResults: an attempt that meets a result gives its place back.
func TestPaceOfResults(t *testing.T) {
	masters, err := dialAll(func() inside.Access { return inside.Access{} }, "memory://")
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(masters)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 3 {
		if _, err := l.Once(t.Context(), "key", time.Hour, func(context.Context, *Lock) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if n, most := l.pace.begins(), int(l.pace.most.Load()); n != most {
		t.Errorf("%d attempts may be under way, by the bound %d", n, most)
	}
}

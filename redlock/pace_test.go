package redlock

import (
	"context"
	"sync"
	"testing"
	"time"
)

// begins counts how many attempts may begin now.
func (p *pace) begins() (n int) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for len(p.places) > 0 && p.begin(ended, 0) {
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
	if p.begin(context.Background(), time.Millisecond) {
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
				if p.begin(context.Background(), 0) {
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

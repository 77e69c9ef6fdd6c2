package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// TestAttempts follows a call that waits for another process: it is refused, asks again once it is subscribed, waits, and is woken.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(t, 3)
		open := func(opts ...Option) *Locker {
			time.Sleep(time.Millisecond) // one is the elder
			var masters []Master
			for _, a := range net.Addresses {
				masters = append(masters, Master{a})
			}
			l, err := New(masters, opts...)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		var mu sync.Mutex
		var seen []attempt
		holder, waiter := open(), open(WithObserver(Observer{Attempted: func(a fmt.Stringer) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, a.(attempt))
		}}))
		lock, err := holder.Lock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *Lock, 1)
		go func() {
			next, err := waiter.Lock(t.Context(), "key")
			if err != nil {
				t.Error(err)
			}
			got <- next
		}()
		time.Sleep(time.Second)
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		next := <-got
		fence := next.Fence()
		if err := errors.Join(next.Unlock(), waiter.Close(), holder.Close()); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i, a := range seen {
			t.Log(a)
			if a.Number != i+1 || len(a.Votes) != 3 || strings.Contains(a.String(), "key") && !strings.Contains(a.String(), "the key") {
				t.Errorf("attempt %d: %+v", i, a)
			}
		}
		last := len(seen) - 1
		if last < 1 {
			t.Fatalf("%d attempts are traced", len(seen))
		}
		before, won := seen[last-1], seen[last]
		if !errors.Is(before.Err, ErrHeld) || before.Wait == 0 || before.For != waitsFor[queued] || !slices.ContainsFunc(before.Votes, func(v vote.Ballot) bool { return v.Holder != "" }) {
			t.Errorf("before: %+v", before)
		}
		if won.Err != nil || won.Via != inside.ViaWoken || won.Fence != fence || !won.Votes[0].Granted && !won.Votes[1].Granted {
			t.Errorf("won: %+v", won)
		}
	})
}

// TestAttemptTellsWhoHasNoVote: a master that doesn't answer is in the line, with the reason.
func TestAttemptTellsWhoHasNoVote(t *testing.T) {
	seen := make(chan attempt, 1)
	l, err := Open([]string{"redis://127.0.0.1:1"}, WithObserver(Observer{Attempted: func(a fmt.Stringer) { seen <- a.(attempt) }}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _ = l.TryLock(context.Background(), "key")
	if a := <-seen; !errors.Is(a.Err, ErrNoQuorum) || a.Votes[0].Err == nil || !strings.Contains(a.String(), "has no vote: ") {
		t.Errorf("%+v", a)
	}
}

// TestNoObserverCostsNothing: where nobody wants to know.
func TestNoObserverCostsNothing(t *testing.T) {
	c, a := &call{shared: &shared{reporter: new(reporter)}}, &vote.Attempt{}
	if n := testing.AllocsPerRun(100, func() { c.trace(a, nil, 0, holding) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestVotes tells apart why a master hasn't granted a key.
func TestVotes(t *testing.T) {
	for reply, want := range map[protocol.Reply]string{
		{Status: protocol.StatusHeld, Holder: "TOKEN"}:       "has refused it for TO",
		{Status: protocol.StatusHeld}:                        "has refused it for another process that waits",
		{Status: protocol.StatusDone}:                        "remembers a result",
		{Status: protocol.StatusGranted, Fence: 7}:           "has granted it with fence 7",
		{Status: protocol.StatusHeld, Err: errors.New("no")}: "hasn't answered",
	} {
		acquire := &link.Command{Counted: reply.Err == nil}
		acquire.Reply = reply
		if got := vote.BallotOf("memory://", acquire).String(); got != want {
			t.Errorf("%+v: %q, want %q", reply, got, want)
		}
	}
}

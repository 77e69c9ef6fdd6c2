package redlock

import (
	"errors"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// suspended returns a time whose monotonic reading is that much later than its wall time, as in a process that was
// suspended meanwhile. No fake clock can do that.
func suspended(t *testing.T, at time.Time, asleep time.Duration) time.Time {
	t.Helper()
	(*struct { // time.Time: see its source
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at)).ext += int64(asleep)
	now := time.Now()
	if off := at.Sub(now) - at.Round(0).Sub(now.Round(0)) - asleep; off.Abs() > time.Minute {
		t.Fatal("time.Time has another layout than this test knows")
	}
	return at
}

// TestOverAfterSuspension: a lease has ended once the wall clock says so, although the monotonic clock stood still
// while the host was suspended, and the other way round.
func TestOverAfterSuspension(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name string
		end  time.Time
		want bool
	}{
		{"valid", now.Add(time.Hour), false},
		{"over", now.Add(-time.Hour), true},
		{"over by the wall clock alone", suspended(t, now.Add(-time.Minute), time.Hour), true},
		{"over by the monotonic clock alone", suspended(t, now.Add(time.Minute), -time.Hour), true},
	} {
		if vote.Past(c.end) != c.want {
			t.Errorf("%s: past is %v", c.name, !c.want)
		}
	}

	lock := heldInMemory(t, 1, WithMaxTTL(time.Hour), WithTTL(time.Hour))
	lock.mu.Lock()
	lock.until = suspended(t, now.Add(-time.Minute), time.Hour)
	r := &renewal{lock: lock, start: now}
	lock.renewal = r
	lock.mu.Unlock()
	if err := lock.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("error %v after the suspension, want ErrLost", err)
	}
	r.Receive(&link.Command{Command: protocol.Command{Op: protocol.OpExtend, Reply: protocol.Reply{Status: protocol.StatusGranted}}})
	if r.stored > 0 {
		t.Error("a lease that was over while the process was suspended is renewed")
	}
	lock.renew(now.Add(lock.attempt.TTL)) // as the keeper does, if it is the first to wake up
	<-lock.Context().Done()               // not only when the monotonic clock has reached the end, too: in an hour
	if err := lock.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("ended with %v, want ErrLost", err)
	}
}

// heldInMemory returns a lock on so many masters in memory.
func heldInMemory(t *testing.T, masters int, opts ...Option) *Lock {
	t.Helper()
	all := make([]Master, masters)
	for i := range all {
		all[i] = Master{newMemory(fmt.Sprint(i), time.Now)}
	}
	l, err := New(all, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lock, err := l.TryLock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// TestLateRepliesOfARenewal: a reply proves the lease until its round began plus the TTL, whenever it comes, unless the master has said
// something since. The lock is valid for as long as a quorum has the lease, whichever rounds that is known from.
func TestLateRepliesOfARenewal(t *testing.T) {
	lock := heldInMemory(t, 3)
	began := lock.attempt.Start
	lease := lock.Until().Sub(began)
	rounds := make([]*renewal, 6)
	for i := range rounds {
		rounds[i] = &renewal{lock: lock, start: began.Add(time.Duration(i) * time.Second)}
	}
	for _, reply := range []struct {
		master, round int
		status        protocol.Status
		want          int // the round that the lease counts from now
	}{
		{0, 3, protocol.StatusGranted, 0},  // the others have granted it, and no more
		{1, 1, protocol.StatusGranted, 1},  // a quorum: 0 from round 3 on, 1 from round 1 on
		{2, 2, protocol.StatusGranted, 2},  // late, and from another round than each other
		{1, 3, protocol.StatusGranted, 3},  // the whole round, at last
		{2, 1, protocol.StatusGranted, 3},  // nothing is shortened
		{1, 5, protocol.StatusNotOwner, 3}, // what is proved stays so, but 1 proves no more of it
		{1, 4, protocol.StatusGranted, 3},  // it has lost the lease since
		{2, 4, protocol.StatusGranted, 3},  // alone
		{0, 5, protocol.StatusGranted, 4},  // 0 and 2
	} {
		rounds[reply.round].Receive(&link.Command{Master: reply.master, Command: protocol.Command{Op: protocol.OpExtend, Reply: protocol.Reply{Status: reply.status}}})
		if got := lock.Until().Sub(began) - lease; got != time.Duration(reply.want)*time.Second {
			t.Errorf("after reply %v: the lease counts from %v, want from round %d", reply, got, reply.want)
		}
	}
	if err := lock.Err(); err != nil {
		t.Error(err)
	}
}

// TestHopelessRound: a round is followed by another before its time only if it can't renew the lease any more.
func TestHopelessRound(t *testing.T) {
	lock := heldInMemory(t, 3)
	for _, c := range []struct {
		answered, stored int
		want             bool
	}{{0, 0, false}, {1, 0, false}, {2, 0, true}, {2, 1, false}, {3, 1, true}, {3, 2, false}} {
		if r := (&renewal{lock: lock, answered: c.answered, stored: c.stored}); r.hopeless() != c.want {
			t.Errorf("%d have answered, %d of them renewed: hopeless is %v", c.answered, c.stored, !c.want)
		}
	}
}

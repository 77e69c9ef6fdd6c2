package redlock

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
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
		if past(c.end) != c.want {
			t.Errorf("%s: past is %v", c.name, !c.want)
		}
	}

	l, err := New([]Master{NewMemoryMaster("")}, WithMaxTTL(time.Hour), WithTTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lock, err := l.TryLock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
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
	lock.renew(now.Add(lock.attempt.ttl)) // as the keeper does, if it is the first to wake up
	<-lock.Context().Done()               // not only when the monotonic clock has reached the end, too: in an hour
	if err := lock.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("ended with %v, want ErrLost", err)
	}
}

// TestLateRepliesOfARenewal: the replies of a round don't count once the next has begun. They would shorten the
// lease again, if the next round has renewed it.
func TestLateRepliesOfARenewal(t *testing.T) {
	l, err := New([]Master{NewMemoryMaster("a"), NewMemoryMaster("b"), NewMemoryMaster("c")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lock, err := l.TryLock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	granted := &link.Command{Command: protocol.Command{Op: protocol.OpExtend, Reply: protocol.Reply{Status: protocol.StatusGranted}}}
	first, second := &renewal{lock: lock, start: time.Now()}, &renewal{lock: lock, start: time.Now().Add(time.Second)}
	lock.mu.Lock()
	lock.renewal = second
	lock.mu.Unlock()
	first.Receive(granted)
	second.Receive(granted)
	second.Receive(granted)
	renewed := lock.Until()
	first.Receive(granted)
	if until := lock.Until(); until.Before(renewed) {
		t.Errorf("the lease ends %v earlier than it was renewed to", renewed.Sub(until))
	}
}

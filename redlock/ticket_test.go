package redlock_test

import (
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestFirstTicket: a process whose clock is a minute behind gets its place by the master's clock from its first
// call on, although no master has reported its time when that call comes.
func TestFirstTicket(t *testing.T) {
	servers, set := withFakedClock(t)
	set(time.Minute, 0)
	urls := redistest.URLs(servers[:1])
	held := mustLock(t, newLocker(t, urls), "key")
	fresh := newLocker(t, urls)
	waiter := make(chan *redlock.Lock)
	go func() { waiter <- mustLock(t, fresh, "key") }()
	var ticket time.Time
	eventually(t, bound, "a ticket", func() bool {
		queue := servers[0].Client().ZRangeWithScores(t.Context(), redisKey("key")+":queue", 0, 0).Val()
		for _, at := range queue {
			ticket = time.UnixMicro(int64(at.Score))
		}
		return len(queue) > 0
	})
	if off := time.Until(ticket) - time.Minute; off.Abs() > time.Minute/2 {
		t.Errorf("the ticket is %v off the master's clock", off)
	}
	mustUnlock(t, held)
	mustUnlock(t, <-waiter)
}

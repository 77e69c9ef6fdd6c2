package redlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

const (
	subscriptionLinger = 5 * time.Second        // how long the subscriptions outlive the last call that waits
	resubscribeGap     = 250 * time.Millisecond // the time between two attempts to subscribe
)

// subscriptions are a Locker's subscriptions to wake-ups, one on each master. They exist while calls wait, and for subscriptionLinger longer, because
// the next call that waits often comes soon.
type subscriptions struct {
	voters *vote.Masters
	gates  *gates
	name   string
	logger *slog.Logger

	mu      sync.Mutex
	waiting int // calls that wait for wake-ups
	linger  *time.Timer
	stop    context.CancelFunc // nil while there are no subscriptions
	settled chan struct{}      // closed when each master has confirmed or refused its subscription
	running *sync.WaitGroup    // the current subscriptions, or the last ones
}

// begin counts a call that waits, and subscribes if it is the first. After settled is closed, the call misses no wake-up of a master that has
// confirmed its subscription.
func (u *subscriptions) begin() (settled <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting++
	if u.stop == nil {
		u.subscribe()
	}
	return u.settled
}

func (u *subscriptions) subscribe() {
	ctx, stop := context.WithCancel(context.Background())
	before, running, settled := u.running, &sync.WaitGroup{}, make(chan struct{})
	var pending atomic.Int64
	pending.Store(int64(len(u.voters.Streams)))
	for _, s := range u.voters.Streams {
		running.Go(func() {
			if before != nil {
				before.Wait() // the end of an old subscription could also end a new one to the same channel
			}
			u.keep(ctx, s, sync.OnceFunc(func() {
				if pending.Add(-1) == 0 {
					close(settled)
				}
			}))
		})
	}
	u.stop, u.running, u.settled = stop, running, settled
}

func (u *subscriptions) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting--
	if u.waiting == 0 {
		if u.linger == nil {
			u.linger = time.AfterFunc(subscriptionLinger, u.unsubscribe)
		} else {
			u.linger.Reset(subscriptionLinger)
		}
	}
}

func (u *subscriptions) unsubscribe() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting == 0 && u.stop != nil {
		u.stop()
		u.stop = nil
	}
}

func (u *subscriptions) end() {
	u.mu.Lock()
	if u.linger != nil {
		u.linger.Stop()
	}
	running := u.running
	u.mu.Unlock()
	u.unsubscribe()
	if running != nil {
		running.Wait()
	}
}

func (u *subscriptions) keep(ctx context.Context, s vote.Stream, settled func()) {
	refused := false
	for ctx.Err() == nil {
		err := s.Listen(ctx, u.name, func() {
			settled()
			u.gates.wakeAll() // earlier wake-ups are lost
		}, func(w protocol.WakeUp) { u.wake(s, w) })
		settled()
		if errors.Is(err, protocol.ErrRefused) && !refused {
			refused = true
			u.logger.Warn("master denies SUBSCRIBE, so it can wake no call that waits: grant this user +subscribe and the channels of the prefix (see docs/masters.md)", "master", s.String(), "error", err)
		}
		timer := time.NewTimer(jitter(resubscribeGap))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// wake passes a master's wake-up on to the call that asks for the key. If no call of this process wants the key any more, wake withdraws the ticket,
// and the master wakes the next process in the queue.
func (u *subscriptions) wake(s vote.Stream, w protocol.WakeUp) {
	u.gates.wake(w.Key, w.Call, func() {
		name := u.name
		if w.Call > 0 {
			name = protocol.CallName(name, w.Call)
		}
		s.At(w.Key).Withdraw(w.Key, name, w.Ticket)
	})
}

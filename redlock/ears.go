package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	lingering = 5 * time.Second        // for which the masters still wake a Locker that doesn't wait any more
	listenGap = 250 * time.Millisecond // between attempts to subscribe
)

// ears are a Locker's subscriptions: one on each master, from the first call that waits until a while
// after the last.
type ears struct {
	locker *Locker

	mu      sync.Mutex
	waiting int // calls that wait for a wake-up
	linger  *time.Timer
	stop    context.CancelFunc // nil while there are no subscriptions
	settled chan struct{}      // closed when each master has subscribed us, or failed to
	running *sync.WaitGroup    // the subscriptions, or the last ones
}

// open begins a wait: the masters that answer wake us from when the channel is closed.
func (e *ears) open() (settled <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting++
	if e.stop == nil {
		e.subscribe()
	}
	return e.settled
}

func (e *ears) subscribe() {
	ctx, stop := context.WithCancel(context.Background())
	before, running, settled := e.running, &sync.WaitGroup{}, make(chan struct{})
	var pending atomic.Int64
	pending.Store(int64(len(e.locker.streams)))
	for _, s := range e.locker.streams {
		running.Go(func() {
			if before != nil {
				before.Wait() // they go by the same name
			}
			e.listen(ctx, s, sync.OnceFunc(func() {
				if pending.Add(-1) == 0 {
					close(settled)
				}
			}))
		})
	}
	e.stop, e.running, e.settled = stop, running, settled
}

// hear says whether any master wakes us.
func (e *ears) hear() bool {
	return slices.ContainsFunc(e.locker.streams, func(s *stream) bool { return s.hears.Load() })
}

// close ends a wait.
func (e *ears) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting--
	if e.waiting == 0 {
		if e.linger == nil {
			e.linger = time.AfterFunc(lingering, e.rest)
		} else {
			e.linger.Reset(lingering)
		}
	}
}

// rest ends the subscriptions, unless somebody waits again.
func (e *ears) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == 0 && e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

// end ends the subscriptions for good.
func (e *ears) end() {
	e.mu.Lock()
	if e.linger != nil {
		e.linger.Stop()
	}
	running := e.running
	e.mu.Unlock()
	e.rest()
	if running != nil {
		running.Wait()
	}
}

// listen is subscribed to a master until ctx ends.
func (e *ears) listen(ctx context.Context, s *stream, settled func()) {
	l, refused := e.locker, false
	for ctx.Err() == nil {
		err := s.master.Listen(ctx, l.name, func() {
			s.hears.Store(true)
			settled()
			l.gates.wakeAll() // what was said before is lost
		}, func(w WakeUp) { l.wakeUp(s, w) })
		s.hears.Store(false)
		settled()
		if errors.Is(err, errRefused) && !refused {
			refused = true
			l.logger.Warn("master refuses to wake those who wait for a lock: they poll; allow this user SUBSCRIBE, and the channels of the prefix", "master", s.master.String(), "error", err)
		}
		timer := time.NewTimer(listenGap)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// wakeUp has the head of a key's gate try again. A ticket that nobody here has any more is given back,
// and with it the wake-up goes to the next.
func (l *Locker) wakeUp(s *stream, w WakeUp) {
	l.gates.wake(w.Key, func() {
		nothing := &call{Command: Command{Op: OpAcquire}}
		s.push(&call{Command: Command{Op: OpRelease, Key: w.Key, Process: l.name, Ticket: w.Ticket}, acquire: nothing, sure: true})
	})
}

package redlock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	lateTime  = time.Minute // how long a master that missed a result may take to come back
	lateGap   = 250 * time.Millisecond
	lateBytes = 16 << 20 // of results that masters have missed
	lateMost  = 20_000   // as many
	lateBatch = 64       // on their way to one master
	lateLog   = 10 * time.Second
)

// lateResults hands results which a quorum remembers to the masters that have missed them, in the background: a master that hung
// for a second has them again soon after, whether anybody asks for them or not. What finds no room, or has waited for too long,
// is counted and logged: it is found all the same, for as long as a quorum has it.
type lateResults struct {
	locker  *Locker
	running sync.WaitGroup
	came    chan struct{}

	mu       sync.Mutex
	waiting  [][]*lateResult // by master, in order
	sent     []sentResults   // by master
	bytes    int
	number   int
	active   bool
	closing  bool
	dropped  uint64
	reported uint64    // of those
	logged   time.Time // when
}

// lateResult is a result that one master has missed.
type lateResult struct {
	queue  *lateResults
	master int
	key    string
	result protocol.Result
	ends   time.Time // when nobody needs it any more
	until  time.Time // when it is given up

	forgotten atomic.Bool
}

// sentResults are those that are on their way.
type sentResults map[*lateResult]struct{}

func newLateResults(l *Locker) *lateResults {
	n := len(l.streams)
	q := &lateResults{locker: l, came: make(chan struct{}, 1), waiting: make([][]*lateResult, n), sent: make([]sentResults, n)}
	for i := range q.sent {
		q.sent[i] = make(sentResults)
	}
	return q
}

// add takes a result that a quorum remembers, for masters that don't. It is kept for this long from now.
func (q *lateResults) add(key string, result *protocol.Result, masters ...int) {
	now := time.Now()
	ends := now.Add(result.Keep)
	if result.Keep == 0 { // the master is to forget what it remembers
		ends = now.Add(lateTime)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, master := range masters {
		switch {
		case q.closing:
			continue
		case q.bytes+len(result.Data) > lateBytes || q.number >= lateMost:
			q.dropped++
			continue
		}
		q.bytes += len(result.Data)
		q.number++
		q.waiting[master] = append(q.waiting[master], &lateResult{queue: q, master: master, key: key, result: *result, ends: ends, until: now.Add(lateTime)})
	}
	if !q.active && q.number > 0 && !q.closing {
		q.active = true
		q.running.Go(q.run)
	}
	if q.active {
		link.Signal(q.came)
	}
}

// tell logs now and then how many results masters don't get.
func (q *lateResults) tell() {
	now := time.Now()
	q.mu.Lock()
	news := q.dropped - q.reported
	if news == 0 || now.Sub(q.logged) < lateLog {
		q.mu.Unlock()
		return
	}
	q.logged, q.reported = now, q.dropped
	q.mu.Unlock()
	q.locker.logger.Warn("masters that have missed results don't get them: a quorum has them, but if one more master loses its data, the work may run again", "results", news)
}

// count returns how many results masters have missed that they don't get.
func (q *lateResults) count() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// forget drops the results of a key, which is about to be forgotten. One that is on its way isn't sent again.
func (q *lateResults) forget(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.waiting {
		q.waiting[i] = slices.DeleteFunc(q.waiting[i], func(r *lateResult) bool {
			if r.key == key {
				q.leave(r)
			}
			return r.key == key
		})
		for r := range q.sent[i] {
			if r.key == key {
				r.forgotten.Store(true)
			}
		}
	}
}

func (q *lateResults) leave(r *lateResult) {
	q.bytes -= len(r.result.Data)
	q.number--
}

// run sends what waits, until nothing does.
func (q *lateResults) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.came:
		case <-timer.C:
			timer.Reset(lateGap)
		case <-q.locker.closing:
			return
		}
		for master, s := range q.locker.streams {
			if !s.Usable() {
				continue
			}
			for _, r := range q.take(master) {
				q.send(r)
			}
		}
		ended := q.ended()
		if q.tell(); ended {
			return
		}
	}
}

// ended drops what has waited for too long, and reports whether nothing waits any more.
func (q *lateResults) ended() bool {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.waiting {
		q.waiting[i] = slices.DeleteFunc(q.waiting[i], func(r *lateResult) bool {
			over := now.After(r.ends)
			if now.After(r.until) && !over {
				q.dropped++
				over = true
			}
			if over {
				q.leave(r)
			}
			return over
		})
	}
	q.active = q.number > 0
	return !q.active
}

// take returns the next results for a master.
func (q *lateResults) take(master int) []*lateResult {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting[master]), lateBatch-len(q.sent[master]))
	taken := slices.Clone(q.waiting[master][:n])
	q.waiting[master] = slices.Delete(q.waiting[master], 0, n)
	for _, r := range taken {
		q.sent[master][r] = struct{}{}
	}
	return taken
}

func (q *lateResults) send(r *lateResult) {
	result := r.result
	if result.Keep > 0 {
		result.Keep = max(time.Until(r.ends), time.Millisecond)
	}
	q.locker.laneOf(r.master, r.key).Push(&link.Command{
		Command:   protocol.Command{Op: protocol.OpStore, Key: r.key, Result: &result, Anyway: true},
		Master:    r.master,
		Abandoned: &r.forgotten,
		To:        r,
	})
}

// Receive takes the master's reply. If it has none, it is asked again later.
func (r *lateResult) Receive(c *link.Command) {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.sent[r.master], r)
	if c.Reply.Err == nil || r.forgotten.Load() {
		q.leave(r)
		if len(q.waiting[r.master]) > 0 {
			link.Signal(q.came)
		}
		return
	}
	q.waiting[r.master] = append(q.waiting[r.master], r)
}

// end gives up what waits.
func (q *lateResults) end() {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.running.Wait()
}

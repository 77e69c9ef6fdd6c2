// Package notices has queues in front of receivers of events, such as a log. A receiver may be slow, block or panic, and still holds up nobody.
package notices

import (
	"sync"
	"time"
)

const (
	Most  = 1 << 14     // the most notices that wait for one receiver: each lost lease causes up to two
	idle  = 64          // an idle queue keeps memory for this many notices
	grace = time.Second // how long Close waits for a receiver that is slow, or blocks
)

// Queue passes notices on to a receiver that may be slow, block or panic. The caller of Push never waits for the receiver. One goroutine passes the
// notices on in their order; it runs only while there are any. Notices that find no room are dropped and counted.
type Queue[T any] struct {
	Receive func(T)
	Missed  func(n uint64) // called when all notices are delivered, with how many were dropped since the last call, if any were

	mu      sync.Mutex
	queue   []T
	running bool          // there is a goroutine that empties the queue
	ended   chan struct{} // closed when this goroutine has ended; nil before Close
	dropped uint64
	untold  uint64 // dropped notices of which Missed was not told yet
}

// Push has a notice delivered, or drops it if there is no room. After Close, Push itself delivers the notice.
func (n *Queue[T]) Push(notice T) {
	n.mu.Lock()
	closed := n.ended != nil
	switch {
	case closed:
	case len(n.queue) == Most:
		n.dropped, n.untold = n.dropped+1, n.untold+1
	default:
		n.queue = append(n.queue, notice)
		if !n.running {
			n.running = true
			go n.deliver()
		}
	}
	n.mu.Unlock()
	if closed {
		n.hand(notice)
	}
}

// deliver empties the queue.
func (n *Queue[T]) deliver() {
	for batch, untold := n.take(nil); len(batch) > 0 || untold > 0; batch, untold = n.take(batch) {
		for _, notice := range batch {
			n.hand(notice)
		}
		if len(batch) == 0 {
			survive(func() { n.Missed(untold) })
		}
	}
}

// take returns all queued notices or, if there are none, how many were dropped. If none were dropped either, the goroutine ends. The queue uses the
// memory of the last batch again.
func (n *Queue[T]) take(last []T) (batch []T, untold uint64) {
	clear(last)
	n.mu.Lock()
	defer n.mu.Unlock()
	batch, n.queue = n.queue, last[:0]
	switch {
	case len(batch) > 0:
		return batch, 0
	case n.untold > 0:
		untold, n.untold = n.untold, 0
		return batch, untold
	}
	n.running = false
	if cap(n.queue) > idle {
		n.queue = nil
	}
	if n.ended != nil {
		close(n.ended)
	}
	return nil, 0
}

// hand calls the receiver. If the receiver panics, the notice counts as dropped.
func (n *Queue[T]) hand(notice T) {
	if !survive(func() { n.Receive(notice) }) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dropped, n.untold = n.dropped+1, n.untold+1
	}
}

// survive calls f and reports whether f has returned without a panic. A panic in a log or in metrics must not end the process that holds the locks.
func survive(f func()) (returned bool) {
	defer func() { _ = recover() }()
	f()
	return true
}

// Close waits until all notices are delivered, for at most the grace. If the receiver blocks, the goroutine ends when the receiver returns.
func (n *Queue[T]) Close() {
	n.mu.Lock()
	n.ended = make(chan struct{})
	if !n.running {
		close(n.ended)
	}
	n.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-n.ended:
	case <-timer.C:
	}
}

// Count returns how many notices were dropped.
func (n *Queue[T]) Count() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropped
}

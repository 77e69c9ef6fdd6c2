// Package notices has queues in front of those who are told what happens, such as a log: they may be slow, block or panic, and
// hold up nobody.
package notices

import (
	"sync"
	"time"
)

const (
	Most  = 1 << 14     // that wait for one receiver: each lost lease causes up to two
	idle  = 64          // for so many a queue keeps its memory
	grace = time.Second // how long Close waits for a receiver that is slow, or blocks
)

// Queue passes what happens on to a receiver that may be slow, block or panic. Who pushes never waits for it. A receiver gets its
// notices in their order from one goroutine, which there is only while there are any. Those that find no room are dropped and
// counted.
type Queue[T any] struct {
	Receive func(T)
	Missed  func(n uint64) // called when all is delivered, with how many were dropped since the last time, if any were

	mu      sync.Mutex
	queue   []T
	running bool          // there is a goroutine that empties the queue
	ended   chan struct{} // closed when that has ended; nil before Close
	dropped uint64
	untold  uint64 // those of them of which missed doesn't know
}

// Push has a notice delivered, or drops it. After Close its caller delivers it.
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

// take returns all that is queued or, if nothing is, how many were dropped. If there is nothing to do at all the goroutine
// ends. The last batch is reused for its room.
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

// hand calls the receiver. A notice with which it panics counts as dropped.
func (n *Queue[T]) hand(notice T) {
	if !survive(func() { n.Receive(notice) }) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dropped, n.untold = n.dropped+1, n.untold+1
	}
}

// survive calls f and reports whether it has returned. What only counts or writes down what happens must not end, by a panic, the
// process that holds the locks.
func survive(f func()) (returned bool) {
	defer func() { _ = recover() }()
	f()
	return true
}

// Close waits until all is delivered, but not for long: a receiver that blocks keeps the goroutine, which ends when that returns.
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

package redlock

import (
	"sync"
	"time"
)

const (
	maxNotices  = 1 << 14     // that wait for one receiver: each lost lease causes up to two
	idleNotices = 64          // for so many a queue keeps its memory
	lastNotices = time.Second // how long Close waits for a receiver that is slow, or blocks
)

// notices passes what happens on to a receiver that may be slow, block or panic: to the log, or to the Observer. Who pushes
// never waits for it. A receiver gets its notices in their order from one goroutine, which there is only while there are
// any. Those that find no room are dropped and counted.
type notices[T any] struct {
	receive func(T)
	missed  func(n uint64) // called when all is delivered, with how many were dropped since the last time, if any were

	mu      sync.Mutex
	queue   []T
	running bool          // there is a goroutine that empties the queue
	idle    chan struct{} // closed when that has ended; nil before close
	dropped uint64
	untold  uint64 // those of them of which missed doesn't know
}

// push has a notice delivered, or drops it. After close its caller delivers it.
func (n *notices[T]) push(notice T) {
	n.mu.Lock()
	closed := n.idle != nil
	switch {
	case closed:
	case len(n.queue) == maxNotices:
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
func (n *notices[T]) deliver() {
	for batch, untold := n.take(nil); len(batch) > 0 || untold > 0; batch, untold = n.take(batch) {
		for _, notice := range batch {
			n.hand(notice)
		}
		if len(batch) == 0 {
			survive(func() { n.missed(untold) })
		}
	}
}

// take returns all that is queued or, if nothing is, how many were dropped. If there is nothing to do at all the goroutine
// ends. The last batch is reused for its room.
func (n *notices[T]) take(last []T) (batch []T, untold uint64) {
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
	if cap(n.queue) > idleNotices {
		n.queue = nil
	}
	if n.idle != nil {
		close(n.idle)
	}
	return nil, 0
}

// hand calls the receiver. A notice with which it panics counts as dropped.
func (n *notices[T]) hand(notice T) {
	if !survive(func() { n.receive(notice) }) {
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

// close waits until all is delivered, but not for long: a receiver that blocks keeps the goroutine, which ends when that returns.
func (n *notices[T]) close() {
	n.mu.Lock()
	n.idle = make(chan struct{})
	if !n.running {
		close(n.idle)
	}
	n.mu.Unlock()
	timer := time.NewTimer(lastNotices)
	defer timer.Stop()
	select {
	case <-n.idle:
	case <-timer.C:
	}
}

// count returns how many notices were dropped.
func (n *notices[T]) count() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropped
}

package redlock

import "sync/atomic"

// simDirect is what lets a caller wait for its own reply on a simConn.
type simDirect struct {
	waits     atomic.Bool // a caller does
	interrupt atomic.Pointer[chan struct{}]
}

// Await waits for the reply to the oldest batch.
func (c *simConn) Await() bool {
	if c.direct.waits.Swap(true) {
		panic("two wait on one connection at once")
	}
	defer c.direct.waits.Store(false)
	return c.await(*c.direct.interrupt.Load())
}

// Interrupt ends Await.
func (c *simConn) Interrupt() {
	if !c.route.process.world.mutant.patient {
		close(*c.direct.interrupt.Load())
	}
}

// Resume lets Wait and Await wait.
func (c *simConn) Resume() {
	if c.direct.waits.Load() {
		panic("a caller still waits on the connection")
	}
	next := make(chan struct{})
	c.direct.interrupt.Store(&next)
}

package redlock

import "sync"

// callGroup counts the calls that are running, until it is closed. The zero value is open.
type callGroup struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// enter counts a call, which must call leave at its end. It reports false if no call may begin any more.
func (c *callGroup) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

func (c *callGroup) leave() { c.running.Done() }

// close keeps further calls from beginning, and waits for those that are running.
func (c *callGroup) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

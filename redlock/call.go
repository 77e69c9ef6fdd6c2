package redlock

import (
	"errors"
	"sync/atomic"
	"time"
)

var errAbandoned = unsent(errors.New("given up before it was sent"))

// call is a Command on its way through a stream.
type call struct {
	Command
	master  int          // index of the master
	over    *atomic.Bool // acquire, extend: no longer wanted, don't send it any more
	former  *call        // acquire: the release of the lock before, which the same command does
	acquire *call        // release: the acquire that it undoes
	sure    bool         // release: send it even if the acquire had no effect
	until   time.Time    // release: repeated until acknowledged, or until the TTL has done it
	counted bool         // acquire: its attempt has the answer
	to      receiver     // gets the call when it is answered. May be nil
}

// receiver gets answered calls. It doesn't block.
type receiver interface{ receive(*call) }

func (c *call) deliver() {
	if to := c.to; to != nil {
		c.to = nil
		to.receive(c)
	}
}

// needless says whether a call need not be sent. An acquire whose attempt is over is answered here
// as unsent; its release comes later in the same queue and sees that.
func needless(c *call) bool {
	switch c.Op {
	case OpAcquire, OpExtend:
		if c.over.Load() {
			c.Reply.Err = errAbandoned
			return true
		}
	case OpRelease:
		acquired := c.acquire.Reply
		return !c.sure && (acquired.Status == StatusHeld || errors.Is(acquired.Err, errUnsent))
	}
	return false
}

// acknowledged says whether a release need not be repeated. Where the connection broke between
// acquire and release, the server may still read the acquire after the release: then only a
// deleted key is proof.
func acknowledged(release *call) bool {
	if release.Reply.Err != nil {
		return false
	}
	acquired := release.acquire.Reply.Err
	return acquired == nil || errors.Is(acquired, errRefused) || errors.Is(acquired, errUnsent) || release.Reply.Status == StatusReleased
}

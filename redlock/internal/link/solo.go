package link

import (
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// soloFrom is the number of batches after which callers count as alone: callers have sent these batches themselves, one after the other, with no
// other batch under way.
const soloFrom = 8

// solo lets a caller read the reply to its own command. It is for a single master, and for callers that call one after the other. Then waking the
// caller from the stream's reader would take as long as the master needs for the reply. Meanwhile the reader rests. At each look it checks whether
// anything was sent since the last look. It stops resting if nothing was, or as soon as another batch is under way. Then the reader waits for replies
// again, in place of a caller that still waits. So a master that hangs, a context that ends and Close delay nobody for longer than the time between
// two looks, and the reader notices the end of an idle connection.
//
// mu is the stream's. Callers of the methods hold it, and the methods unlock it while they wait.
type solo struct {
	mu       *sync.Mutex
	gap      time.Duration // the time between two looks of the reader; 0 if callers must never read
	underWay func() bool   // reports whether a batch has no reply yet
	row      int           // how many batches callers have sent themselves, one after the other
	rests    bool          // the reader rests
	reading  bool          // a caller reads its reply
	unread   chan struct{} // signals the reader that it must wait for replies again
}

func newSolo(mu *sync.Mutex, gap time.Duration, underWay func() bool) solo {
	return solo{mu: mu, gap: gap, underWay: underWay, unread: make(chan struct{}, 1)}
}

// rest lets callers read their replies as long as each of them is alone. It runs on the reader's goroutine.
func (o *solo) rest(direct protocol.Direct) {
	if direct == nil || o.row < soloFrom || o.underWay() {
		return
	}
	o.rests = true
	look := time.NewTicker(o.gap)
	defer look.Stop()
	for needed, before := false, 0; !needed && o.row != before; {
		before = o.row
		o.mu.Unlock()
		select {
		case <-look.C:
		case <-o.unread:
			needed = true
		}
		o.mu.Lock()
	}
	o.rests, o.row = false, 0
	if o.reading {
		direct.Interrupt()
	}
	for o.reading {
		o.mu.Unlock()
		<-o.unread
		o.mu.Lock()
	}
	direct.Resume()
}

// sentAlone is called after a caller has sent a command itself, with no other batch under way. If the reader rests, the caller waits for the whole
// reply, and reads it.
func (o *solo) sentAlone(can protocol.ConnCapabilities, read func()) {
	if o.gap > 0 && can.Prompt {
		o.row++
	}
	if !o.rests || can.Direct == nil || !o.underWay() {
		return
	}
	o.reading = true
	o.mu.Unlock()
	if can.Direct.Await() {
		read()
	}
	o.mu.Lock()
	o.reading = false
	if !o.rests || o.underWay() {
		Signal(o.unread)
	}
}

// sentForOthers is called after a batch was sent whose reply isn't for the sending goroutine.
func (o *solo) sentForOthers() {
	o.row = 0
	if o.rests && !o.reading {
		Signal(o.unread)
	}
}

package link

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestLaneDropsWhatNobodyNeeds: a result that is asked for twice, because the first master takes its time, is read once.
func TestLaneDropsWhatNobodyNeeds(t *testing.T) {
	n := newLane(unconnected())
	n.watchdog = time.AfterFunc(time.Hour, n.cancel)
	defer n.watchdog.Stop()
	over := new(atomic.Bool)
	over.Store(true)
	var replies []*Command
	n.queue = append(n.queue, &Command{Command: protocol.Command{Op: protocol.OpRecall}, Abandoned: over, To: receiverFunc(func(c *Command) { replies = append(replies, c) })})
	if c := n.next(); c != nil {
		t.Errorf("%v is sent", c.Op)
	}
	if len(replies) != 1 || replies[0].Reply.Err == nil {
		t.Errorf("%d are answered, want the one that was dropped", len(replies))
	}
}

package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// MaxResults bounds how many results may be under way at a time.
const MaxResults = 64

const (
	// laneRate is the slowest transfer, in bytes per second, for which the lane waits. At this rate the longest result takes 4 seconds.
	laneRate = 256 << 10
	laneMost = MaxResults * protocol.MaxResult // the most bytes of results on the way to one server, because it may hang
	laneIdle = 10 * time.Second                // how long an unused connection is kept
)

// Lane is a connection to one server that carries only results, so that locks never wait behind results. Commands on the lane have no order with
// commands on the stream, and need none: the master stores a result only if the key still has the token, or regardless of the holder. The connection
// is made when it is needed. It must lead to the server that the stream has reached.
//
//	push ──► queue ──► serve ──► flight ──► read
type Lane struct {
	stream  *Stream
	several bool // the master can have several connections; otherwise the stream sends the results
	ctx     context.Context
	cancel  func()
	running sync.WaitGroup
	work    chan struct{} // signals serve that there may be something to send

	mu       sync.Mutex
	queue    commands
	flight   commands // commands that were sent and not yet answered, the oldest first
	bytes    int      // the bytes of the results in queue and flight
	active   bool     // keep is running
	closing  bool
	run      string      // the run ID of the last server
	watchdog *time.Timer // ends the connection if replies don't come in time
	failed   error       // the reason why the last connection could not be made
	pause    time.Time   // until this time, commands fail and no connection is made
}

func newLane(s *Stream) *Lane {
	n := &Lane{stream: s, several: s.master.Capabilities().Several, work: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

var (
	errOtherServer = errors.New("another server has been reached for results than for locks")
	errLaneFull    = fmt.Errorf("results of %d MiB are on their way to this master already", laneMost>>20)
)

// KeyOfBeats is empty, because the stream has already asked the server.
func (*Lane) KeyOfBeats() string { return "" }

// Admit refuses a server that isn't the one that votes for the master, because no call would find a result there.
func (n *Lane) Admit(reached protocol.Server) error {
	if n.stream.seat.VotesAs() != reached.RunID {
		return errOtherServer
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.run = reached.RunID
	return nil
}

// Push sends a command. If the reply takes too long for the bytes of the command, the connection is closed.
func (n *Lane) Push(c *Command) {
	if !n.several {
		n.stream.Push(c)
		return
	}
	n.mu.Lock()
	err := n.refusal(c)
	if err == nil {
		n.queue = append(n.queue, c)
		n.bytes += c.resultBytes()
		if !n.active {
			n.active = true
			n.running.Go(n.keep)
		}
	}
	n.mu.Unlock()
	if err != nil {
		c.Reply.Err = protocol.Unsent(err)
		c.deliver()
		return
	}
	Signal(n.work)
}

// refusal returns the reason why the command can't be sent now, or nil. Callers hold mu.
func (n *Lane) refusal(c *Command) error {
	switch {
	case n.bytes+c.resultBytes() > laneMost:
		return errLaneFull
	case n.closing:
		return ErrClosed
	case time.Now().Before(n.pause):
		return n.failed
	}
	return nil
}

func (n *Lane) keep() {
	for {
		ctx, cancel := context.WithTimeout(n.ctx, n.stream.ConnectTime())
		c, err := n.stream.master.Connect(ctx, n)
		cancel()
		made := err == nil
		if made {
			err = n.serve(c)
		}
		if !n.over(made, err) {
			return
		}
	}
}

// over fails the commands in flight on a connection that has ended, or all commands if no connection could be made. It reports whether another
// connection is needed.
func (n *Lane) over(made bool, err error) (again bool) {
	n.mu.Lock()
	failed := slices.Clone(n.flight)
	n.flight.drop(len(n.flight))
	if !made || n.closing {
		failed = append(failed, n.queue...)
		n.queue.drop(len(n.queue))
		n.failed, n.pause = err, time.Now().Add(leastPause)
	}
	for _, c := range failed {
		n.bytes -= c.resultBytes()
	}
	n.active = len(n.queue) > 0
	again = n.active
	n.mu.Unlock()
	for _, c := range failed {
		c.Reply = protocol.Reply{Err: err}
		c.deliver()
	}
	return again
}

// serve sends queued commands until the connection ends. It returns nil if it has closed an idle connection.
func (n *Lane) serve(c protocol.Conn) error {
	defer context.AfterFunc(n.ctx, c.Close)()
	n.mu.Lock()
	n.watchdog = time.AfterFunc(time.Hour, c.Close)
	n.watch()
	n.mu.Unlock()
	defer n.watchdog.Stop()
	broken := make(chan error, 1)
	n.running.Go(func() { broken <- n.read(c) })
	idle := time.NewTimer(laneIdle)
	defer idle.Stop()
	for {
		if next := n.next(); next != nil {
			if _, err := c.Send([]*protocol.Command{&next.Command}); err != nil {
				c.Close()
				return fmt.Errorf("%w: %w", protocol.ErrBroken, <-broken)
			}
			idle.Reset(laneIdle)
			continue
		}
		select {
		case <-n.work:
		case err := <-broken:
			c.Close()
			return fmt.Errorf("%w: %w", protocol.ErrBroken, err)
		case <-idle.C:
			if n.idle() {
				c.Close()
				<-broken
				return nil
			}
			idle.Reset(laneIdle)
		}
	}
}

func (n *Lane) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.flight) == 0 && len(n.queue) == 0
}

// next takes the next command to send from the queue, or returns nil. It drops commands whose callers have left.
func (n *Lane) next() (next *Command) {
	var dropped []*Command
	n.mu.Lock()
	for next == nil && len(n.queue) > 0 {
		c := n.queue[0]
		n.queue.drop(1)
		if c.unneeded() {
			n.bytes -= c.resultBytes()
			dropped = append(dropped, c)
			continue
		}
		next = c
		if n.flight = append(n.flight, c); len(n.flight) == 1 {
			n.watch()
		}
	}
	n.mu.Unlock()
	for _, c := range dropped {
		c.Reply.Err = protocol.Unsent(errAbandoned)
		c.deliver()
	}
	return next
}

// watch sets the watchdog to the time within which the reply to the oldest command must begin to arrive. Callers hold mu.
func (n *Lane) watch() {
	n.watchdog.Stop()
	if len(n.flight) == 0 {
		return
	}
	n.watchdog.Reset(n.patience(n.flight[0].resultBytes()))
}

func (n *Lane) patience(bytes int) time.Duration {
	return n.stream.ConnectTime() + time.Duration(bytes)*time.Second/laneRate
}

func (n *Lane) read(c protocol.Conn) error {
	for {
		if err := c.Wait(); err != nil {
			return err
		}
		n.mu.Lock()
		if len(n.flight) == 0 {
			n.mu.Unlock()
			return protocol.ErrMalformed
		}
		oldest := n.flight[0]
		n.watchdog.Reset(n.patience(protocol.MaxResult))
		n.mu.Unlock()
		err := c.Receive([]*protocol.Command{&oldest.Command})
		n.mu.Lock()
		n.flight.drop(1)
		n.watch()
		run := n.run
		again := errors.Is(oldest.Reply.Err, protocol.ErrNotExecuted) && oldest.moves == 0
		if again { // the server doesn't have the script, so the command is sent again with the source
			oldest.moves, oldest.Reply = 1, protocol.Reply{}
			n.queue = append(n.queue, oldest)
		} else {
			n.bytes -= oldest.resultBytes()
		}
		n.mu.Unlock()
		switch {
		case again:
			Signal(n.work)
			continue
		case run != n.stream.seat.VotesAs():
			oldest.Reply, err = protocol.Reply{Err: errOtherServer}, errOtherServer
		}
		oldest.deliver()
		if err != nil {
			return err
		}
	}
}

// end ends the connection, and fails all commands on the lane.
func (n *Lane) end() {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.cancel()
	n.running.Wait()
}

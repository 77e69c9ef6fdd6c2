package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Master is one independent lock server. It is a Connector or a Doer.
type Master interface {
	// String names the master in logs and errors. It contains no credentials.
	fmt.Stringer

	// Listen passes on the messages that the server publishes for this process, on a connection of
	// its own. It calls ready once it can miss none any more, and returns when ctx ends, the
	// connection breaks or is silent for longer than the patience when asked for a sign of life. The functions don't block.
	Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(WakeUp)) error

	// Close ends what the master itself has open.
	Close() error
}

// Connector is a Master that makes connections, on which several batches are sent before the first is
// answered.
type Connector interface {
	// Connect makes a connection, for which ctx is the time.
	Connect(ctx context.Context) (Conn, error)
}

// Doer is a Master that runs one batch after the other.
type Doer interface {
	// Do runs the commands in their order, as one pipeline, and fills in their replies. It may
	// block for as long as the server is hung: the timeouts are the Locker's, and a reply that
	// comes late still counts for the release that follows it. It is never called concurrently.
	Do(cmds []*Command)
}

// Conn is a connection to a master. The commands take effect in the order in which they are sent.
// One goroutine at a time sends, and one receives.
type Conn interface {
	// Send sends commands, and reports whether they are answered already. After an error the
	// connection is of no use any more, and the server may have seen any of them.
	Send(cmds []*Command) (answered bool, err error)
	// Wait blocks until a reply comes, or the connection has ended.
	Wait() error
	// Receive reads the replies to all commands of the oldest Send that has none yet.
	Receive(cmds []*Command) error
	// Window is how many sends may wait for their replies.
	Window() int
	Close()
}

// Prompt is a Conn that knows whether a short Send blocks while nothing else is under way. Without it none does.
type Prompt interface {
	// IsPrompt reports whether it never does.
	IsPrompt() bool
}

// Direct is a Conn that can be read by whoever has sent the only command under way, in place of the goroutine that receives.
type Direct interface {
	Conn
	// Await blocks until Receive can read the reply without waiting for any of it. It reports false if Interrupt, or the end of
	// the connection, comes first; what has come of the reply by then stays for Receive.
	Await() bool
	// Interrupt ends Await; Resume lets Wait, Await and Receive wait again.
	Interrupt()
	Resume()
}

// MaxBatch bounds the commands of one send.
const MaxBatch = 256

// MaxWindow bounds the batches under way on one connection: more than callers ever fill.
const MaxWindow = 4096

// Admitter is a Master in front of a server that may be another one at each new connection. On an error of Admit the
// connection fails, and the master is down.
type Admitter interface {
	AdmitWith(Admission)
}

// Laner is a Master to which more connections can be made than that of its locks.
type Laner interface {
	// Lane returns what makes them. An error of the admission ends a connection to a server that is not to be reached.
	Lane(Admission) Connector
}

// Admission decides whether a server that was just reached may vote.
type Admission interface {
	Admit(Server) error
}

// Server is what a server says of itself when a connection to it is made.
type Server struct {
	RunID         string
	Version, Mode string
	Uptime        time.Duration // by its wall clock, in whole seconds, up to one too high
	HasUptime     bool
	Role          string // "master" or "slave", as Redis says it
	Memory        Memory

	Time           int64     // its clock, in microseconds since 1970; 0 if unknown
	Sent, Received time.Time // the round trip of the greeting, between which the clock was read
}

// Memory is what a server says of its memory. It is zero if it doesn't.
type Memory struct {
	Used   int64  // bytes
	Max    int64  // bytes; 0 without a limit
	Policy string // what it does at the limit: maxmemory-policy
}

// Replica reports whether the server only repeats what its master says.
func (s Server) Replica() bool { return s.Role != "" && s.Role != "master" }

// TooOld reports whether its version of Redis lacks what the scripts need.
func (s Server) TooOld() bool {
	major, rest, _ := strings.Cut(s.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, errMa := strconv.Atoi(major)
	mi, errMi := strconv.Atoi(minor)
	return errMa == nil && errMi == nil && (ma < 6 || ma == 6 && mi < 2)
}

// Immediate is a connection on which Do answers at once.
type Immediate struct {
	Do     func(cmds []*Command)
	closed chan struct{}
	end    func()
}

// NewImmediate returns a connection on which do answers the commands.
func NewImmediate(do func(cmds []*Command)) *Immediate {
	c := &Immediate{Do: do, closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c
}

// Send has the commands answered.
func (c *Immediate) Send(cmds []*Command) (answered bool, err error) {
	c.Do(cmds)
	return true, nil
}

// Wait blocks until the connection is closed.
func (c *Immediate) Wait() error {
	<-c.closed
	return ErrBroken
}

// Receive is never needed.
func (c *Immediate) Receive([]*Command) error { return nil }

// Window is as many as callers want.
func (c *Immediate) Window() int { return MaxWindow }

// Close ends the connection.
func (c *Immediate) Close() { c.end() }

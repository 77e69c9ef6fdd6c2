package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Master is one independent lock server. [Dial] and [NewMaster] make them.
//
// A Locker sends each master its commands from one goroutine, in the order in which they must
// take effect: a Master needs no lock of its own against concurrent calls of Do.
type Master interface {
	// String names the master in logs and errors. It holds no credentials.
	fmt.Stringer

	// Do runs the commands in their order, as one pipeline, and fills in their replies. It may
	// block for as long as the server is hung: the time-outs are the Locker's, and an answer that
	// comes late still counts for the release that follows it.
	Do(cmds []*Command)

	// Listen hands on the messages that the server publishes for this process, on a connection of
	// its own, beside Do. It calls ready once it can miss none any more, and returns when ctx ends or
	// the connection breaks. The functions don't block.
	Listen(ctx context.Context, process string, ready func(), message func(WakeUp)) error

	// Close ends the connection and any Do under way.
	Close() error
}

// Op is what a Command asks of a master.
type Op uint8

// The operations. Each is one command on the wire.
const (
	// OpPing asks for nothing: it makes the master connect.
	OpPing Op = iota
	// OpAcquire takes the key, and gives a fence, if the key is free and nobody waits for it with an
	// older ticket; or if it already carries this very token. A free key's oldest waiter is woken.
	OpAcquire
	// OpExtend renews the lease of a key that carries this token, and raises the fence to at least
	// the one given. Until RefillUntil it also takes the key if it is free.
	OpExtend
	// OpRelease frees the key if it carries this token, and wakes the oldest waiter of a free key.
	OpRelease
)

// Command is one operation on one master.
type Command struct {
	Op    Op
	Key   string        // the full key, prefix included
	Token string        // the secret that signs the lock
	TTL   time.Duration // OpAcquire, OpExtend: the lease asked for
	Fence int64         // OpAcquire: the fence proposed; OpExtend: the lock's
	// RefillUntil is the end of the time, on the master's clock in microseconds since 1970, in
	// which OpExtend may take a key that is free.
	RefillUntil int64

	// Process names the Locker among the waiters, of which it is one: the oldest of its own calls
	// waits for all. Ticket is the call's place in the order: when it came, on the masters' clocks in
	// microseconds since 1970; TryTicket for one that doesn't wait.
	Process string
	Ticket  int64
	// Queue has the process wait for the key from now on, with this ticket, for at most the TTL:
	// OpAcquire if it is refused, OpRelease always. Without it OpRelease ends the wait.
	Queue bool
	// Alone says that nobody waited when the key was taken, so that OpRelease may try a cheaper way first.
	Alone bool
	// Former is the token of a lock that OpAcquire frees before it takes the key, or none.
	Former string

	Reply Reply // filled in by Master.Do

	args []any // see arguments
}

// TryTicket is behind all others: a key for which anybody waits is refused.
const TryTicket = 1<<53 - 1

// WakeUp tells a waiter that a key may be free.
type WakeUp struct {
	Key    string // the full key
	Ticket int64  // with which the process is queued
}

// Reply is a master's answer to a Command.
type Reply struct {
	Status Status
	Holder string        // StatusHeld: the holder's token; empty if the key is free, and another is next
	TTL    time.Duration // StatusHeld: the longest time that the lease of the holder, or of that other, can still last
	Fence  int64         // StatusGranted by OpAcquire: the fence stored with the grant
	Alone  bool          // StatusGranted by OpAcquire: nobody waits, and the master has a cheaper way to release
	Former Status        // OpAcquire: what became of the former token, as of an OpRelease
	Time   int64         // OpAcquire, OpExtend: the master's clock, in microseconds since 1970
	Err    error         // the master gave no valid answer; Status is StatusNone
}

// Status is the answer of a master that could be asked.
type Status uint8

// The answers.
const (
	StatusNone     Status = iota // no answer, or a ping's
	StatusGranted                // OpAcquire, OpExtend: the key carries the token now
	StatusHeld                   // OpAcquire: the key carries another token, or another is next
	StatusReleased               // OpRelease: the key carried the token and is free now
	StatusExpired                // OpExtend, OpRelease: the key was free already
	StatusNotOwner               // OpExtend, OpRelease: the key carries another token, and keeps it
)

// errUnsent marks an error after which the master has certainly not seen the command.
var errUnsent = errors.New("not sent")

// errRefused marks a master's own refusal of a command: it has seen it, and nothing of it comes later.
var errRefused = errors.New("refused by the master")

// marked adds a mark to an error without changing its text.
type marked struct {
	error
	mark error
}

func (e marked) Unwrap() []error { return []error{e.error, e.mark} }

func unsent(err error) error { return marked{err, errUnsent} }

// server is what a Redis server tells of itself when a connection to it is made.
type server struct {
	runID           string
	uptime          time.Duration // in whole seconds, up to one too high; negative if not told
	role            string        // "master" or "slave", as Redis says it
	maxmemoryPolicy string
}

// admitter is a master that can tell, at each new connection, which server it reached. The Locker
// decides whether that server may vote: on an error the connection fails and the master is down.
type admitter interface {
	admitWith(func(server) error)
}

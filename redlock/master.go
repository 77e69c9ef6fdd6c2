package redlock

import (
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

	// Close ends the connection and any Do under way.
	Close() error
}

// Op is what a Command asks of a master.
type Op uint8

// The operations. Each is one command on the wire.
const (
	// OpPing asks for nothing: it makes the master connect.
	OpPing Op = iota
	// OpAcquire takes the key if it is free, or already carries this very token.
	OpAcquire
	// OpRelease frees the key if it carries this token.
	OpRelease
)

// Command is one operation on one master.
type Command struct {
	Op    Op
	Key   string        // the full key, prefix included
	Token string        // the secret that signs the lock
	TTL   time.Duration // OpAcquire: the lease asked for
	Reply Reply         // filled in by Master.Do
}

// Reply is a master's answer to a Command.
type Reply struct {
	Status Status
	Holder string        // StatusHeld: the holder's token
	TTL    time.Duration // StatusHeld: the longest time that the holder's lease can still last
	Err    error         // the master gave no valid answer; Status is StatusNone
}

// Status is the answer of a master that could be asked.
type Status uint8

// The answers.
const (
	StatusNone     Status = iota // no answer, or a ping's
	StatusGranted                // OpAcquire: the key carries the token now
	StatusHeld                   // OpAcquire: the key carries another token
	StatusReleased               // OpRelease: the key carried the token and is free now
	StatusExpired                // OpRelease: the key was free already
	StatusNotOwner               // OpRelease: the key carries another token, and keeps it
)

// errUnsent marks an error after which the master has certainly not seen the command.
var errUnsent = errors.New("not sent")

// unsentError adds errUnsent to an error without changing its text.
type unsentError struct{ error }

func (e unsentError) Unwrap() []error { return []error{e.error, errUnsent} }

// server is what a Redis server tells of itself when a connection to it is made.
type server struct {
	runID           string
	role            string // "master" or "slave", as Redis says it
	maxmemoryPolicy string
}

// admitter is a master that can tell, at each new connection, which server it reached. The Locker
// decides whether that server may vote: on an error the connection fails and the master is down.
type admitter interface {
	admitWith(func(server) error)
}

package protocol

import (
	"errors"
	"fmt"
)

// The marks of a master's errors, for errors.Is. They say what an error means for the command, and for the master.
var (
	// ErrUnsent marks an error after which the master has certainly not seen the command.
	ErrUnsent = errors.New("not sent")
	// ErrRefused marks a master's own refusal of a command: the master has seen the command, and nothing of it has an effect later.
	ErrRefused = errors.New("refused by the master")
	// ErrNotExecuted marks a refusal of a command that the master executes when it is sent again, because it didn't know
	// the script, or because the command was Fast.
	ErrNotExecuted = errors.New("not executed")
	// ErrUnreachable marks the failure to make a connection at all.
	ErrUnreachable = errors.New("unreachable")
	// ErrUnusable marks a refusal that isn't about one key: the server takes no locks at all until somebody
	// repairs it, or for some time.
	ErrUnusable = errors.New("takes no locks")
)

// These refusals, which are marked as ErrUnusable too, may come from a different server than the greeted one.
var (
	ErrReplica = fmt.Errorf("%w: it is a replica", ErrUnusable)
	ErrLoading = fmt.Errorf("%w: it is loading data, its own or that of a server whose replica it has become", ErrUnusable)
)

// ErrUndecided is the reply to a Fast command that must be sent again without Fast.
var ErrUndecided = Mark(Mark(errors.New("undecided"), ErrRefused), ErrNotExecuted)

var ErrBroken = errors.New("the connection broke")

// ErrMalformed says that bytes on a connection are no reply, or break the limits of one. The connection is of no use after it.
var ErrMalformed = errors.New("the server's reply is not of Redis's protocol: is this a Redis server?")

// Mark adds a mark to an error without changing its text.
func Mark(err, mark error) error { return marked{err, mark} }

type marked struct {
	error
	mark error
}

func (e marked) Unwrap() []error { return []error{e.error, e.mark} }

func Unsent(err error) error { return Mark(err, ErrUnsent) }

// Unreachable marks the error with which a connection could not be made.
func Unreachable(err error) error {
	if errors.Is(err, ErrUnreachable) {
		return err
	}
	return Unsent(Mark(err, ErrUnreachable))
}

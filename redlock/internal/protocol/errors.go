package protocol

import (
	"errors"
	"fmt"
)

// These errors mark a master's error, for errors.Is. They say what the error means for the command, and for the master.
var (
	// ErrUnsent marks an error after which the master has certainly not seen the command.
	ErrUnsent = errors.New("not sent")
	// ErrRefused marks a master's own refusal of a command: the master has received the command, and the command can have no effect later.
	ErrRefused = errors.New("refused by the master")
	// ErrNotExecuted marks a refusal after which the command should be sent again, because the master didn't know the script, or because the command
	// was Fast.
	ErrNotExecuted = errors.New("not executed")
	// ErrUnreachable marks a failure to make a connection.
	ErrUnreachable = errors.New("unreachable")
	// ErrUnusable marks a refusal that isn't about one key: the server takes no locks until somebody repairs it, or for some time.
	ErrUnusable = errors.New("takes no locks")
)

// After these refusals, which are also marked as ErrUnusable, the address may lead to a different server than the one that was greeted.
var (
	ErrReplica = fmt.Errorf("%w: it is a replica", ErrUnusable)
	ErrLoading = fmt.Errorf("%w: it is loading data, its own or that of a server whose replica it has become", ErrUnusable)
)

// ErrUndecided is the reply to a Fast command that must be sent again without Fast.
var ErrUndecided = Mark(Mark(errors.New("undecided"), ErrRefused), ErrNotExecuted)

var ErrBroken = errors.New("the connection broke")

// ErrMalformed means that bytes on a connection are no reply, or break the limits of a reply. The connection can't be used after it.
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

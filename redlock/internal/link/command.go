package link

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

var errAbandoned = protocol.Unsent(errors.New("abandoned before it was sent"))

// Command is a command to one master, with its reply, while a stream sends it.
type Command struct {
	protocol.Command
	Master    int
	Abandoned *atomic.Bool // if it becomes true before the command was sent, the stream drops the command (see unneeded); may be nil
	former    *Command     // of an acquire: the release that the same script call does first; or nil
	acquire   *Command     // of a release or extend: the acquire of the same attempt
	until     time.Time    // of a release that was sent: the time after which it isn't repeated; of an extend: the time after which it takes no free key
	Forced    bool         // of a release: the stream sends it even if the master seems to have nothing to release
	Counted   bool         // of an acquire: the attempt has counted the reply
	moves     int          // how often the command was sent again because a server lacked the key's hash slot or the script
	To        Receiver     // gets the command with its reply; may be nil

	// For an acquire: the traces that its attempt may have left on the master. The stream's mu guards these fields.
	mayHold  bool      // the acquire may have taken the key
	extended bool      // an extend was sent, and may have renewed the key
	mayTake  time.Time // until then, an extend without a reply may still take the key
	ticket   *TicketState

	// For a release. The stream's mu guards these fields, too.
	sentAt time.Time // when the command was last sent
	due    time.Time // when the command must be repeated
}

// TicketState says whether one master may have a call's ticket, after all attempts of the call so far.
type TicketState struct {
	left      bool     // the master may have the ticket
	uncertain bool     // a connection broke, so the server may still read a command that leaves the ticket
	owed      *Command // the queued repetition of a release that removes the ticket; or nil
}

// Receiver gets answered commands. Receive must not block, because it may run on a stream's goroutine.
type Receiver interface{ Receive(*Command) }

func NewAcquire(cmd protocol.Command, master int, abandoned *atomic.Bool, ticket *TicketState, to Receiver) Command {
	return Command{Command: cmd, Master: master, Abandoned: abandoned, ticket: ticket, To: to}
}

// First makes the script call of an acquire do a release first.
func (c *Command) First(release *Command) { c.former = release }

// Release returns the release for an acquire that has, or may have, taken the key on its master. ticket is the call's. If waiting is true, the master
// keeps the ticket. alone means that no process waited for the key.
func (c *Command) Release(ticket int64, waiting, alone bool, to Receiver) Command {
	return Command{
		Command: protocol.Command{Op: protocol.OpRelease, Key: c.Key, Given: c.Given, Token: c.Token, TTL: c.TTL, Process: c.Process, Ticket: ticket, Slots: c.Slots, Leads: c.Leads,
			Queue: waiting && c.Queue, Alone: alone},
		Master:  c.Master,
		acquire: c,
		To:      to,
	}
}

// Withdrawal returns a command that removes from this master the ticket of a call that has won on other masters.
func (c *Command) Withdrawal(ticket int64) *Command {
	return &Command{
		Command: protocol.Command{Op: protocol.OpRelease, Key: c.Key, TTL: c.TTL, Process: c.Process, Ticket: ticket, Slots: c.Slots, Leads: c.Leads},
		Master:  c.Master,
		acquire: c,
		Forced:  true,
	}
}

// Extension returns the extend for an acquire that has taken the key on its master. The extend also raises the master's fence to the given one. A
// master that has lost the key may take it again until refill, and never if refill is zero.
func (c *Command) Extension(fence int64, refill time.Time, to Receiver) *Command {
	return &Command{
		Command:   protocol.Command{Op: protocol.OpExtend, Key: c.Key, Token: c.Token, TTL: c.TTL, Fence: fence},
		Master:    c.Master,
		acquire:   c,
		until:     refill,
		Abandoned: c.Abandoned,
		To:        to,
	}
}

// Forced returns a command that belongs to no attempt. The stream sends it even if the master seems to have nothing to release.
func Forced(cmd protocol.Command, to Receiver) *Command {
	return &Command{Command: cmd, acquire: new(Command), Forced: true, To: to}
}

// maxMoves bounds how often a command that was not executed is sent again.
const maxMoves = 5

// Again makes a command that was not executed ready to be sent again. It returns false if the command was sent too often.
func (c *Command) Again() bool {
	if c.moves == maxMoves {
		return false
	}
	c.moves++
	c.Reply = protocol.Reply{}
	return true
}

// NoRefill makes an extend only renew an existing lease, and take no free key.
func (c *Command) NoRefill() { c.until, c.RefillUntil = time.Time{}, 0 }

func (c *Command) deliver() {
	if to := c.To; to != nil {
		c.To = nil
		to.Receive(c)
	}
}

// takeFormer removes the former release from an acquire and returns it. A lock keeps its acquires for as long as it is held. If these kept their
// former releases, each lock would keep all earlier locks on its key in memory.
func (c *Command) takeFormer() *Command {
	former := c.former
	c.former = nil
	return former
}

// givenUp reports whether the command's caller doesn't wait for it any more. The stream's own questions have no caller.
func (c *Command) givenUp() bool { return c.Abandoned != nil && c.Abandoned.Load() }

// unneeded reports whether the command need not be sent: its caller has left, or it releases an attempt that has left nothing on the master. Callers
// hold the stream's mu.
func (c *Command) unneeded() bool {
	switch c.Op {
	case protocol.OpAcquire, protocol.OpExtend, protocol.OpForce, protocol.OpInspect, protocol.OpNames, protocol.OpRecall, protocol.OpStore:
		return c.givenUp()
	case protocol.OpRelease:
		a := c.acquire
		nothing := !a.mayHold && !a.extended && (a.ticket == nil || !a.ticket.left)
		queued := c.Queue && !a.mayHold && a.Reply.Status == protocol.StatusHeld // the master has the ticket already, and must keep it
		return !c.Forced && (nothing || queued)
	}
	return false
}

// sending notes the traces that the command may leave on the master. Callers hold the stream's mu.
func (c *Command) sending(now time.Time) {
	switch c.Op {
	case protocol.OpAcquire:
		c.mayHold = true
	case protocol.OpExtend:
		c.acquire.extended = true
	case protocol.OpRelease:
		c.sendingRelease(now)
		// A plain or Fast release removes no ticket. A later acquire of the same caller may leave a ticket again.
		if c.acquire.ticket != nil && c.Ticket > 0 && !c.Alone && !c.Fast {
			c.acquire.ticket.left = c.Queue
		}
		return
	}
	if c.Queue && c.ticket != nil {
		c.ticket.left = true
	}
	if c.former != nil {
		c.former.sendingRelease(now)
	}
}

// sendingRelease lets the release be repeated for the TTL, counted from when the release is first sent. Its acquire may have been on its way to a
// master that hung until then.
func (c *Command) sendingRelease(now time.Time) {
	if c.sentAt.IsZero() {
		c.until = now.Add(c.TTL)
	}
	c.sentAt = now
}

// answered notes the traces that the command has left on the master according to the reply. Callers hold the stream's mu.
func (c *Command) answered() {
	err := c.Reply.Err
	unsure := err != nil && !errors.Is(err, protocol.ErrRefused) && !errors.Is(err, protocol.ErrUnsent)
	ticket := c.ticket
	if c.acquire != nil {
		ticket = c.acquire.ticket
	}
	if c.Queue && unsure && ticket != nil {
		ticket.uncertain = true
	}
	switch {
	case c.Op == protocol.OpAcquire && (c.Reply.Status == protocol.StatusHeld || c.Reply.Status == protocol.StatusDone || err != nil && !unsure):
		c.mayHold = false
	case c.Op == protocol.OpAcquire && c.Slots > 1 && c.Reply.Status == protocol.StatusGranted && ticket != nil && !c.givenUp():
		ticket.left = false // a grant removes the call's ticket
	case c.Op == protocol.OpRelease && err != nil && ticket != nil:
		ticket.left = true // the release may not have arrived, and so not have removed the ticket
	case c.Op == protocol.OpExtend && unsure && c.until.After(c.acquire.mayTake):
		c.acquire.mayTake = c.until
	}
}

// acknowledged reports whether a release has certainly had its effect and need not be repeated. A reply alone is not enough:
//   - If the connection broke between acquire and release, the server may read the acquire after the
//     release. Then only a release that deleted the key is proof.
//   - If the reply to an extend was lost, the server may read the extend late, and take the key again until the
//     extend's deadline. Only a release sent after that deadline is proof.
//   - A command that leaves a ticket may be read late in the same way. There is no proof against that, so the
//     release is repeated until the ticket's lease has ended.
//
// Callers hold the stream's mu.
func (c *Command) acknowledged() bool {
	ticket := c.acquire.ticket
	if c.Reply.Err != nil || !c.sentAt.After(c.acquire.mayTake) || ticket != nil && ticket.uncertain && !c.Queue {
		return false
	}
	acquired := c.acquire.Reply.Err
	return acquired == nil || errors.Is(acquired, protocol.ErrRefused) || errors.Is(acquired, protocol.ErrUnsent) || c.Reply.Status == protocol.StatusReleased
}

type commands []*Command

func (c *commands) drop(n int) {
	rest := copy(*c, (*c)[n:])
	clear((*c)[rest:])
	*c = (*c)[:rest]
}

// isShort reports whether the empty buffers of a socket have room for the command. A command contains its key up to five times. A result can be long,
// and so can a beat, which has all turns of its process.
func (c *Command) isShort() bool {
	return c.Result() == nil && c.Op != protocol.OpBeat && len(c.Key) <= 1<<10
}

func (c *Command) resultBytes() int {
	if result := c.Result(); result != nil {
		return len(result.Data)
	}
	return 0
}

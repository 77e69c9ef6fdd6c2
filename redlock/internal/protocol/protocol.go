// Package protocol is what a Locker and its masters say to each other, whatever the master is: the commands and
// their replies, the fence that a master gives, and the marks of its errors.
package protocol

import (
	"strconv"
	"strings"
	"time"
)

// Op is what a Command asks of a master.
type Op uint8

// The operations. Each is one command on the wire. Operations of a lock have their parameters in the Command itself; others have parameters in its
// Ask, and results in the Reply's Answer.
const (
	// OpPing asks for the time: it makes the master connect, and shows a dead connection or a clock that jumped.
	OpPing Op = iota
	// OpAcquire takes the key, and returns a fence, if the key is free and no process waits for it with an
	// older ticket; or if it already carries this very token. The oldest waiter of a free key is woken.
	OpAcquire
	// OpExtend renews the lease of a key that carries this token, and raises the fence to at least
	// the one given. Until RefillUntil it also takes the key if it is free. StatusForced has a *Force as its Answer.
	OpExtend
	// OpRelease frees the key if it carries this token, and wakes the oldest waiter of a free key. With a *Store as its Ask it has the
	// master remember a result, if it frees the key.
	OpRelease
	// OpBeat, with a *Beat, tells the master of the process, and asks what others have told: *Beats.
	OpBeat
	// OpInspect shows who has the key, who waits for it, and what is remembered for it: *Inspected. It changes nothing.
	OpInspect
	// OpForce, with a *Force, is OpRelease by another than the holder: for the TTL, the master answers each OpExtend
	// of this token with StatusForced.
	OpForce
	// OpTrial, with a *Trial, does all commands of the other operations on keys of its own, and leaves nothing. It shows whether a master that has
	// refused locks takes them again.
	OpTrial
	// OpNames, with a *Names, asks which processes there are: *Named. The key is that of OpBeat.
	OpNames
	// OpRecall asks for the result that is remembered for the key: *Result.
	OpRecall
	// OpStore, with a *Store, has the master remember a result for the key if the key carries this token. The key stays as it is.
	OpStore
	// OpMemory asks a server how much memory it has and uses: *Memory. It needs no key.
	OpMemory

	Ops // how many there are
)

// Command is one operation on one master.
type Command struct {
	Key   string        // the full key, prefix included: see Key
	Token string        // the secret that signs the lock
	TTL   time.Duration // the lease asked for; and see OpForce
	Fence int64         // OpAcquire: the fence proposed; OpExtend: the lock's
	// RefillUntil is the end of the time, on the master's clock in microseconds since 1970, in
	// which OpExtend may take a key that is free.
	RefillUntil int64

	// Process names the Locker among the waiters. It has one place in the queue of a key, for the oldest of its
	// calls. Ticket is the place: when that call came, on the masters' clocks in microseconds since 1970, or
	// TryTicket for a call that doesn't wait.
	Process string
	Ticket  int64

	Former string // the token of a lock that OpAcquire frees before it takes the key, or none
	Op     Op
	Recall bool // has OpAcquire refused with StatusDone if a result is remembered for the key
	// Queue has the process wait for the key from now on, with this ticket, for at most the TTL:
	// OpAcquire if it is refused, OpRelease always. Without it OpRelease ends the wait.
	Queue bool
	// Alone means that nobody waited when the key was taken, so that OpRelease may try a cheaper way first.
	Alone bool
	// Fast makes OpAcquire fail with ErrUndecided unless the key is free, nobody waits for it, and its fence needn't outlive the lease; and OpExtend
	// unless it only has to renew the lease of a key that has the token and the fence already. The master takes, or renews, many such keys at once.
	Fast bool
	// Slots is how many may hold the key of the line at once, in the view of the process, if that is more than one. Key is then that of
	// the slot asked for, and Process has a CallName: each call has a place of its own, for all slots below Slots.
	Slots uint16
	// Leads is set for the master that offers the slots of the key, in the view of the process: where several are free, or become free, it
	// decides who asks for which. Offered has OpAcquire take a slot that it has offered, whoever is in line.
	Leads, Offered bool

	Ask   Ask   // nil for most
	Reply Reply // filled in by the master
}

// Result returns the result that the command has the master remember, or nil.
func (c *Command) Result() *Result {
	if store, ok := c.Ask.(*Store); ok {
		return store.Result
	}
	return nil
}

// Ask is the parameter of an operation that isn't one of a lock. Several masters may share one: nobody changes it.
type Ask interface{ ask() }

func (*Beat) ask()  {}
func (*Force) ask() {}
func (*Trial) ask() {}
func (*Names) ask() {}
func (*Store) ask() {}

// Beat is what a process tells its masters of itself.
type Beat struct {
	ID     string        // of the process
	Number int64         // of the beat: one that comes late doesn't take the place of a later one
	Life   time.Duration // how long the master remembers it
	Kind   string        // a word: masters name one process of each kind. All processes of a kind have one Life
	Since  int64         // since when it locks, in microseconds on the masters' clocks; 0 if it is about to, and -1 if it doesn't
	About  string        // what else it says of itself, for others to read
	Asks   []string      // the IDs of processes that the master must name
	Knew   int64         // since when the master remembers processes, by its earlier reply, or 0: a change means that it has lost its data

	// Passengers: other news for the masters, as often.

	// Turns has a line for each key that the process has held, or waited for, for long. A line begins with the hash of the key.
	Turns string
	// Shown is a time that the master's clock has shown while it was right, in microseconds, or 0. That is known to processes, which have
	// compared it with other clocks.
	Shown int64
}

// BeatMemory is how long a master remembers anything of processes after the last one has gone: since when it remembers, and the latest
// time that its clock has shown.
const BeatMemory = time.Hour

// Force says who asks for OpForce.
type Force struct{ By string }

// Trial has a channel on which processes may be woken.
type Trial struct{ Channel string }

// Names asks for processes.
type Names struct {
	IDs  []string // of these; all if there are none
	Hash string   // of a key: what they tell of their turns on it; or empty
}

// Store makes a master remember a result, unless there is one with a larger fence. A result with no time to keep makes the master forget the one that
// there is.
type Store struct {
	*Result
	Anyway bool // also if the key doesn't carry the token, or OpRelease doesn't free it
}

// MaxResult bounds the bytes of a result.
const MaxResult = 1 << 20

// Result is the result of work under a lock.
type Result struct {
	Data  string        // empty in an *Inspected
	Size  int           // the bytes of the data, in an *Inspected
	Keep  time.Duration // how long it is remembered
	Fence int64         // of the lock
}

// TryTicket is behind all others: a key for which anybody waits is refused.
const TryTicket = 1<<53 - 1

// OfferTime is how long the leader of a key's slots keeps a slot for the call that it has offered it to. A call that takes longer loses its place in
// line there, and gets a place again when it asks.
const OfferTime = 250 * time.Millisecond

// WatchTime is how long the leader knows which slots are free after a call has been refused. Calls that wait ask more often.
const WatchTime = 5 * time.Second

// MaxOthers bounds how many processes a master names to a process that doesn't ask for them: one of each kind, locking kinds first. Normally there is
// one kind, during a change two.
const MaxOthers = 30

// MaxProcesses bounds how many processes a master tells of.
const MaxProcesses = 1000

// MaxTime bounds the times in replies, and the fences: Redis's Lua counts no more microseconds exactly (285 years).
const MaxTime = (1<<53 - 1) * time.Microsecond

// ParseNumber reads a number that a master has written, from 0 to most.
func ParseNumber(text string, most int64) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, false
	}
	return n, true
}

// WakeUp is the message to a waiter that a key may be free.
type WakeUp struct {
	Key    string // the full key; that of a slot which is offered, if it is for a call
	Ticket int64  // with which the process is queued
	Call   uint64 // the call with that place, for a key with several holders; else 0
}

// Reply is a master's reply to a Command.
type Reply struct {
	Holder string        // StatusHeld: the holder's token; empty if the key is free, and another is next
	TTL    time.Duration // StatusHeld: the longest time that the lease of the holder, or of that other, can still last. StatusDone by OpAcquire: how long the result is still remembered
	Fence  int64         // StatusGranted by OpAcquire: the fence stored with the grant. StatusDone by OpAcquire: that of the result
	Status Status
	Former Status // OpAcquire: what became of the former token, as of an OpRelease
	Alone  bool   // StatusGranted by OpAcquire: nobody waits, and the master has a cheaper way to release
	Offer  uint16 // StatusHeld with Leads: 1 + a slot that is offered to the call; 0 for none
	// Elsewhere is how many may hold the key in the view of another call in line, and 0 if there is none: StatusHeld with Slots.
	Elsewhere uint16
	Time      int64  // the master's clock, in microseconds since 1970; 0 if unknown. OpRelease, OpForce, OpStore and OpNames don't tell it
	Answer    Answer // as the operation says; nil for most
	Err       error  // the master gave no valid reply; Status is StatusNone
}

// Answer is the answer of an operation that isn't one of a lock.
type Answer interface{ answer() }

func (*Beats) answer()     {}
func (*Force) answer()     {}
func (*Inspected) answer() {}
func (*Memory) answer()    {}
func (*Named) answer()     {}
func (*Result) answer()    {}

// Beats is what a master tells of other processes.
type Beats struct {
	// Lines are separated by newlines: one for another process of each kind, the one that has locked for longest, and one for each process that was
	// asked for. A line has its ID, how many milliseconds ago it told of itself, and with which number, since when it locks, and its About.
	Lines string
	Mark  int64 // the latest time that the master's clock has shown
	Born  int64 // since when the master remembers processes: a change means that it has lost its data
}

// Inspected is what a master has for a key.
type Inspected struct {
	Holder string        // the holder's token; empty if the key is free
	TTL    time.Duration // for which the lease of the holder can still last
	Fence  int64         // the one stored last, or 0
	Queue  string        // a line for each process that waits: see Waiter
	Result *Result       // what is remembered, or nil
}

// Named is what a master knows of processes.
type Named struct {
	Lines string // for each, as in Beats
	Turns string // for each that tells of the key: its ID and its turn
}

// Status is the reply of a master that could be asked.
type Status uint8

// The replies.
const (
	StatusNone     Status = iota // no reply, or a ping's
	StatusGranted                // OpAcquire, OpExtend: the key carries the token now
	StatusHeld                   // OpAcquire: the key carries another token, or another is next
	StatusReleased               // OpRelease: the key carried the token and is free now
	StatusExpired                // OpExtend, OpRelease, OpStore: the key was free already; OpRecall: no result is remembered
	StatusForced                 // OpExtend: the token has lost the key by OpForce
	StatusNotOwner               // OpExtend, OpRelease, OpStore: the key carries another token, and keeps it
	StatusDone                   // OpAcquire, OpRecall: a result is remembered. OpStore: this one is, or a later one
)

// Key returns the name of a lock's key on the masters. The part in braces is the hash tag, by which a Redis Cluster keeps the keys of one lock in one
// place. It ends at the first closing brace, and an empty one doesn't count. So a key that begins with a closing brace, or with opening braces and a
// closing one, gets an opening brace in front: no two keys have the same name.
func Key(prefix, key string) string {
	if strings.HasPrefix(strings.TrimLeft(key, "{"), "}") {
		return prefix + ":{{" + key + "}"
	}
	return prefix + ":{" + key + "}"
}

// KeyOf returns the key from a name that Key has made.
func KeyOf(prefix, name string) string {
	key := strings.TrimSuffix(strings.TrimPrefix(name, prefix+":{"), "}")
	if strings.HasPrefix(strings.TrimLeft(key, "{"), "}") {
		return key[1:]
	}
	return key
}

// FenceSlack is how far a fence may be from the clock of the master that stores it, on either side.
const FenceSlack = 100 * time.Millisecond

// FenceTTL is the shortest time for which a master remembers a fence. Forgetting is safe because a fence is
// forgotten only when the master's own clock has passed it by this much, and the first fence after that
// starts at that clock less the slack: above the forgotten one, whatever the clocks of other masters show.
// It is longer than the slack so that a clock may be set back a little unnoticed.
const FenceTTL = 5 * time.Second

// FenceLife returns how long a master remembers a fence, which may be ahead of its clock if the proposal came
// from the clock of another master. fence and now, the time on its clock, are in microseconds.
func FenceLife(fence, now int64) time.Duration {
	return FenceTTL + time.Duration(max(fence-now, 0))*time.Microsecond
}

// NextFence returns the fence that a master stores with a grant: above the last one, near the master's
// clock, and equal to the proposal if that is near it too. All are in microseconds. acquire.lua has the same
// rule.
func NextFence(last, proposal, now int64) int64 {
	slack := FenceSlack.Microseconds()
	fence := max(last+1, now-slack)
	if proposal > fence && proposal <= now+slack {
		fence = proposal
	}
	return fence
}

// Package protocol defines how a Locker and its masters talk, whatever kind the masters are: the commands and
// their replies, the fence that a master gives, and what an error of a master means (ErrUnsent and others).
package protocol

import (
	"strconv"
	"strings"
	"time"
)

type Op uint8

// The operations. Each is one command on the wire. Operations on a lock have their parameters in the Command itself. Other operations have parameters
// in Ask, and results in the Reply's Answer.
const (
	// OpPing asks for the time: it makes the master connect, and shows a dead connection or a clock that jumped.
	OpPing Op = iota
	// OpAcquire takes the key and returns a fence, if the key is free and no process waits for it with an
	// older ticket, or if the key already carries this very token. The master wakes the oldest waiter of a free key.
	OpAcquire
	// OpExtend renews the lease of a key that carries this token, and raises the fence to at least
	// the one given. Until RefillUntil it also takes the key if it is free. StatusForced has a *Force as its Answer.
	OpExtend
	// OpRelease frees the key if it carries this token, and wakes the oldest waiter of a free key. With a *Store as its Ask, the
	// master also remembers a result, if OpRelease has freed the key.
	OpRelease
	// OpBeat, with a *Beat, tells the master about the process, and returns what other processes have told: *Beats.
	OpBeat
	// OpInspect shows who has the key, who waits for it, and what is remembered for it: *Inspected. It changes nothing.
	OpInspect
	// OpForce, with a *Force, is an OpRelease by somebody other than the holder. For the TTL, the master answers each OpExtend
	// of this token with StatusForced.
	OpForce
	// OpTrial, with a *Trial, runs all commands of the other operations on separate keys, and leaves nothing behind. It shows whether a master that
	// has refused locks takes them again.
	OpTrial
	// OpNames, with a *Names, asks which processes there are: *Named. The key is the key of OpBeat.
	OpNames
	// OpRecall asks for the result that is remembered for the key: *Result.
	OpRecall
	// OpStore, with a *Store, makes the master remember a result for the key if the key carries this token. The key stays locked.
	OpStore
	// OpMemory asks a server how much memory it has and uses: *Memory. It needs no key.
	OpMemory

	Ops // the number of operations
)

type Command struct {
	Key   string        // the full key, prefix included: see Key
	Token string        // the secret by which the holder proves that the lock is its own
	TTL   time.Duration // the lease asked for; for OpForce: how long the token can't be renewed
	Fence int64         // of OpAcquire: the proposed fence; of OpExtend: the lock's fence
	// RefillUntil is the end of the time, on the master's clock in microseconds since 1970, in
	// which OpExtend may take a key that is free.
	RefillUntil int64

	// Process names the Locker among the waiters. It has one place in the queue of a key, for the oldest of its
	// calls. Ticket is this place: when that call came, on the masters' clocks in microseconds since 1970, or
	// TryTicket for a call that doesn't wait.
	Process string
	Ticket  int64

	Former string // the token of a lock that OpAcquire frees before it takes the key; empty for none
	Op     Op
	Recall bool // makes the master refuse OpAcquire with StatusDone if it remembers a result for the key
	// Queue makes the process wait for the key from now on, with this ticket, for at most the TTL:
	// with OpAcquire if it is refused, with OpRelease always. Without Queue, OpRelease ends the wait.
	Queue bool
	// Alone means that nobody waited when the key was taken, so that OpRelease may try a cheaper way first.
	Alone bool
	// Fast marks a command that the master can execute for many keys at once. It fails with ErrUndecided where more is needed. OpAcquire then needs a
	// free key for which nobody waits, and whose fence needn't outlive the lease. OpExtend then needs a key that has the token and the fence already,
	// and renews only the lease.
	Fast bool
	// Slots is how many may hold the key of the line at once according to the process, if more than one. Key is then the key of
	// the slot asked for, and Process has a CallName: each call has its own place, for all slots below Slots.
	Slots uint16
	// Leads is set if the process takes this master for the leader of the key's slots: if several slots are free, or become free, the leader
	// decides who asks for which. Offered makes OpAcquire take a slot that this master has offered to the call, whoever is in line.
	Leads, Offered bool

	Ask   Ask   // nil for most operations
	Reply Reply // filled in by the master
}

// Result returns the result that the command has the master remember, or nil.
func (c *Command) Result() *Result {
	if store, ok := c.Ask.(*Store); ok {
		return store.Result
	}
	return nil
}

// Ask is the parameter of an operation that isn't about one lock. Several masters may share one Ask, so nobody changes it.
type Ask interface{ ask() }

func (*Beat) ask()  {}
func (*Force) ask() {}
func (*Trial) ask() {}
func (*Names) ask() {}
func (*Store) ask() {}

// Beat has the facts that a process tells its masters about itself.
type Beat struct {
	ID     string
	Number int64         // the number of the beat: one that arrives late doesn't replace a later one
	Life   time.Duration // how long the master remembers the process
	Kind   string        // a word: masters name one process of each kind. All processes of one kind have the same Life
	Since  int64         // since when it locks, in microseconds on the masters' clocks; 0 if it is about to, and -1 if it doesn't
	About  string        // further facts about the process, for other processes to read
	Asks   []string      // the IDs of processes that the master must name
	Knew   int64         // since when the master remembers processes, as it said before; 0 if unknown. A change means a loss of data

	// Other news for the masters, sent as often as the beats:

	// Turns has a line for each key that the process has held, or waited for, for long. A line begins with the hash of the key.
	Turns string
	// Shown is a time that the master's clock has shown while it was right, in microseconds, or 0. Processes know that it was right, because they
	// have compared it with other clocks.
	Shown int64
}

// BeatMemory is how long a master remembers its own facts after the last process has gone: since when it remembers, and the latest
// time that its clock has shown.
const BeatMemory = time.Hour

// Force says who asks for OpForce.
type Force struct{ By string }

// Trial has a channel on which processes may be woken.
type Trial struct{ Channel string }

// Names asks for processes.
type Names struct {
	IDs  []string // the processes asked for; all if empty
	Hash string   // the hash of a key: the answer then has the turns of these processes on the key; or empty
}

// Store makes a master remember a result, unless it remembers one with the same fence or a larger one. If Keep is 0, the master forgets the result
// that it remembers, under the same condition.
type Store struct {
	*Result
	Anyway bool // even if the key doesn't carry the token, or OpRelease doesn't free it
}

const MaxResult = 1 << 20

// Result is the result of work under a lock.
type Result struct {
	Data  string        // empty in an *Inspected
	Size  int           // the bytes of the data, in an *Inspected
	Keep  time.Duration // how long it is remembered
	Fence int64         // of the lock
}

// TryTicket is later than all other tickets, so a key for which anybody waits is refused.
const TryTicket = 1<<53 - 1

// OfferTime is how long the leader of a key's slots keeps a slot for the call to which it has offered it. A call that takes longer loses its place in
// line there, and gets a place again when it asks.
const OfferTime = 250 * time.Millisecond

// WatchTime is how long the leader knows which slots are free after a call has been refused. Calls that wait ask more often.
const WatchTime = 5 * time.Second

// MaxOthers bounds how many processes a master names that weren't asked for: one of each kind, locking kinds first. Normally there is
// one kind, and two during a change.
const MaxOthers = 30

// MaxProcesses bounds how many processes a master names in a reply.
const MaxProcesses = 1000

// MaxTime bounds the times and fences in replies. Redis's Lua counts exactly only up to this number of microseconds (285 years).
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
	Key    string // the full key; for a call, the key of the slot that is offered to it
	Ticket int64  // the ticket with which the process is queued
	Call   uint64 // the call that has this ticket, for a key with several holders; 0 otherwise
}

type Reply struct {
	Holder string        // StatusHeld: the holder's token; empty if the key is free, but another process is next
	TTL    time.Duration // StatusHeld: how long the lease of the holder, or of the next in line, can last. StatusDone: how long the result is kept
	Fence  int64         // StatusGranted by OpAcquire: the fence stored with the grant. StatusDone by OpAcquire: the fence of the result
	Status Status
	Former Status // OpAcquire: the result of releasing the former token, as OpRelease has it
	Alone  bool   // StatusGranted by OpAcquire: nobody waits, and the master has a cheaper way to release
	Offer  uint16 // StatusHeld with Leads: 1 + the slot that is offered to the call; 0 for none
	// Elsewhere is how many may hold the key according to another call in line, or 0 if there is none: StatusHeld with Slots.
	Elsewhere uint16
	Time      int64  // the master's clock, in microseconds since 1970; 0 if unknown. OpRelease, OpForce, OpStore and OpNames don't return it
	Answer    Answer // as the operation says; nil for most
	Err       error  // the master gave no valid reply; Status is StatusNone
}

// Answer is the answer of an operation that isn't about one lock.
type Answer interface{ answer() }

func (*Beats) answer()     {}
func (*Force) answer()     {}
func (*Inspected) answer() {}
func (*Memory) answer()    {}
func (*Named) answer()     {}
func (*Result) answer()    {}

// Beats has the facts that a master tells about other processes.
type Beats struct {
	// Lines are separated by newlines: one line for the process of each other kind that has locked for longest, and one for each process that was
	// asked for. A line has the process's ID, how many milliseconds ago its last beat came, the number of that beat, since when it locks, and its
	// About.
	Lines string
	Mark  int64 // the latest time that the master's clock has shown
	Born  int64 // since when the master remembers processes: if that changes, the master has lost its data
}

// Inspected has the facts that a master knows about a key.
type Inspected struct {
	Holder string        // the holder's token; empty if the key is free
	TTL    time.Duration // for which the lease of the holder can still last
	Fence  int64         // the fence stored last, or 0
	Queue  string        // a line for each process that waits: see Waiter
	Result *Result       // the remembered result, or nil
}

// Named has the facts that a master knows about processes.
type Named struct {
	Lines string // a line for each process, as in Beats
	Turns string // a line for each process that has told of the key: its ID and its turn
}

type Status uint8

// The values of Status.
const (
	StatusNone     Status = iota // no reply, or the reply to a ping
	StatusGranted                // OpAcquire, OpExtend: the key carries the token now
	StatusHeld                   // OpAcquire: the key carries another token, or another process is next
	StatusReleased               // OpRelease: the key carried the token and is free now
	StatusExpired                // OpExtend, OpRelease, OpStore: the key was free already; OpRecall: no result is remembered
	StatusForced                 // OpExtend: the token has lost the key by OpForce
	StatusNotOwner               // OpExtend, OpRelease, OpStore: the key carries another token, and keeps it
	StatusDone                   // OpAcquire, OpRecall: a result is remembered. OpStore: this result is, or a later one
)

// IDOf returns the process ID at the beginning of the random part of a token or a name. For a foreign token it returns some part as well.
func IDOf(random string) string { return random[:min(IDLen, len(random)/2)] }

// Shown returns the part of a token that people are shown: a whole token could end the lock.
func Shown(token string) string { return token[:min(IDLen+4, len(token)/2)] }

// Key returns the name of a lock's key on the masters. The part in braces is the hash tag, by which a Redis Cluster keeps the keys of one lock on one
// node. The tag ends at the first closing brace, and an empty tag doesn't count. So a key that begins with a closing brace, or with opening braces
// and a closing one, gets an opening brace in front: no two keys have the same name.
func Key(prefix, key string) string {
	if strings.HasPrefix(strings.TrimLeft(key, "{"), "}") {
		return prefix + ":{{" + key + "}"
	}
	return prefix + ":{" + key + "}"
}

// Processes returns the key under which a master keeps the beats of processes. The braces put all keys with this beginning into one slot of a Redis
// Cluster.
func Processes(prefix string) string { return prefix + ":processes:{processes}" }

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
// forgotten only when the master's own clock has passed it by this much, and the next fence then
// starts at that clock minus the slack: above the forgotten one, whatever the clocks of other masters show.
// It is longer than the slack so that a clock may be set back a little without being noticed.
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

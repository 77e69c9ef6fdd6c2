// Package protocol defines the commands of a Locker to its masters, of whatever kind they are: the commands and their replies, the fence that a
// master gives, and the meaning of a master's errors (ErrUnsent and others).
package protocol

import (
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
)

type Op uint8

// The operations. Each is one command on the wire. The parameters of an operation on a lock are fields of the Command. Other operations have
// parameters in Ask, and results in the Reply's Answer.
const (
	// OpPing asks for the master's time. It opens a connection to the master if there is none, and reveals a dead connection or a clock that jumped.
	OpPing Op = iota
	// OpAcquire takes the key and returns a fence, if the key is free and no process waits for it with an older ticket. It also does so if the key
	// already carries this very token. The master wakes the oldest waiter of a free key.
	OpAcquire
	// OpExtend renews the lease of a key that carries this token, and raises the fence to at least the given one. Until RefillUntil it also takes the
	// key if it is free. A reply with StatusForced has a *Force as its Answer.
	OpExtend
	// OpRelease frees the key if it carries this token, and wakes the oldest waiter of a free key. With a *Store as its Ask, the master also
	// remembers a result if it has freed the key.
	OpRelease
	// OpBeat, with a *Beat, tells the master about the process, and returns the facts that other processes have told: *Beats.
	OpBeat
	// OpInspect returns the key's holder, its waiters, and its remembered result: *Inspected. It changes nothing.
	OpInspect
	// OpForce, with a *Force, is an OpRelease by an operator rather than the holder. For the TTL, the master answers each OpExtend of this token with
	// StatusForced.
	OpForce
	// OpTrial, with a *Trial, runs all Redis commands of the other operations on separate keys, and leaves nothing behind. It shows whether a master
	// that has refused locks takes them again.
	OpTrial
	// OpNames, with a *Names, asks for the processes that share the master: *Named. The key is the key of OpBeat.
	OpNames
	// OpRecall asks for the result that is remembered for the key: *Result.
	OpRecall
	// OpStore, with a *Store, makes the master remember a result for the key if the key carries this token. The key stays locked.
	OpStore
	// OpMemory asks a server for the state of its memory: *Memory. It needs no key.
	OpMemory

	Ops // the number of operations
)

type Command struct {
	Key   string        // the full key, prefix included: see Key
	Given string        // the key as the caller has written it, if Key has it in another case; else empty. Only results go by it: see ResultOf
	Token string        // the secret by which the holder proves that the lock is its own
	TTL   time.Duration // the length of the lease; for OpForce: how long the token can't be renewed
	Fence int64         // of OpAcquire: the proposed fence; of OpExtend: the lock's fence
	// RefillUntil is the time, on the master's clock in microseconds since 1970, until which OpExtend may take a key that is free.
	RefillUntil int64

	// Process names the Locker in the queues of the masters. A Locker has one place in the queue of a key, for the oldest of its calls. Ticket is
	// that place: when that call came, on the masters' clocks in microseconds since 1970, or TryTicket for a call that doesn't wait.
	Process string
	Ticket  int64

	Former string // the token of a lock on the key that OpAcquire frees before it takes the key; empty for none
	Op     Op
	// Recall makes the master refuse OpAcquire with StatusDone if the master remembers a result for the key. If the result is short, the reply has it.
	Recall bool
	// Queue puts the process into the key's queue, with this ticket, for at most the TTL: with OpAcquire if it is refused, with OpRelease always.
	// Without Queue, OpRelease removes the process from the queue.
	Queue bool
	// Alone means that no process waited when the key was taken, so OpRelease may try a cheaper command (LREM) first.
	Alone bool
	// Fast marks a command that the master can execute for many keys at once. It fails with ErrUndecided if the full script is needed. OpAcquire then
	// needs a free key without waiters, whose fence needn't outlive the lease. OpExtend then needs a key that already has the token and the fence,
	// and renews only the lease. OpRelease, with a *Store, then needs a key with this token for which no process has waited, and without a result.
	Fast bool
	// Slots is how many may hold the lock at once according to the process, if more than one. Key is then the key of the slot that the call asks for,
	// and Process is a CallName: each call has a separate place in the queue, for all slots below Slots.
	Slots uint16
	// Leads is set if the process takes this master for the leader of the key's slots. If several slots are free, or become free, the leader decides
	// which call asks for which slot. Offered makes OpAcquire take a slot that the leader has offered to the call, even if other calls wait.
	Leads, Offered bool

	Ask   Ask   // nil for most operations
	Reply Reply // filled in by the master
}

// Result returns the result that the master is to remember, or nil.
func (c *Command) Result() *Result {
	if store, ok := c.Ask.(*Store); ok {
		return store.Result
	}
	return nil
}

// Ask has the further parameters of an operation. Several masters may share one Ask, so nobody changes it.
type Ask interface{ ask() }

func (*Beat) ask()  {}
func (*Force) ask() {}
func (*Trial) ask() {}
func (*Names) ask() {}
func (*Store) ask() {}

// Beat has the facts that a process tells its masters about itself.
type Beat struct {
	ID     string
	Number int64         // the number of the beat, so that a beat that arrives late doesn't replace a later one
	Life   time.Duration // how long the master remembers the process
	Kind   string        // a word for the process's servers and settings. Masters report one process of each kind. All processes of one kind have the same Life
	Since  int64         // the time since which the process locks, in microseconds on the masters' clocks; 0 if it is about to, and -1 if it doesn't
	About  string        // further facts about the process, for other processes to read
	Asks   []string      // the IDs of processes that the master must report
	Knew   int64         // the beginning of the master's memory, as the master reported it earlier; 0 if unknown. A change means a loss of data

	// The following fields use the beat, but aren't about the process's right to lock.

	// Turns has a line for each key that calls of the process have held, or waited for, for long. A line begins with the hash of the key.
	Turns string
	// Shown is a time that the master's clock has shown while it was right, in microseconds, or 0. Processes know that the clock was right, because
	// they have compared it with other masters' clocks.
	Shown int64
}

// BeatMemory is how long a master keeps the facts about itself after the last beat: the beginning of its memory, and the latest time that its clock
// has shown.
const BeatMemory = time.Hour

// Force names the operator who asks for OpForce.
type Force struct{ By string }

// Trial has the name of a channel for wake-ups.
type Trial struct{ Channel string }

// Names asks for processes.
type Names struct {
	IDs  []string // the processes that the master must report; all if empty
	Hash string   // the hash of a key, if the answer must have these processes' turns on the key; or empty
}

// Store makes a master remember a result, unless the master has a result with the same fence or a larger one. If Keep is 0, the master forgets its
// result, under the same condition.
type Store struct {
	*Result
	Anyway bool // do so even if the key doesn't carry the token, or OpRelease doesn't free it
}

const MaxResult = 1 << 20

// ShortResult is the largest number of bytes of a result that is sent with the lock's own commands.
const ShortResult = 4 << 10

// Result is the result of work under a lock.
type Result struct {
	Data  string        // empty in an *Inspected
	Size  int           // the number of the data's bytes; only in an *Inspected
	Keep  time.Duration // how long the master remembers it
	Fence int64         // the fence of the lock
}

// TryTicket is later than all other tickets, so a call with it is refused if any process waits for the key.
const TryTicket = 1<<53 - 1

// OfferTime is how long the leader of a key's slots keeps a slot for the call to which it has offered the slot. A call that takes longer has lost its
// place in the queue, and gets a new one when it asks again.
const OfferTime = 250 * time.Millisecond

// WatchTime is how long the leader keeps its list of slots after a call was refused. Calls that wait ask more often than that.
const WatchTime = 5 * time.Second

// MaxOthers bounds how many processes a master reports unasked: one of each kind, locking kinds first. Normally there is one kind, and two during a
// change of the configuration.
const MaxOthers = 30

// MaxProcesses bounds how many processes a master reports in a reply.
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

// WakeUp is the message to a waiting process that a key may be free.
type WakeUp struct {
	Key    string // the full key; for a key with several holders, the key of the slot that is offered to the call
	Ticket int64  // the ticket of the process or the call
	Call   uint64 // the number of the call, for a key with several holders; otherwise 0
}

type Reply struct {
	Holder string        // StatusHeld: the holder's token; empty if the key is free, but another process is next in the queue
	TTL    time.Duration // StatusHeld: how long the lease of the holder, or the ticket of the next process, can last. StatusDone: how long the result is kept
	Fence  int64         // StatusGranted by OpAcquire: the fence stored with the grant. StatusDone by OpAcquire: the fence of the result
	Status Status
	Former Status // OpAcquire: the status of the release of the former token
	Alone  bool   // StatusGranted by OpAcquire: no process waits, so a release may have Alone
	Offer  uint16 // StatusHeld with Leads: 1 + the slot that is offered to the call; 0 for none
	// Elsewhere is the number of holders that another call in the queue allows, or 0 if there is no other call. It is set by StatusHeld if the
	// command has Slots.
	Elsewhere uint16
	Time      int64  // the master's clock, in microseconds since 1970; 0 if unknown. OpRelease, OpForce, OpStore and OpNames don't return it
	Answer    Answer // see the operations; nil for most of them
	Err       error  // the reason why there is no valid reply; Status is then StatusNone
}

// Answer has the further results of an operation.
type Answer interface{ answer() }

func (*Beats) answer()     {}
func (*Force) answer()     {}
func (*Inspected) answer() {}
func (*Memory) answer()    {}
func (*Named) answer()     {}
func (*Result) answer()    {}

// Beats has the facts that a master reports about other processes.
type Beats struct {
	// Lines has a line for one process of each other kind, the one that has locked for longest, and a line for each process that was asked for. A
	// line has the process's ID, how many milliseconds ago its last beat came, the number of that beat, the time since which it locks, and its About.
	Lines string
	Mark  int64 // the latest time that the master's clock has shown
	Born  int64 // the beginning of the master's memory of processes; if it changes, the master has lost its data
}

// Inspected has the facts that a master knows about a key.
type Inspected struct {
	Holder string        // the holder's token; empty if the key is free
	TTL    time.Duration // how long the holder's lease can still last
	Fence  int64         // the last stored fence, or 0
	Queue  string        // a line for each process that waits: see Waiter.Line
	Result *Result       // the remembered result, or nil
}

// Named has the facts that a master knows about processes.
type Named struct {
	Lines string // a line for each process, as in Beats
	Turns string // a line for each process with a turn on the key: its ID and the turn
}

type Status uint8

// The values of Status.
const (
	StatusNone     Status = iota // no reply, or the reply to a ping
	StatusGranted                // OpAcquire, OpExtend: the key carries the token now
	StatusHeld                   // OpAcquire: the key carries another token, or another process is next in the queue
	StatusReleased               // OpRelease: the key carried the token and is free now
	StatusExpired                // OpExtend, OpRelease, OpStore: the key was already free; OpRecall: no result is remembered
	StatusForced                 // OpExtend: OpForce has ended the token's lock
	StatusNotOwner               // OpExtend, OpRelease, OpStore: the key carries another token, and keeps it
	StatusDone                   // OpAcquire, OpRecall: a result is remembered. OpStore: this result is remembered, or a later one
)

// IDOf returns the process ID at the beginning of a token, or of the random part of a name. From a token of another program it returns some part as
// well.
func IDOf(random string) string { return random[:min(IDLen, len(random)/2)] }

// Shown returns the part of a token that may be displayed. With the whole token, a reader could end the lock.
func Shown(token string) string { return token[:min(IDLen+4, len(token)/2)] }

// Key returns the name of a lock's key on the masters. It is the only place where a caller's key becomes the name that excludes, so keys that differ
// in the case of ASCII letters alone share a lock.
//
// The part in braces is the hash tag, which makes a Redis Cluster keep all keys of one lock on one node. Redis ends the tag at the first closing
// brace, and ignores an empty tag. So a key that begins with a closing brace, or with opening braces and a closing one, gets one more opening brace.
// No two locks have the same name.
func Key(prefix, key string) string {
	key = lockname.Of(key)
	if strings.HasPrefix(strings.TrimLeft(key, "{"), "}") {
		return prefix + ":{{" + key + "}"
	}
	return prefix + ":{" + key + "}"
}

// Processes returns the key under which a master keeps the beats of processes. The braces put all keys that begin with this key into one hash slot of
// a Redis Cluster.
func Processes(prefix string) string { return prefix + ":processes:{processes}" }

// Given returns the key for the field of this name: empty if the name that Key makes has the key as it is.
func Given(key string) string {
	if lockname.Of(key) == key {
		return ""
	}
	return key
}

// ResultOf returns what the command's result belongs to: the lock, and the key as the caller has written it. Work on one spelling must not count as
// done for another. On a server, the name of the result ends with :result. No other key has that name, because Given has a capital letter, which no
// name of a lock has.
func (c *Command) ResultOf() string {
	if c.Given == "" {
		return c.Key
	}
	return c.Key + ":" + c.Given
}

// FenceSlack is how far a fence may be from the clock of the master that stores it, on either side.
const FenceSlack = 100 * time.Millisecond

// FenceTTL is the shortest time for which a master remembers a fence. A master forgets a fence only when its own clock has passed the fence by this
// much. The next fence is at least that clock minus the slack, so it is larger than the forgotten one, whatever the clocks of other masters show.
// FenceTTL is longer than the slack so that a clock may be set back a little unnoticed.
const FenceTTL = 5 * time.Second

// FenceLife returns how long a master remembers a fence. The fence may be ahead of the master's clock if the proposal came from the clock of another
// master. fence and now, the time on the master's clock, are in microseconds.
func FenceLife(fence, now int64) time.Duration {
	return FenceTTL + time.Duration(max(fence-now, 0))*time.Microsecond
}

// NextFence returns the fence that a master stores with a grant: larger than the last one, near the master's clock, and equal to the proposal if that
// is near the clock, too. All are in microseconds. acquire.lua has the same rule.
func NextFence(last, proposal, now int64) int64 {
	slack := FenceSlack.Microseconds()
	fence := max(last+1, now-slack)
	if proposal > fence && proposal <= now+slack {
		fence = proposal
	}
	return fence
}

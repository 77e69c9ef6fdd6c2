package redlock

import "time"

// Observer is called when something happens to a Locker's masters and leases, for metrics and alarms. Its methods are called
// one after the other, in the order of what happens, shortly after it. They can hold up no lock: what happens while one of
// them blocks waits for it, and is dropped if it is too much; Status.DroppedEvents counts that, as it does a call that panics.
// Locker.Status has the state at the start.
//
// Embed NopObserver, and implement the methods that you need: then a method that is added later breaks
// nothing.
type Observer interface {
	// Acquired is called when a lock has been taken.
	Acquired(Acquisition)
	// Renewed is called when a round of renewals of one lease has ended: with nil when a quorum of the masters has
	// extended it, else with the reason, a *QuorumError or ErrNotOwner. The lease isn't lost by that: the next
	// round comes before its end.
	Renewed(err error)
	// LeaseLost is called when a lock is lost before Unlock, with ErrLost or an error that wraps it.
	LeaseLost(err error)
	// MasterDown is called when a master has no vote any more. Its status says why: it does not answer, it has
	// just restarted, its clock jumped, it is a replica, and so on.
	MasterDown(MasterStatus)
	// MasterUp is called when a master that was down has a vote again.
	MasterUp(master string)
}

// NopObserver is an Observer that does nothing. Embed it in your own.
type NopObserver struct{}

// Acquired does nothing.
func (NopObserver) Acquired(Acquisition) {}

// Renewed does nothing.
func (NopObserver) Renewed(error) {}

// LeaseLost does nothing.
func (NopObserver) LeaseLost(error) {}

// MasterDown does nothing.
func (NopObserver) MasterDown(MasterStatus) {}

// MasterUp does nothing.
func (NopObserver) MasterUp(string) {}

// Acquisition describes how a lock was obtained.
type Acquisition struct {
	// Waited is the time from the call until the lock was taken.
	Waited time.Duration
	// Position is the number of calls for the key in this process that were ahead of this one when it came.
	Position int
	// Via is how the call's turn came.
	Via Via
	// Granted is the number of masters that had granted the lock when it was taken. The others may follow.
	Granted int
}

// Via is how the turn of a call came, see Acquisition.
type Via string

// The values of Via.
const (
	ViaFree   Via = "free"   // the key was free at the first attempt
	ViaPassed Via = "passed" // the holder before it, in the same process, handed the lock on
	ViaWoken  Via = "woken"  // a master published that the key was free
	ViaPolled Via = "polled" // the call found the key free by asking again: the holder had died, or a wake-up was lost
)

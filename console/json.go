package console

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// Status is the response of GET /masters. Its status code is 200; with ?ready, for health checks, it is 503 unless Ready.
type Status struct {
	Ready   bool   `json:"ready"`   // whether every locker can take locks now
	Version string `json:"version"` // of this module
	// Usually there is one. During a reload, and in a process whose configuration or code needs several, there are more.
	Lockers []Locker `json:"lockers"`
}

// Locker is a locker of the process, with its view of its masters.
type Locker struct {
	Instance  string   `json:"instance"`  // the name of this process, by which others know who holds a key
	Prefix    string   `json:"prefix"`    // the prefix of its keys on the masters: processes with another prefix don't honor its locks
	Ready     bool     `json:"ready"`     // whether locks can be taken now
	Quorum    int      `json:"quorum"`    // masters that must grant a lock
	Available int      `json:"available"` // masters that would grant one now
	Held      int      `json:"held"`      // keys that this locker has locked
	Waiting   int      `json:"waiting"`   // calls that don't have their lock yet
	Error     string   `json:"error,omitempty"`
	Masters   []Master `json:"masters"`
	// How the settings of other processes with the same masters differ.
	Disagreements []Disagreement `json:"disagreements,omitempty"`
}

// Disagreement says how the settings of another process differ.
type Disagreement struct {
	redlock.Disagreement
	MaxTTLSeconds float64 `json:"max_ttl_seconds,omitempty"`
	Text          string  `json:"text"` // the whole difference, as a sentence
}

// Processes is the response of GET /processes. It has the processes that are known to the masters that have answered.
type Processes struct {
	Processes []Process `json:"processes"`       // sorted by instance
	Error     string    `json:"error,omitempty"` // why some may be missing
}

// Process is a process that shares masters with this one.
type Process struct {
	inspect.Process
	Silent        bool          `json:"silent,omitempty"` // it was not seen for longer than 7 s: it crashed or was killed, hangs, or is cut off from the masters
	MaxTTLSeconds float64       `json:"max_ttl_seconds,omitempty"`
	Disagreement  *Disagreement `json:"disagreement,omitempty"`
}

// Master is a master as a locker sees it.
type Master struct {
	redlock.MasterStatus
	Error              string  `json:"error,omitempty"`
	RoundTripSeconds   float64 `json:"round_trip_seconds"`
	ClockOffsetSeconds float64 `json:"clock_offset_seconds"`
}

// Locks is the response of GET /locks. The parameters are prefix, limit (100 unless given, at most 1,000), sort, and after: only
// keys that are sorted behind it are listed. So no key that stays is left out or listed twice while others come and go. With
// sort=waiting, the keys come first for which most calls wait, and of these the oldest; this list has one page. With hash, it has only the keys that
// logs name by this key_hash.
type Locks struct {
	Locks   []Lock `json:"locks"`          // sorted by key, unless sort says otherwise
	Keys    int    `json:"keys"`           // how many keys have the prefix, on all pages; a key with several holders counts once for each held slot
	Held    int    `json:"held"`           // how many of these are held
	Waiting int    `json:"waiting"`        // the sum over the keys with the prefix, on all pages: a call for several keys counts at each that it waits for
	Next    string `json:"next,omitempty"` // the URL of the next page, relative to that of the handler
}

// Lock is a key that this process holds or waits for. A key that several lockers know is listed once for each of them.
type Lock struct {
	Key     string           `json:"key"`
	Label   string           `json:"label,omitempty"` // of its lock; the middleware's is the name of the rule
	Held    bool             `json:"held"`
	Since   time.Time        `json:"since,omitzero"` // since when it has been held; or waited for, if this process doesn't hold it
	Until   time.Time        `json:"until,omitzero"` // when its lease ends, unless it is renewed
	Fence   uint64           `json:"fence,omitempty"`
	Slot    *int             `json:"slot,omitempty"` // the slot that is held, of Slots; nil for a key that one request holds at a time
	Slots   int              `json:"slots,omitempty"`
	Waiting int              `json:"waiting"`           // calls of this process that wait for the key
	Line    []inspect.Call   `json:"line,omitempty"`    // the first 20 of these calls, without the call that the other fields are about
	Request *inspect.Request `json:"request,omitempty"` // the request that holds the key, or the first one in line
	Href    string           `json:"href"`              // the URL of its Inspection, relative to that of the handler; right for keys that aren't UTF-8, too
}

// Inspection is the response of GET /locks/{key}, and of GET /locks/{key}?slot=N: 404 if no master knows the key, and 503 if too few of them answer.
type Inspection struct {
	Key string `json:"key"`
	// Usually there is one. There are more if several lockers have different masters or prefixes, and see different locks.
	Lockers []InspectedLocker `json:"lockers"`
}

// InspectedLocker is a key as the masters of one locker see it. If several may hold the key, it is the slot that was asked for, or slot 0.
type InspectedLocker struct {
	Slot       int               `json:"slot,omitempty"`
	Held       bool              `json:"held"`            // whether a quorum has the same lock
	Fence      uint64            `json:"fence,omitempty"` // of that lock
	Holder     string            `json:"holder,omitempty"`
	TTLSeconds float64           `json:"ttl_seconds,omitempty"`
	Turn       *inspect.Turn     `json:"turn,omitempty"`   // the call that has the lock, as its process tells it
	Remembered bool              `json:"remembered"`       // whether a quorum remembers the result
	Result     *Result           `json:"result,omitempty"` // the last one that any master remembers
	Masters    []InspectedMaster `json:"masters"`
	// The slots that are taken, and how many slots there are, if this process knows. Both are empty for a key that one request
	// holds at a time, and if one slot was asked for.
	Taken []TakenSlot `json:"taken,omitempty"`
	Slots int         `json:"slots,omitempty"`
}

// TakenSlot is a slot of a key, if a quorum of the masters has the same lock on the slot.
type TakenSlot struct {
	Slot       int           `json:"slot"`
	Fence      uint64        `json:"fence,omitempty"`
	Holder     string        `json:"holder"`
	TTLSeconds float64       `json:"ttl_seconds"`
	Turn       *inspect.Turn `json:"turn,omitempty"`
}

// Result has the facts about a result that is remembered, such as a response to a delivery, without its content.
type Result struct {
	Fence       uint64  `json:"fence"` // of the lock under which the work was done
	Bytes       int     `json:"bytes"` // as they are stored
	KeepSeconds float64 `json:"keep_seconds"`
}

// InspectedMaster is a key as one master sees it.
type InspectedMaster struct {
	Name       string            `json:"name"`
	Error      string            `json:"error,omitempty"`
	Token      string            `json:"token,omitempty"` // abbreviated; empty if the key is free there
	Holder     string            `json:"holder,omitempty"`
	TTLSeconds float64           `json:"ttl_seconds,omitempty"`
	Fence      uint64            `json:"fence,omitempty"`
	Result     *Result           `json:"result,omitempty"` // that is remembered there
	Queue      []InspectedWaiter `json:"queue"`
}

// InspectedWaiter is a process that waits for a key on a master.
type InspectedWaiter struct {
	Process string        `json:"process"`
	Since   time.Time     `json:"since,omitzero"`
	Turn    *inspect.Turn `json:"turn,omitempty"` // the first call that waits, as the process tells it
}

// Released is the response of DELETE /locks/{key}?fence=N, with &slot=N if several may hold the key: 400 without fence, 404 if no master
// has a lock on the key, 409 if the lock is another one by now, whose fence the Problem has, and 503 if too few masters answer.
type Released struct {
	Key   string `json:"key"`
	Slot  int    `json:"slot,omitempty"`
	Fence uint64 `json:"fence"`
}

// Forgotten is the response of DELETE /results/{key}: 404 if no master that answers remembers a result, 409 if somebody holds the key,
// and 503 if too few masters answer.
type Forgotten struct {
	Key  string          `json:"key"`
	Left []MasterTrouble `json:"left,omitempty"` // masters that may still remember it
}

// MasterTrouble is a master, and the error of asking it.
type MasterTrouble struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// Problem is the response to a request that could not be served.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Fence  uint64 `json:"fence,omitempty"` // of the lock that the key has now
	// Lockers has the views of the masters that have answered, if they were too few.
	Lockers []InspectedLocker `json:"lockers,omitempty"`
}

func (p *Problem) Error() string { return p.Title }

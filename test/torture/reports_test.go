package torture

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// hold is a worker's report of one hold on some keys. It is sent three times: before the keys are used, before they are
// unlocked, and after that. All times are in nanoseconds on one clock for all processes.
type hold struct {
	Number int
	Op     string
	Keys   []string
	Fence  uint64 // 0: unknown
	From   int64  // from then on, and until To, no one else may have had a lock on the keys
	To     int64
	Ended  string // in the last report: how the hold has ended
}

// report is one line from a worker.
type report struct {
	Hold    *hold          `json:",omitempty"`
	Sample  *sample        `json:",omitempty"`
	Refused bool           `json:",omitempty"` // a client of a process with other masters has been told so
	Counts  map[string]int `json:",omitempty"` // in the last report: how often there was each outcome
	Wrong   string         `json:",omitempty"`
}

// sample is what a worker's process uses.
type sample struct {
	At         int64
	Live       uint64 // bytes that survived the last garbage collection
	Goroutines uint64
}

// report writes a report at once, and in one piece, so that a kill doesn't leave half of it.
func (w *worker) report(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(r); err != nil {
		os.Exit(1) // the test has ended
	}
}

// monotonic returns the time of a clock that all processes of the machine share.
func monotonic() int64 {
	var now unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano()
}

// onMonotonic returns a time on that clock. If the process is stopped between the two readings, the result is too early, so a
// validity never seems longer than it is.
func onMonotonic(t time.Time) int64 {
	now := monotonic()
	return now + int64(time.Until(t))
}

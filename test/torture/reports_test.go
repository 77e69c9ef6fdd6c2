package torture

import (
	"os"

	"github.com/caddy-redlock/caddy-redlock/test/witness"
)

// report is one line from a worker.
type report struct {
	Hold    *witness.Hold  `json:",omitempty"`
	Sample  *sample        `json:",omitempty"`
	Refused bool           `json:",omitempty"` // a client of a process with other masters has been told so
	Counts  map[string]int `json:",omitzero"`  // in the last report: how often there was each outcome; empty if a process was ended at once
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

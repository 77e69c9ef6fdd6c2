// Package witness judges what clients of locks have seen on real servers, in whatever language they are written: no two had a key at once,
// and each had a larger fence than those before it. It looks at what clients knew for certain, however late they say so.
package witness

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Hold is a client's report of one hold on some keys. It is sent again as more is known: before the keys are used, before they are
// unlocked, and after that. All times are in nanoseconds on one clock for all processes.
type Hold struct {
	Number int
	Op     string
	Keys   []string // none: it isn't certain that they were held
	Fence  uint64   // 0: unknown
	From   int64    // from then on, and until To, no one else may have had a lock on the keys
	To     int64
	Ended  string // in the last report: how the hold has ended
}

// Witness gets the reports of all holds and knows nothing else.
type Witness struct {
	mu    sync.Mutex
	open  map[holder]Hold
	keys  map[string][]claim
	ended map[string]int
}

// holder is one hold of one client.
type holder struct {
	client string
	number int
}

// claim is one hold on one key.
type claim struct {
	from, to int64
	fence    uint64
	who      string
}

func (c claim) String() string {
	return fmt.Sprintf("%s from %.6f to %.6f s with fence %d", c.who, float64(c.from)/1e9, float64(c.to)/1e9, c.fence)
}

func New() *Witness {
	return &Witness{open: make(map[holder]Hold), keys: make(map[string][]claim), ended: make(map[string]int)}
}

// Record takes a client's report of a hold.
func (w *Witness) Record(client string, h Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := holder{client, h.Number}
	if h.Ended == "" {
		w.open[id] = h
		return
	}
	w.claim(id, h)
}

// Read records what a client prints of its locks on a key, a line each with the fence and, but for the last two, the time: it "has" one,
// still "had" it, has "left" its block, which has "freed" the lock, or it was "lost". Other lines are none of its business.
func (w *Witness) Read(client, key string, from io.Reader) {
	var h Hold
	var left int64
	for lines := bufio.NewScanner(from); lines.Scan(); {
		var word string
		var fence uint64
		var at int64
		n, _ := fmt.Sscan(lines.Text(), &word, &fence, &at)
		switch {
		case n == 3 && word == "has":
			h, left = Hold{Number: h.Number + 1, Op: "lock", Fence: fence, From: at, To: at}, 0
		case n < 2 || fence != h.Fence || h.Ended != "":
			continue
		case n == 3 && word == "had":
			h.To = at
		case n == 3 && word == "left":
			left = at
		case word == "freed" && left > 0:
			h.To, h.Ended = left, "freed"
		case word == "lost":
			h.Ended = "lost"
		}
		if h.To > h.From { // otherwise it may have been lost before it was reported
			h.Keys = []string{key}
		}
		w.Record(client, h)
	}
	w.Died(client)
}

// Died records that a client has ended. It doesn't use its locks any more, but they were its own until To.
func (w *Witness) Died(client string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, h := range w.open {
		if id.client == client {
			w.claim(id, h)
		}
	}
}

func (w *Witness) claim(id holder, h Hold) {
	delete(w.open, id)
	w.ended[id.client]++
	keys := slices.Clone(h.Keys)
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		w.keys[key] = append(w.keys[key], claim{h.From, h.To, h.Fence, fmt.Sprintf("%s's %s %d (%s)", id.client, h.Op, id.number, h.Ended)})
	}
}

// Ended returns how many holds of a client have ended.
func (w *Witness) Ended(client string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[client]
}

// Judge returns what is wrong with the holds that have ended so far, of which there are so many, on so many keys. What is wrong stays wrong,
// whatever is reported later.
func (w *Witness) Judge() (wrong []string, holds, keys int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, claims := range w.keys {
		slices.SortFunc(claims, func(a, b claim) int { return cmp.Compare(a.from, b.from) })
		var last, top claim // the one that ended last, and that with the largest fence
		for _, c := range claims {
			if c.from < last.to {
				wrong = append(wrong, fmt.Sprintf("two holders of key %q, for %.3f ms: %v, and %v", key, float64(min(last.to, c.to)-c.from)/1e6, last, c))
			}
			if c.fence != 0 && c.fence <= top.fence {
				wrong = append(wrong, fmt.Sprintf("the fence of key %q doesn't grow: %v, after %v", key, c, top))
			}
			if c.to > last.to {
				last = c
			}
			if c.fence > top.fence {
				top = c
			}
		}
		holds += len(claims)
	}
	return wrong, holds, len(w.keys)
}

// Now returns the time of a clock that all processes of the machine share.
func Now() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// At returns a time on that clock. If the process is stopped between the two readings, the result is too early, so a validity never seems
// longer than it is.
func At(t time.Time) int64 {
	now := Now()
	return now + int64(time.Until(t))
}

package torture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
)

// witness gets the reports of all holds and knows nothing else. It checks that no two holds on a key overlap, and that each has a
// larger fence than those before it.
type witness struct {
	mu     sync.Mutex
	open   map[holder]*hold
	keys   map[string]*history
	holds  int
	judged int
	wrong  []string
}

// holder is one hold of one worker's process.
type holder struct {
	process string
	number  int
}

// history has the holds on one key.
type history struct {
	pending []claim // not judged yet
	last    claim   // the one that ended last
	fenced  claim   // the one with the largest fence
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

func newWitness() *witness {
	return &witness{open: make(map[holder]*hold), keys: make(map[string]*history)}
}

// record takes a worker's report of a hold.
func (w *witness) record(process string, h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := holder{process, h.Number}
	if h.Ended == "" {
		w.open[id] = h
		return
	}
	delete(w.open, id)
	w.claim(id, h)
}

// died records that a process has ended. It doesn't use its locks any more, but they were its own until To.
func (w *witness) died(process string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, h := range w.open {
		if id.process == process {
			delete(w.open, id)
			w.claim(id, h)
		}
	}
}

func (w *witness) claim(id holder, h *hold) {
	w.holds++
	keys := slices.Clone(h.Keys)
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if w.keys[key] == nil {
			w.keys[key] = new(history)
		}
		w.keys[key].pending = append(w.keys[key].pending, claim{h.From, h.To, h.Fence, fmt.Sprintf("%s's %s %d (%s)", id.process, h.Op, id.number, h.Ended)})
	}
}

// judge judges all holds that began before this time, for which all reports must have come.
func (w *witness) judge(before int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.open {
		before = min(before, h.From)
	}
	for key, h := range w.keys {
		slices.SortFunc(h.pending, func(a, b claim) int { return cmp.Compare(a.from, b.from) })
		n := 0
		for ; n < len(h.pending) && h.pending[n].from < before; n++ {
			c := h.pending[n]
			if c.from < h.last.to {
				w.wrong = append(w.wrong, fmt.Sprintf("two holders of key %q, for %.3f ms: %v, and %v", key, float64(min(h.last.to, c.to)-c.from)/1e6, h.last, c))
			}
			if c.fence != 0 && c.fence <= h.fenced.fence {
				w.wrong = append(w.wrong, fmt.Sprintf("the fence of key %q doesn't grow: %v, after %v", key, c, h.fenced))
			}
			if c.to > h.last.to {
				h.last = c
			}
			if c.fence > h.fenced.fence {
				h.fenced = c
			}
		}
		w.judged += n
		h.pending = slices.Delete(h.pending, 0, n)
	}
}

func (w *witness) complaints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wrong)
}

// TestWitness gives the witness histories for which the verdict is known.
func TestWitness(t *testing.T) {
	over := func(number int, from, to int64, fence uint64) hold {
		return hold{Number: number, Keys: []string{"k"}, From: from, To: to, Fence: fence, Ended: "unlocked"}
	}
	other := over(2, 3, 4, 2)
	other.Keys = []string{"other"}
	several := over(2, 3, 4, 2)
	several.Keys = []string{"other", "k", "k"}
	killed := over(1, 1, 50, 1)
	killed.Ended = ""
	for name, test := range map[string]struct {
		holds []hold
		wrong int
	}{
		"one after the other":       {[]hold{over(1, 1, 5, 1), over(2, 5, 8, 2)}, 0},
		"reported in another order": {[]hold{over(2, 6, 8, 2), over(1, 1, 5, 1)}, 0},
		"overlap":                   {[]hold{over(1, 1, 5, 1), over(2, 4, 8, 2)}, 1},
		"one inside the other":      {[]hold{over(1, 1, 9, 1), over(2, 3, 4, 2), over(3, 5, 6, 3)}, 2},
		"another key":               {[]hold{over(1, 1, 9, 1), other}, 0},
		"one of several keys":       {[]hold{over(1, 1, 9, 1), several}, 1},
		"fence falls":               {[]hold{over(1, 1, 5, 2), over(2, 6, 7, 1)}, 1},
		"fence stays":               {[]hold{over(1, 1, 5, 2), over(2, 6, 7, 2)}, 1},
		"fence not known":           {[]hold{over(1, 1, 5, 2), over(2, 6, 7, 0), over(3, 7, 8, 3)}, 0},
		"in a killed one's time":    {[]hold{killed, over(2, 40, 60, 2)}, 1},
		"after it":                  {[]hold{killed, over(2, 50, 60, 2)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWitness()
			for _, h := range test.holds {
				w.record("worker", &h)
			}
			w.judge(0) // too early for anything
			w.died("worker")
			w.judge(math.MaxInt64)
			if len(w.wrong) != test.wrong {
				t.Errorf("%d complaints, want %d: %q", len(w.wrong), test.wrong, w.wrong)
			}
		})
	}
}

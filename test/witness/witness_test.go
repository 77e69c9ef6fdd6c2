package witness

import (
	"strings"
	"testing"
)

// TestWitness gives the witness histories for which the verdict is known.
func TestWitness(t *testing.T) {
	over := func(number int, from, to int64, fence uint64) Hold {
		return Hold{Number: number, Keys: []string{"k"}, From: from, To: to, Fence: fence, Ended: "unlocked"}
	}
	other := over(2, 3, 4, 2)
	other.Keys = []string{"other"}
	several := over(2, 3, 4, 2)
	several.Keys = []string{"other", "k", "k"}
	killed := over(1, 1, 50, 1)
	killed.Ended = ""
	for name, test := range map[string]struct {
		holds []Hold
		lines string // of a client in another language
		wrong int
	}{
		"one after the other":       {[]Hold{over(1, 1, 5, 1), over(2, 5, 8, 2)}, "", 0},
		"reported in another order": {[]Hold{over(2, 6, 8, 2), over(1, 1, 5, 1)}, "", 0},
		"overlap":                   {[]Hold{over(1, 1, 5, 1), over(2, 4, 8, 2)}, "", 1},
		"one inside the other":      {[]Hold{over(1, 1, 9, 1), over(2, 3, 4, 2), over(3, 5, 6, 3)}, "", 2},
		"another key":               {[]Hold{over(1, 1, 9, 1), other}, "", 0},
		"one of several keys":       {[]Hold{over(1, 1, 9, 1), several}, "", 1},
		"fence falls":               {[]Hold{over(1, 1, 5, 2), over(2, 6, 7, 1)}, "", 1},
		"fence stays":               {[]Hold{over(1, 1, 5, 2), over(2, 6, 7, 2)}, "", 1},
		"fence not known":           {[]Hold{over(1, 1, 5, 2), over(2, 6, 7, 0), over(3, 7, 8, 3)}, "", 0},
		"in a killed one's time":    {[]Hold{killed, over(2, 40, 60, 2)}, "", 1},
		"after it":                  {[]Hold{killed, over(2, 50, 60, 2)}, "", 0},

		"freed before":         {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nhad 2 10\nleft 2 19\nfreed 2\n", 0},
		"freed, and lost":      {nil, "has 2 1\nleft 2 19\nfreed 2\nlost 2\n", 0}, // by one that had not begun
		"freed, and overlaps":  {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nleft 2 25\nfreed 2\n", 1},
		"left, and lost":       {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nhad 2 10\nleft 2 25\nlost 2\n", 0},
		"left, and died":       {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nhad 2 10\nleft 2 25\n", 0},
		"had when another has": {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nhad 2 25\nlost 2\n", 1},
		"never had":            {[]Hold{over(1, 20, 30, 3)}, "has 2 25\nlost 2\n", 0},
		"freed by its child":   {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nfreed 2\nhad 2 25\nleft 2 26\n", 1},
		"two locks":            {[]Hold{over(1, 20, 30, 3)}, "has 2 1\nhad 2 9\nlost 2\nerror 7\nhas 4 30\nhad 4 40\n", 0},
		"a smaller fence":      {[]Hold{over(1, 20, 30, 3)}, "has 2 30\nleft 2 40\nfreed 2\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := New()
			for _, h := range test.holds {
				w.Record("worker", h)
			}
			w.Read("client", "k", strings.NewReader(test.lines))
			w.Died("worker")
			if wrong, _, _ := w.Judge(); len(wrong) != test.wrong {
				t.Errorf("%d complaints, want %d: %q", len(wrong), test.wrong, wrong)
			}
		})
	}
}

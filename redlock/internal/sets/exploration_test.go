package sets

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

const right, wrong, neighbor = 0b00111, 0b11001, 0b01111

// scenes are what is explored.
var scenes = []scene{
	{name: "a refused one, a master forgets", masters: []uint8{right, wrong}, old: 1, others: true, waiting: true, forget: 1},
	{name: "a wrong one starts, a master forgets", masters: []uint8{right, wrong}, old: 1, others: true, forget: 1, start: 1},
	{name: "the same, the names the other way", masters: []uint8{wrong, right}, old: 1, others: true, forget: 1, start: 1},
	{name: "both start", masters: []uint8{right, wrong}, start: 2},
	{name: "a master hangs", masters: []uint8{right, wrong}, old: 1, others: true, hang: 1, start: 1},
	{name: "one is cut off", masters: []uint8{right, wrong}, old: 1, others: true, cut: 1, start: 1},
	{name: "one is suspended", masters: []uint8{right, wrong}, old: 1, others: true, suspend: 1, start: 1},
	{name: "a master flaps", masters: []uint8{right}, old: 1, cut: 2},
	{name: "a neighbor starts", masters: []uint8{right, neighbor}, old: 1, forget: 1, start: 1},
	{name: "one more starts, a master forgets", masters: []uint8{right, right}, old: 1, forget: 1, start: 1},
	{name: "two start, and a wrong one", masters: []uint8{right, right, wrong}, old: 1, others: true, start: 2},
	{name: "a guarded master, and a wrong one starts", masters: []uint8{right, wrong}, old: 1, others: true, guard: true, forget: 1, start: 1},
	{name: "all at once", masters: []uint8{right, right, wrong}, old: 1, others: true, forget: 1, cut: 1, hang: 1, start: 2, kill: 1, suspend: 1},
	{name: "a refused one, a spare server takes the place of a master", masters: []uint8{right, wrong}, old: 1, others: true, waiting: true, spare: true, forget: 1},
}

// TestExploration: whatever happens in these scenes, no two incompatible sets come into use that could know of one another, the older
// one goes on, and nobody is held up. STATES is how many states of each scene are explored at the most.
func TestExploration(t *testing.T) {
	t.Parallel()
	most := 200
	if redistest.Few() {
		most = 20
	}
	if n, err := strconv.Atoi(os.Getenv("STATES")); err == nil {
		most = n
	}
	for _, sc := range slices.Concat(scenes, scripts) {
		t.Run(sc.name, func(t *testing.T) {
			began := time.Now()
			states, all, broken := (&explorer{scene: sc}).explore(most)
			t.Logf("%d states in %v, all of them: %t", states, time.Since(began).Round(time.Millisecond), all)
			if broken != nil {
				t.Error(broken.trace())
			}
		})
	}
}

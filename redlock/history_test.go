package redlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// historyBound is for a run, which takes much less.
const historyBound = 5 * time.Minute

// TestHistories records what 64 clients in three processes see of ten locks, while masters are
// killed, emptied and hung, and holders paused and killed. A lock with a fence must explain it all. "make test" has half of the rounds, on
// three masters.
func TestHistories(t *testing.T) {
	t.Parallel()
	sizes, leastRounds := []int{3, 5}, 6
	leastOperations := 10_000 // acquires and releases, on each number of masters
	if testing.Short() {
		sizes, leastRounds, leastOperations = sizes[:1], leastRounds/2, leastOperations/4
	}
	for _, masters := range sizes {
		t.Run(fmt.Sprint(masters, " masters"), func(t *testing.T) {
			t.Parallel()
			r := startHistoryRun(t, masters, "")
			enough := func() bool {
				sum := r.tally()
				return sum.acquiresAndReleases >= leastOperations && sum.renewed > 0 && sum.lost > 0 && sum.killed > 0
			}
			for round := 0; round < leastRounds || !enough(); round++ {
				if time.Since(r.start) > historyBound {
					t.Fatalf("after %d rounds only %+v", round, r.tally())
				}
				r.strike(round)
			}
			r.stop()
			history := r.history()
			start := time.Now()
			if key := judge(t, fencedLockModel, history); key != "" {
				t.Errorf("the history of key %q is not that of a lock with a fence: see %s", key, picture(t, fencedLockModel, history[key]))
			}
			r.log("%+v, checked in %v", r.tally(), time.Since(start))
		})
	}
}

// TestHistoryOfBrokenLock runs locks that are broken on purpose: the checker must reject each of
// them, and the one with wrong fences for its fences alone.
func TestHistoryOfBrokenLock(t *testing.T) {
	t.Parallel()
	const leastOperations = 2_000
	for broken, test := range map[breakage]struct {
		provoke  func(*historyRun) // what this lock doesn't survive
		excludes bool
	}{
		noQuorum:  {},
		ownFences: {excludes: true},
		neverLost: {provoke: func(r *historyRun) { r.pauseWorker(0) }},
		noGuard: {provoke: func(r *historyRun) {
			for range 3 {
				r.servers[0].Pause()
				time.Sleep(3 * historyTimeout) // so that it is left out
				resume := r.pauseHolder(0)     // on the two others alone, without renewals
				r.servers[0].Resume()
				r.empty(1)
				time.Sleep(historyTTL)
				resume()
			}
		}},
	} {
		t.Run(string(broken), func(t *testing.T) {
			t.Parallel()
			run := func() map[string][]porcupine.Operation {
				r := startHistoryRun(t, 3, broken)
				if test.provoke != nil {
					test.provoke(r)
				}
				eventually(t, historyBound, "enough operations", func() bool { return r.tally().acquiresAndReleases >= leastOperations })
				r.stop()
				return r.history()
			}
			history := run()
			for range 9 { // on a busy machine nobody may have come at the wrong moment
				if judge(t, fencedLockModel, history) != "" {
					break
				}
				history = run()
			}
			if key := judge(t, fencedLockModel, history); key == "" {
				t.Error("the checker takes it for a lock with a fence")
			}
			if key := judge(t, lockModel, history); (key == "") != test.excludes {
				t.Errorf("rejected without a look at the fences: %v, want %v", key != "", !test.excludes)
			}
		})
	}
}

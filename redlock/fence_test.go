package redlock

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// violation is the first one in all small cases for n masters: counters up to the limit, proposals
// below, among and above them, and one that is too far from the masters' clocks, which show 0.
func violation(r rules, n int, limit int64, change func(*fenceModel, []int64, func(*fenceModel, []int64))) (found string) {
	m := newFenceModel(r, n)
	proposals := []int64{0}
	for p := int64(2); p <= limit+2; p += 2 {
		proposals = append(proposals, p)
	}
	proposals = append(proposals, protocol.FenceSlack.Microseconds()+1)
	counterSets(n, limit, func(counters []int64) {
		if found == "" {
			found = m.overtaken(counters, proposals, change)
		}
	})
	return found
}

func TestFenceGrowsFromHolderToHolder(t *testing.T) {
	for n, limit := range map[int]int64{3: 4, 4: 3, 5: 2} {
		if found := violation(safeRules, n, limit, nothing); found != "" {
			t.Error(found)
		}
	}
}

// TestFenceGrowsBetweenNeighbors has two successive holders on sets of masters of which one has a server more.
// The rule for one set is not enough where an even set follows an odd one, and no rule is after two steps.
func TestFenceGrowsBetweenNeighbors(t *testing.T) {
	t.Parallel()
	for n, limit := range map[int]int64{2: 4, 3: 2, 4: 2, 5: 1} {
		if found := violation(safeRules, n, limit, oneStep); found != "" {
			t.Error(found)
		}
		if found := violation(rules{protocol.NextFence, withinOneSet}, n, 1, oneStep); (found != "") != (n%2 == 1) {
			t.Errorf("N=%d, the rule for one set: found %q", n, found)
		} else {
			t.Log(found)
		}
	}
	if violation(safeRules, 3, 1, twoSteps) == "" {
		t.Error("two steps at once: the model finds nothing")
	}
}

// TestFenceOfAllNeighbors tries all sets of up to 8 masters and all votes: an earlier fence of 1 is stored by any quorum of its
// set; each of these masters grants 2 to a later lock, the others 0.
func TestFenceOfAllNeighbors(t *testing.T) {
	for n := 1; n <= 8; n++ {
		set := 1<<n - 1
		for _, later := range []int{set, set | 1<<n, set >> 1} {
			m := ones(later)
			if m == 0 {
				continue
			}
			unsafe := false
			for stored := range set + 1 {
				for votes := range later + 1 {
					if ones(stored) < n/2+1 || votes&^later != 0 || ones(votes) < m/2+1 {
						continue
					}
					granted := append(make([]int64, ones(votes&^stored)), slices.Repeat([]int64{2}, ones(votes&stored))...)
					if fence, _ := vote.ChooseFence(granted, m/2+1); fence < 2 {
						t.Fatalf("%d masters after %d: stored on %b, granted by %b: fence %d", m, n, stored, votes, fence)
					}
					fence, _ := withinOneSet(granted, m, m/2+1)
					unsafe = unsafe || fence < 2
				}
			}
			if unsafe != (n%2 == 1 && m%2 == 0) {
				t.Errorf("%d masters after %d: the rule for one set is unsafe: %v", m, n, unsafe)
			}
		}
	}
}

// TestUnsafeFenceRulesAreFound shows that the model sees what it is made to see.
func TestUnsafeFenceRulesAreFound(t *testing.T) {
	for name, choose := range map[string]func(granted []int64, n, quorum int) (int64, bool){
		"the maximum, not raised": func(granted []int64, _, quorum int) (int64, bool) {
			if len(granted) < quorum {
				return 0, false
			}
			return slices.Max(granted), true
		},
		"not raised": func(granted []int64, _, quorum int) (int64, bool) {
			fence, _ := vote.ChooseFence(granted, quorum)
			return fence, len(granted) >= quorum
		},
		"one index lower": func(granted []int64, n, quorum int) (int64, bool) {
			if len(granted) < quorum {
				return 0, false
			}
			fence := slices.Sorted(slices.Values(granted))[n-quorum-1]
			return fence, quorumHas(granted, fence, quorum)
		},
	} {
		for n := 3; n <= 5; n++ {
			if found := violation(rules{protocol.NextFence, choose}, n, 2, nothing); found == "" {
				t.Errorf("N=%d, %s: the model finds nothing", n, name)
			} else {
				t.Logf("%s: %s", name, found)
			}
		}
	}
	stuck := func(last, proposal, now int64) int64 { return max(last, proposal) }
	if violation(rules{stuck, safeChoice}, 3, 2, nothing) == "" {
		t.Error("counters that don't grow: the model finds nothing")
	}
}

// restartViolation lets any of three masters restart empty between the holders, with clocks that
// differ by the skew, and proposals that are wrong by more than that. A restart takes its guard.
func restartViolation(next func(last, proposal, now int64) int64) (found string) {
	slack := protocol.FenceSlack.Microseconds()
	for skews := range 1 << 3 {
		const skew, start = int64(50_000), int64(1_000_000_000)
		guard := skew + 2*slack + 1
		m := newFenceModel(rules{next, safeChoice}, 3)
		counters := make([]int64, m.n)
		for i := range m.now {
			m.now[i] = start
			if skews&(1<<i) != 0 {
				m.now[i] += skew
			}
			counters[i] = start - 2*slack
		}
		proposals := []int64{0, start - 1, start + slack, start + skew + slack + 1, start + 100*guard, 1<<53 - 1}
		violated := m.overtaken(counters, proposals, func(m *fenceModel, left []int64, visit func(*fenceModel, []int64)) {
			for restarted := range 1 << m.n {
				before, clocks := slices.Clone(left), slices.Clone(m.now)
				for i := range left {
					if restarted&(1<<i) != 0 {
						left[i] = 0
					}
					m.now[i] += int64(ones(restarted)) * guard
				}
				visit(m, left)
				copy(left, before)
				copy(m.now, clocks)
			}
		})
		if violated != "" {
			return violated
		}
	}
	return ""
}

func TestFenceGrowsOverRestarts(t *testing.T) {
	if found := restartViolation(protocol.NextFence); found != "" {
		t.Error(found)
	}
	unclamped := func(last, proposal, now int64) int64 {
		return max(last+1, now-protocol.FenceSlack.Microseconds(), proposal)
	}
	if restartViolation(unclamped) == "" {
		t.Error("proposals far from the masters' clocks are taken: the model finds nothing")
	}
	clockless := func(last, proposal, now int64) int64 { // a counter that starts at 0 after a restart
		if proposal > now+protocol.FenceSlack.Microseconds() {
			proposal = 0
		}
		return max(last+1, proposal)
	}
	if restartViolation(clockless) == "" {
		t.Error("counters that don't follow the clock: the model finds nothing")
	}
}

// forgetViolation lets time pass between the holders, after which each of three masters has forgotten fences that were stored
// for so long. Their clocks are up to an hour apart.
func forgetViolation(life func(fence, now int64) time.Duration) (found string) {
	const skew, start = int64(3600e6), int64(1e15)
	for skews := range 1 << 3 {
		m := newFenceModel(safeRules, 3)
		for i := range m.now {
			m.now[i] = start + int64(skews>>i&1)*skew
		}
		later := newFenceModel(safeRules, 3)
		proposals := []int64{0, start, start + skew}
		found = m.overtaken(make([]int64, 3), proposals, func(m *fenceModel, left []int64, visit func(*fenceModel, []int64)) {
			for _, passed := range []time.Duration{protocol.FenceTTL, time.Minute, time.Hour, time.Hour + protocol.FenceTTL} {
				kept := slices.Clone(left)
				for i := range left {
					later.now[i] = m.now[i] + passed.Microseconds()
					if passed >= life(left[i], m.now[i]) {
						kept[i] = 0
					}
				}
				visit(later, kept)
			}
		})
		if found != "" {
			return found
		}
	}
	return ""
}

func TestFenceGrowsWhereOneIsForgotten(t *testing.T) {
	if found := forgetViolation(protocol.FenceLife); found != "" {
		t.Error(found)
	}
	for _, fixed := range []time.Duration{protocol.FenceTTL, time.Minute} {
		if forgetViolation(func(int64, int64) time.Duration { return fixed }) == "" {
			t.Errorf("all fences are forgotten after %v: the model finds nothing", fixed)
		}
	}
}

func TestChooseFenceIgnoresTheOrder(t *testing.T) {
	for _, granted := range [][]int64{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}} {
		if fence, certain := vote.ChooseFence(granted, 3); fence != 3 || certain {
			t.Errorf("vote.ChooseFence(%v, 3) = %d, %v", granted, fence, certain)
		}
		if fence, certain := vote.ChooseFence(granted, 2); fence != 2 || !certain {
			t.Errorf("vote.ChooseFence(%v, 2) = %d, %v", granted, fence, certain)
		}
	}
}

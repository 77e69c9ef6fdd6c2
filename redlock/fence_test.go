package redlock

import (
	"fmt"
	"slices"
	"testing"
)

// rules are the parts of the protocol that make a fence safe. attempt.go and acquire.lua have
// safeRules; the others are those that look right and are not.
type rules struct {
	next   func(last, proposal, now int64) int64
	choose func(granted []int64, n, quorum int) (fence int64, certain bool)
}

var safeRules = rules{next: nextFence, choose: chooseFence}

// fenceModel is n masters of which each has a counter, a clock, and at most one granted key.
type fenceModel struct {
	rules
	n, quorum int
	now       []int64 // the masters' clocks
}

func newFenceModel(r rules, n int) *fenceModel {
	return &fenceModel{rules: r, n: n, quorum: n/2 + 1, now: make([]int64, n)}
}

// turns gives all that one holder's turn can come to from these counters: its fence, and the
// counters that the next holder finds. Every subset of the masters gets the acquire, the answers
// come in every order and the last ones perhaps never, and of a raise any part is done.
func (m *fenceModel) turns(counters []int64, proposal int64, visit func(fence int64, counters []int64)) {
	for got := range 1 << m.n {
		after, granted := slices.Clone(counters), make([]int64, m.n)
		for i := range m.n {
			if got&(1<<i) != 0 {
				after[i] = m.next(counters[i], proposal, m.now[i])
				granted[i] = after[i]
			}
		}
		m.collect(got, nil, granted, func(answered []int, fence int64, certain bool) {
			if certain {
				visit(fence, after) // those that aren't heard any more have the key all the same
				return
			}
			m.raise(answered, fence, granted, func(raised int) {
				stored := slices.Clone(after)
				for i := range m.n {
					if raised&(1<<i) != 0 {
						stored[i] = max(stored[i], fence)
					}
				}
				visit(fence, stored)
			})
		})
	}
}

// collect is attempt.win: it ends where the fence is certain, or where no more answers come and a
// quorum has granted.
func (m *fenceModel) collect(got int, answered []int, granted []int64, end func(answered []int, fence int64, certain bool)) {
	var fences []int64
	for _, i := range answered {
		fences = append(fences, granted[i])
	}
	fence, certain := m.choose(fences, m.n, m.quorum)
	if certain || len(answered) >= m.quorum {
		end(answered, fence, certain)
	}
	if certain {
		return
	}
	for i := range m.n {
		if got&(1<<i) != 0 && !slices.Contains(answered, i) {
			m.collect(got, append(slices.Clone(answered), i), granted, end)
		}
	}
}

// raise is attempt.raise: every way in which enough of the extends take effect. The others are lost.
func (m *fenceModel) raise(answered []int, fence int64, granted []int64, won func(raised int)) {
	low, stored := 0, 0
	for _, i := range answered {
		if granted[i] < fence {
			low |= 1 << i
		} else {
			stored++
		}
	}
	for raised := range 1 << m.n {
		if raised&^low == 0 && stored+ones(raised) >= m.quorum {
			won(raised)
		}
	}
}

func ones(set int) (n int) {
	for ; set != 0; set &= set - 1 {
		n++
	}
	return n
}

// least is the smallest fence that a holder can have from these counters. What it leaves behind
// doesn't matter here, so only the answered masters do; their order does, as it may end the attempt.
func (m *fenceModel) least(counters []int64, proposal int64) (fence int64, any bool) {
	granted := make([]int64, m.n)
	for i := range m.n {
		granted[i] = m.next(counters[i], proposal, m.now[i])
	}
	m.collect(1<<m.n-1, nil, granted, func(_ []int, f int64, _ bool) {
		if !any || f < fence {
			fence, any = f, true
		}
	})
	return fence, any
}

// overtaken looks for two successive holders of which the second's fence isn't the larger one.
// Between them, forget may change the counters and clocks.
func (m *fenceModel) overtaken(counters []int64, proposals []int64, forget func(counters []int64, visit func())) string {
	type turn struct {
		fence    int64
		counters string
	}
	found, seen := "", make(map[turn]bool)
	for _, first := range proposals {
		m.turns(counters, first, func(fence int64, left []int64) {
			t := turn{fence, fmt.Sprint(left)}
			if seen[t] || found != "" {
				return
			}
			seen[t] = true
			left = slices.Clone(left)
			forget(left, func() {
				for _, second := range proposals {
					if next, ok := m.least(left, second); ok && next <= fence && found == "" {
						found = fmt.Sprintf("N=%d, counters %v: fence %d (proposed %d), then, from %v, fence %d (proposed %d)",
							m.n, counters, fence, first, left, next, second)
					}
				}
			})
		})
	}
	return found
}

// nothing is forgotten between the holders.
func nothing(_ []int64, visit func()) { visit() }

// counterSets calls visit with all counters up to limit. The masters are alike, and all their
// subsets and orders are tried, so that sorted ones are enough.
func counterSets(n int, limit int64, visit func(counters []int64)) {
	counters := make([]int64, n)
	var fill func(i int, from int64)
	fill = func(i int, from int64) {
		if i == n {
			visit(slices.Clone(counters))
			return
		}
		for c := from; c <= limit; c++ {
			counters[i] = c
			fill(i+1, c)
		}
	}
	fill(0, 0)
}

// violation is the first one in all small cases for n masters: counters up to the limit, proposals
// below, among and above them, and one that is too far from the masters' clocks, which show 0.
func violation(r rules, n int, limit int64) (found string) {
	m := newFenceModel(r, n)
	proposals := []int64{0}
	for p := int64(2); p <= limit+2; p += 2 {
		proposals = append(proposals, p)
	}
	proposals = append(proposals, fenceSlack.Microseconds()+1)
	counterSets(n, limit, func(counters []int64) {
		if found == "" {
			found = m.overtaken(counters, proposals, nothing)
		}
	})
	return found
}

func TestFenceGrowsFromHolderToHolder(t *testing.T) {
	for n, limit := range map[int]int64{3: 4, 4: 3, 5: 2} {
		if found := violation(safeRules, n, limit); found != "" {
			t.Error(found)
		}
	}
}

// TestUnsafeFenceRulesAreFound shows that the model sees what it is made to see.
func TestUnsafeFenceRulesAreFound(t *testing.T) {
	quorumHas := func(granted []int64, fence int64, quorum int) bool {
		stored := 0
		for _, f := range granted {
			if f >= fence {
				stored++
			}
		}
		return stored >= quorum
	}
	for name, choose := range map[string]func(granted []int64, n, quorum int) (int64, bool){
		"the maximum, not raised": func(granted []int64, _, quorum int) (int64, bool) {
			if len(granted) < quorum {
				return 0, false
			}
			return slices.Max(granted), true
		},
		"not raised": func(granted []int64, n, quorum int) (int64, bool) {
			fence, _ := chooseFence(granted, n, quorum)
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
			if found := violation(rules{nextFence, choose}, n, 2); found == "" {
				t.Errorf("N=%d, %s: the model finds nothing", n, name)
			} else {
				t.Logf("%s: %s", name, found)
			}
		}
	}
	stuck := func(last, proposal, now int64) int64 { return max(last, proposal) }
	if violation(rules{stuck, chooseFence}, 3, 2) == "" {
		t.Error("counters that don't grow: the model finds nothing")
	}
}

// restartViolation lets any of three masters restart empty between the holders, with clocks that
// differ by the skew, and proposals that are wrong by more than that. A restart takes its guard.
func restartViolation(next func(last, proposal, now int64) int64) (found string) {
	slack := fenceSlack.Microseconds()
	for skews := range 1 << 3 {
		const skew, start = int64(50_000), int64(1_000_000_000)
		guard := skew + 2*slack + 1
		m := newFenceModel(rules{next, chooseFence}, 3)
		counters := make([]int64, m.n)
		for i := range m.now {
			m.now[i] = start
			if skews&(1<<i) != 0 {
				m.now[i] += skew
			}
			counters[i] = start - 2*slack
		}
		proposals := []int64{0, start - 1, start + slack, start + skew + slack + 1, start + 100*guard, 1<<53 - 1}
		violated := m.overtaken(counters, proposals, func(left []int64, visit func()) {
			for restarted := range 1 << m.n {
				before, clocks := slices.Clone(left), slices.Clone(m.now)
				for i := range left {
					if restarted&(1<<i) != 0 {
						left[i] = 0
					}
					m.now[i] += int64(ones(restarted)) * guard
				}
				visit()
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
	if found := restartViolation(nextFence); found != "" {
		t.Error(found)
	}
	unclamped := func(last, proposal, now int64) int64 {
		return max(last+1, now-fenceSlack.Microseconds(), proposal)
	}
	if restartViolation(unclamped) == "" {
		t.Error("proposals far from the masters' clocks are taken: the model finds nothing")
	}
	clockless := func(last, proposal, now int64) int64 { // a counter that starts at 0 after a restart
		if proposal > now+fenceSlack.Microseconds() {
			proposal = 0
		}
		return max(last+1, proposal)
	}
	if restartViolation(clockless) == "" {
		t.Error("counters that don't follow the clock: the model finds nothing")
	}
}

func TestChooseFenceIgnoresTheOrder(t *testing.T) {
	for _, granted := range [][]int64{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}} {
		if fence, certain := chooseFence(granted, 5, 3); fence != 3 || certain {
			t.Errorf("chooseFence(%v, 5, 3) = %d, %v", granted, fence, certain)
		}
		if fence, certain := chooseFence(granted, 3, 2); fence != 2 || !certain {
			t.Errorf("chooseFence(%v, 3, 2) = %d, %v", granted, fence, certain)
		}
	}
}

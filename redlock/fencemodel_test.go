package redlock

import (
	"fmt"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// rules are the parts of the protocol that make a fence safe. attempt.go and acquire.lua have
// safeRules; the others are those that look right and are not.
type rules struct {
	next   func(last, proposal, now int64) int64
	choose func(granted []int64, n, quorum int) (fence int64, certain bool)
}

var safeRules = rules{next: protocol.NextFence, choose: safeChoice}

func safeChoice(granted []int64, _, quorum int) (int64, bool) {
	return vote.ChooseFence(granted, quorum)
}

// withinOneSet is enough as long as the masters are the same everywhere.
func withinOneSet(granted []int64, n, quorum int) (fence int64, certain bool) {
	if len(granted) < quorum {
		return 0, false
	}
	fence = slices.Sorted(slices.Values(granted))[n-quorum]
	return fence, quorumHas(granted, fence, quorum)
}

func quorumHas(granted []int64, fence int64, quorum int) bool {
	stored := 0
	for _, f := range granted {
		if f >= fence {
			stored++
		}
	}
	return stored >= quorum
}

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
// counters that the next holder finds. Every subset of the masters gets the acquire, the replies
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

// collect is attempt.win: it ends where the fence is certain, or where no more replies come and a
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
// Between them, the counters and clocks may change, and the masters.
func (m *fenceModel) overtaken(counters []int64, proposals []int64, change func(m *fenceModel, counters []int64, visit func(*fenceModel, []int64))) string {
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
			change(m, slices.Clone(left), func(m *fenceModel, left []int64) {
				for _, second := range proposals {
					if next, ok := m.least(left, second); ok && next <= fence && found == "" {
						found = fmt.Sprintf("N=%d, counters %v: fence %d (proposed %d), then, from %v, fence %d (proposed %d)",
							len(counters), counters, fence, first, left, next, second)
					}
				}
			})
		})
	}
	return found
}

// nothing changes between the holders.
func nothing(m *fenceModel, counters []int64, visit func(*fenceModel, []int64)) { visit(m, counters) }

// oneStep has the later holder's masters be one more, on which there may have been any locks, or one less.
func oneStep(m *fenceModel, counters []int64, visit func(*fenceModel, []int64)) {
	more := newFenceModel(m.rules, m.n+1)
	for c := range slices.Max(counters) + 2 {
		visit(more, append(slices.Clone(counters), c))
	}
	less := newFenceModel(m.rules, m.n-1)
	for i := range counters {
		visit(less, slices.Delete(slices.Clone(counters), i, i+1))
	}
}

// twoSteps has one less, and another in the place of a second.
func twoSteps(m *fenceModel, counters []int64, visit func(*fenceModel, []int64)) {
	oneStep(m, counters, func(m *fenceModel, counters []int64) {
		if m.n > 1 {
			oneStep(m, counters, visit)
		}
	})
}

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

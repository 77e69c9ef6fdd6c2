package traefik

import "time"

// counts counts an answer, and reports whether the attempt still waits for it.
func counts(a *attempt, c *command) bool {
	if c.phase != a.phase || a.pending == 0 {
		return false
	}
	a.pending--
	return true
}

// decide wakes the caller if the phase is decided.
func decide(a *attempt) {
	quorum := a.l.quorum
	switch a.phase {
	case voting:
		if a.certain || a.yes+a.pending < quorum || a.pending == 0 {
			notify(a)
		}
	case raising:
		if stored := storedFence(a); stored >= quorum || stored+a.pending < quorum {
			notify(a)
		}
	case releasing:
		if a.yes >= quorum || a.pending == 0 {
			notify(a)
		}
	}
}

func countGrant(a *attempt, c *command) {
	if !counts(a, c) {
		return
	}
	c.vote.granted = true
	chooseFence(a)
	decide(a)
}

func (a *attempt) refused(c *command, holder string, left time.Duration) {
	if !counts(a, c) {
		return
	}
	a.holders = append(a.holders, holder)
	a.left = longer(a.left, left)
	decide(a)
}

func (a *attempt) failed(c *command) {
	if c.phase == held {
		a.l.renewed(c, 0)
	} else if counts(a, c) {
		a.failures++
		decide(a)
	}
}

func (a *attempt) stored(c *command) {
	if c.phase == held {
		a.l.renewed(c, 1)
	} else if counts(a, c) {
		c.vote.fence = a.fence
		decide(a)
	}
}

func (a *attempt) taken(c *command) {
	if c.phase == held {
		a.l.renewed(c, -1)
	} else if counts(a, c) {
		decide(a)
	}
}

func countRelease(a *attempt, c *command, released bool) {
	if !counts(a, c) {
		return
	}
	if released {
		a.yes++
	}
	decide(a)
}

// chooseFence takes the quorum-th smallest of the granted fences. It is certain if a quorum has stored that much, as fence.go of
// package redlock explains. A master has no vote if its fence for the key is further ahead of another's than correct clocks allow:
// a wrong clock has left it there.
func chooseFence(a *attempt) {
	least := int64(0)
	for _, v := range a.votes {
		if v.granted && (least == 0 || v.fence < least) {
			least = v.fence
		}
	}
	lead := int64((a.l.maxSkew + 2*fenceSlack + setBackTolerance) / time.Microsecond)
	fences := make([]int64, 0, len(a.votes))
	for _, v := range a.votes {
		v.granted = v.granted && v.fence-least <= lead
		if v.granted {
			fences = append(fences, v.fence)
		}
	}
	a.yes = len(fences)
	a.certain = false
	if a.yes >= a.l.quorum {
		sortNumbers(fences)
		a.fence = fences[a.l.quorum-1]
		a.certain = storedFence(a) >= a.l.quorum
	}
}

// storedFence returns how many masters have granted and stored the lock's fence.
func storedFence(a *attempt) int {
	stored := 0
	for _, v := range a.votes {
		if v.granted && v.fence >= a.fence {
			stored++
		}
	}
	return stored
}

package sets

import (
	"cmp"
	"math/bits"
)

// What must not happen.
const (
	oneSet = "two incompatible sets are in use"
	elder  = "an elder set yields"
	heldUp = "a process is held up"
	parted = "two sets stay in use that know of one another"
	nobody = "nobody comes into use"
	ties   = "a claim gives way to one that has waited"
	noLoss = "a master passes for one that has lost its data"
)

// entered looks whether a process that comes into use could know of another one that may hold locks.
func (e *explorer) entered(s *state, i int, waited bool) {
	p := &s.procs[i]
	young := true
	e.each(i, func(_, own int) {
		v := &p.judge.views[own]
		young = young && (v.told.IsZero() || v.age() < settled)
	})
	for o := range s.procs {
		other := &s.procs[o]
		if o == i || !e.incompatible(i, o) || !s.now.Before(other.locks) && !s.uses(o) || young && !waited {
			continue
		}
		e.each(i, func(m, own int) {
			last := other.reached[m]
			forgot := s.forgot[m].After(last)
			switch {
			case s.now.Before(s.servers[m].guard) && s.now.Sub(last) < life: // it can, soon
			case last.IsZero(), p.judge.views[own].told.IsZero() && !waited && (!s.reaches(i, m) || s.now.Sub(p.judge.claimed) >= grace):
				return // nobody can tell
			case forgot && waited && s.now.Sub(s.forgot[m]) >= life, !forgot && s.now.Sub(last) >= life:
				return // the master has known of nobody for long
			case forgot && !waited && (s.now.Sub(last) >= settled || s.now.Sub(s.forgot[m]) >= settled):
				return // nobody has told the master since it forgot
			}
			s.violated("%s: process %d comes into use beside process %d, of which master %d could tell", oneSet, i, o, m)
		})
	}
}

// yielded looks whether there is an older set than one that goes out of use.
func (e *explorer) yielded(s *state, i int) {
	for o := range s.procs {
		if set := e.masters[o]; e.incompatible(i, o) && !s.used[set].IsZero() && s.used[set].Before(s.used[e.masters[i]]) && s.now.Sub(s.lasted[set]) < 2*life {
			return
		}
	}
	s.violated("%s: process %d", elder, i)
}

// gaveWay looks for a claim that has not waited either, or a set in use, when one gives way.
func (e *explorer) gaveWay(s *state, i int) {
	waited := 0
	for o := range s.procs {
		other := &s.procs[o]
		if !e.incompatible(i, o) {
			continue
		}
		if last := s.lasted[e.masters[o]]; !last.IsZero() && s.now.Sub(last) < 2*life || other.judge == nil || !other.waited {
			return
		}
		waited++
	}
	if waited > 0 && e.whole(s, i) && !s.procs[i].late {
		s.violated("%s: process %d", ties, i)
	}
}

// reaches reports whether a process and a master have nothing between them.
func (s *state) reaches(i, m int) bool {
	p := &s.procs[i]
	return p.judge != nil && !p.suspended && p.cut>>m&1 == 0 && !s.servers[m].hung && !s.now.Before(s.servers[m].guard)
}

func (s *state) uses(i int) bool {
	p := &s.procs[i]
	return p.judge != nil && p.judge.state == Uses && !p.suspended && before(s.now, p.judge.Until())
}

// judge looks at the state at the end of a step.
func (e *explorer) judge(s *state) {
	both := false
	for i := range s.procs {
		if s.uses(i) {
			s.procs[i].locks, s.lasted[e.masters[i]] = s.now.Add(ttl), s.now
		}
		for o := range i {
			shared := e.masters[i] & e.masters[o]
			knows := false
			for m := range s.servers {
				knows = knows || shared>>m&1 == 1 && s.reaches(i, m) && s.reaches(o, m)
			}
			both = both || e.incompatible(i, o) && s.uses(i) && s.uses(o) && knows
		}
	}
	if s.both++; !both {
		s.both = 0
	}
	if s.none++; !e.idles(s) {
		s.none = 0
	}
	if s.none > cmp.Or(e.soon, 10) {
		s.violated("%s", nobody)
	}
	if s.both > 3 {
		s.violated("%s", parted)
	}
	for i := range s.procs {
		p := &s.procs[i]
		if p.stuck++; !e.due(s, i) {
			p.stuck = 0
		}
		if p.stuck > 4 {
			s.violated("%s: process %d, though its set is in use", heldUp, i)
		}
	}
}

// idles reports whether nobody is in use, though at least one process runs, and all that do reach all their masters.
func (e *explorer) idles(s *state) bool {
	runs := false
	for i := range s.procs {
		runs = runs || s.procs[i].judge != nil
		if s.procs[i].judge != nil && (s.uses(i) || !e.whole(s, i)) {
			return false
		}
	}
	return runs
}

// whole reports whether a process reaches all its masters, and hears them at once.
func (e *explorer) whole(s *state, i int) bool {
	if s.procs[i].deaf {
		return false
	}
	for m := range s.servers {
		if e.masters[i]>>m&1 == 1 && !s.reaches(i, m) {
			return false
		}
	}
	return true
}

// due reports whether a process should come into use soon: it reaches all masters, no other set is in use, and its own is in use, or
// a compatible one, or nobody else could be.
func (e *explorer) due(s *state, i int) bool {
	if p := &s.procs[i]; p.judge == nil || p.judge.state == Uses || !e.whole(s, i) {
		return false
	}
	known, rivals := false, false
	for o := range s.procs {
		switch set := e.masters[o]; {
		case e.incompatible(i, o) && s.now.Sub(s.lasted[set]) < 2*life+settled:
			return false
		case e.incompatible(i, o):
			n := 0
			for m := range s.servers {
				if set>>m&1 == 1 && s.reaches(o, m) {
					n++
				}
			}
			rivals = rivals || n > bits.OnesCount8(set)/2
		case o != i:
			known = known || s.uses(o) && e.whole(s, o)
		}
	}
	return known || !rivals
}

package sets

// What must not happen.
const (
	oneSet = "two incompatible sets are in use"
	elder  = "an elder set yields"
	heldUp = "a process is held up"
	parted = "two sets stay in use that know of one another"
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

// reaches reports whether a process and a master have nothing between them.
func (s *state) reaches(i, m int) bool {
	p := &s.procs[i]
	return p.judge != nil && !p.suspended && p.cut>>m&1 == 0 && !s.servers[m].hung
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

// due reports whether a process should come into use soon: its set is in use, it reaches all masters, and no other set is in use.
func (e *explorer) due(s *state, i int) (due bool) {
	if p := &s.procs[i]; p.judge == nil || p.judge.state == Uses {
		return false
	}
	for m := range s.servers {
		if e.masters[i]>>m&1 == 1 && !s.reaches(i, m) {
			return false
		}
	}
	for o := range s.procs {
		switch set := e.masters[o]; {
		case e.incompatible(i, o) && s.now.Sub(s.lasted[set]) < 2*life+settled:
			return false
		case o != i && set == e.masters[i]:
			due = due || s.uses(o)
			for m := range s.servers {
				due = due && (set>>m&1 == 0 || s.reaches(o, m))
			}
		}
	}
	return due
}

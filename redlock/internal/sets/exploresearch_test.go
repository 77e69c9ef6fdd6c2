package sets

import (
	"fmt"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"slices"
	"strings"
)

// faults calls f with the state after each fault that may happen now, and with none.
func (e *explorer) faults(s *state, f func(*state)) {
	do := func(kind int, what string, change func(*state)) {
		if kind >= 0 && s.left[kind] == 0 || e.script != nil && (s.steps >= len(e.script) && what != "" || s.steps < len(e.script) && e.script[s.steps] != what) {
			return
		}
		c := s.clone()
		if kind >= 0 {
			c.left[kind]--
		}
		c.steps = min(c.steps+1, len(e.script))
		c.path = &step{s.path, what}
		change(c)
		f(c)
	}
	do(-1, "", func(*state) {})
	for m := range s.servers {
		if s.servers[m].hung {
			do(-1, fmt.Sprint("master ", m, " wakes"), func(c *state) { e.wake(c, m) })
			continue
		}
		if s.servers[m].Born > 0 {
			do(0, fmt.Sprint("master ", m, " forgets"), func(c *state) { e.forgets(c, m) })
		}
		do(2, fmt.Sprint("master ", m, " hangs"), func(c *state) { c.servers[m].hung = true })
	}
	for i := range s.procs {
		p := &s.procs[i]
		if p.judge == nil {
			start := func(c *state) { c.procs[i].judge = e.newJudge(c.now, i) }
			do(3, fmt.Sprint("process ", i, " starts"), start)
			for m := range s.servers {
				if s.servers[m].Born > 0 && s.left[0] > 0 {
					do(3, fmt.Sprint("master ", m, " forgets, and process ", i, " starts"), func(c *state) {
						c.left[0]--
						e.forgets(c, m)
						start(c)
					})
				}
				if s.left[1] > 0 && e.masters[i]>>m&1 == 1 {
					do(3, fmt.Sprint("process ", i, " starts, cut off from master ", m), func(c *state) {
						c.left[1]--
						c.procs[i].cut |= 1 << m
						start(c)
					})
				}
			}
			continue
		}
		do(4, fmt.Sprint("process ", i, " is killed"), func(c *state) {
			c.procs[i] = proc{locks: p.locks, reached: c.procs[i].reached, cut: p.cut}
		})
		if p.suspended {
			do(-1, fmt.Sprint("process ", i, " goes on"), func(c *state) { c.procs[i].suspended = false })
		} else {
			do(5, fmt.Sprint("process ", i, " is suspended"), func(c *state) { c.procs[i].suspended = true })
		}
		e.each(i, func(m, _ int) {
			if p.cut>>m&1 == 1 {
				do(-1, fmt.Sprint("process ", i, " reaches master ", m, " again"), func(c *state) { c.procs[i].cut &^= 1 << m })
			} else {
				do(1, fmt.Sprint("process ", i, " is cut off from master ", m), func(c *state) { c.procs[i].cut |= 1 << m })
			}
		})
	}
}

// guarded is how long a restart guard lasts.
const guarded = 2*tick + tick/2

// forgets has a master restart empty.
func (e *explorer) forgets(s *state, m int) {
	s.servers[m].Sets, s.forgot[m] = memory.Sets{}, s.now
	if e.spare {
		s.servers[m].Sets = memory.Sets{Born: s.now.Add(-2 * giant).UnixMicro(), Uses: make(map[string]memory.Use), Processes: make(map[string]memory.Process)}
	}
	if e.guard {
		s.servers[m].guard = s.now.Add(guarded)
		s.forgot[m] = s.servers[m].guard
		for i := range s.procs {
			if p := &s.procs[i]; p.judge != nil && e.masters[i]>>m&1 == 1 {
				p.inbox = slices.DeleteFunc(p.inbox, func(a heard) bool { return a.master == m })
			}
		}
	}
}

// wake has a hung master read what was sent to it.
func (e *explorer) wake(s *state, m int) {
	s.servers[m].hung = false
	for i := range s.procs {
		p := &s.procs[i]
		p.sent = slices.DeleteFunc(p.sent, func(a heard) bool {
			if a.master == m {
				p.inbox = append(p.inbox, e.execute(s, i, a))
			}
			return a.master == m
		})
	}
}

var orders = map[int][][]int{1: {{0}}, 2: {{0, 1}, {1, 0}}, 3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}}

// next calls f with each state that may follow.
func (e *explorer) next(s *state, f func(*state)) {
	e.faults(s, func(c *state) {
		for _, order := range orders[len(s.procs)] {
			for deaf := range 1 << len(s.procs) {
				if idle(c, deaf) || e.script != nil && (deaf > 0 || !slices.IsSorted(order)) {
					continue
				}
				n := c.clone()
				n.path = &step{c.path.before, fmt.Sprint(c.path.what, "; order ", order, ", late replies ", deaf)}
				for i := range n.procs {
					p := &n.procs[i]
					p.late, p.deaf = p.deaf, deaf>>i&1 == 1
				}
				for _, i := range order {
					e.act(n, i)
				}
				e.pass(n)
				e.judge(n)
				f(n)
			}
		}
	})
}

// pass lets the time of a step pass, in which processes look again and again.
func (e *explorer) pass(s *state) {
	for end := s.now.Truncate(tick).Add(tick); s.now.Before(end); {
		s.now = s.now.Add(min(grace*4/5, end.Sub(s.now)))
		for i := range s.procs {
			if p := &s.procs[i]; p.judge != nil && !p.suspended && p.judge.state == Claims {
				e.watch(s, i, func() {
					if e.look != nil {
						e.look(p.judge, s.now)
					}
					p.judge.Look(s.now)
				})
			}
		}
	}
}

// idle reports whether a choice is about a process that does nothing.
func idle(s *state, deaf int) bool {
	for i := range s.procs {
		if p := &s.procs[i]; deaf>>i&1 == 1 && (p.judge == nil || p.suspended) {
			return true
		}
	}
	return false
}

// explore returns how many states there are, whether these are all, and the shortest way to one that must not be.
func (e *explorer) explore(most int) (states int, all bool, broken *state) {
	first := e.begin()
	seen := map[string]bool{e.key(first): true}
	list := []*state{first}
	for len(list) > 0 {
		var after []*state
		for _, s := range list {
			e.next(s, func(n *state) {
				if n.broken != "" && broken == nil {
					broken = n
				}
				if key := e.key(n); broken == nil && !seen[key] {
					seen[key] = true
					after = append(after, n)
				}
			})
			if broken != nil || len(seen) > most {
				return len(seen), false, broken
			}
		}
		list = after
	}
	return len(seen), true, nil
}

func (s *state) trace() string {
	var steps []string
	for p := s.path; p != nil; p = p.before {
		steps = append(steps, p.what)
	}
	slices.Reverse(steps)
	return s.broken + "\n" + strings.Join(steps, "\n")
}

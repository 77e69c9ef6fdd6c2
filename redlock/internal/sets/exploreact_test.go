package sets

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// act has a process hear what it hasn't heard, and register.
func (e *explorer) act(s *state, i int) {
	p := &s.procs[i]
	if p.judge == nil || p.suspended {
		return
	}
	s.now = s.now.Add(time.Millisecond)
	j := p.judge
	inbox := p.inbox
	p.inbox = nil
	for _, a := range inbox {
		e.hear(s, i, a)
	}
	e.watch(s, i, func() {
		if e.look != nil {
			e.look(j, s.now)
		}
		j.Look(s.now)
	})
	e.each(i, func(m, own int) {
		if p.cut>>m&1 == 0 && !s.servers[m].hung && !s.now.Before(s.servers[m].guard) && !j.own.Masters[own].Up {
			e.watch(s, i, func() { j.Reached(s.now, own, protocol.Server{RunID: fmt.Sprint(m), Received: s.now}, time.Time{}) })
		}
	})
	for range 3 { // what it hears may have it register at once again
		p.again = false
		e.register(s, i)
		if p.deaf || !p.again {
			break
		}
	}
}

// register has a process register with each master, and hear the replies.
func (e *explorer) register(s *state, i int) {
	p := &s.procs[i]
	j := p.judge
	s.now = s.now.Add(time.Millisecond)
	e.each(i, func(m, own int) {
		if slices.ContainsFunc(p.sent, func(a heard) bool { return a.master == m }) {
			return // it hasn't answered yet
		}
		g := j.Register(s.now, own)
		if e.send != nil {
			e.send(j, &g)
		}
		switch a := (heard{master: m, g: g}); {
		case s.now.Before(s.servers[m].guard):
			e.watch(s, i, func() { j.Failed(s.now, own, g, Guarded) })
		case p.cut>>m&1 == 1:
			e.watch(s, i, func() { j.Failed(s.now, own, g, Silent) })
		case s.servers[m].hung:
			p.sent = append(p.sent, a)
		default:
			p.inbox = append(p.inbox, e.execute(s, i, a))
		}
	})
	if !p.deaf {
		inbox := p.inbox
		p.inbox = nil
		for _, a := range slices.Backward(inbox) { // those of the shared masters last
			e.hear(s, i, a)
		}
	}
}

// execute has a master read a registration.
func (e *explorer) execute(s *state, i int, a heard) heard {
	a.reply = s.servers[a.master].Register(&protocol.Command{Token: a.g.Text, Former: a.g.Former, Age: a.g.Age}, s.now.UnixMicro())
	if a.g.state != Waits {
		s.procs[i].reached[a.master] = s.now
	}
	return a
}

// hear gives a process a reply.
func (e *explorer) hear(s *state, i int, a heard) {
	j := s.procs[i].judge
	e.each(i, func(m, own int) {
		if m != a.master {
			return
		}
		e.watch(s, i, func() {
			if e.answer != nil {
				e.answer(j, own, &a.reply)
			}
			if e.look != nil {
				e.look(j, s.now)
			}
			former := j.views[own]
			if lost := j.Answered(s.now, own, a.g, a.reply); lost && former.sent.After(s.forgot[m]) {
				s.violated("%s: master %d", noLoss, m)
			}
		})
	})
}

// watch notes what comes of something that a process is told.
func (e *explorer) watch(s *state, i int, told func()) {
	p := &s.procs[i]
	j := p.judge
	was, waited := j.state, j.own.Waited
	told()
	p.again = p.again || j.Again()
	j.notes = nil
	clear(j.logged)
	set := e.masters[i]
	switch {
	case was != Uses && j.state == Uses:
		if last, ok := s.lasted[set]; !ok || s.now.Sub(last) > life {
			s.used[set] = s.now
		}
		e.entered(s, i, waited)
	case was == Uses && j.state == Waits:
		e.yielded(s, i)
	case was == Claims && j.state == Waits && !p.waited:
		e.gaveWay(s, i)
	}
	_, refused := j.refusal.(*conflictError)
	p.waited = j.state == Waits && refused || p.waited && j.state != Uses
	if j.state == Waits { // the masters hear of that now
		p.reached = make([]time.Time, len(s.servers))
	}
	if j.state == Uses && before(s.now, j.Until()) {
		p.locks = s.now.Add(ttl)
		s.lasted[set] = s.now
	}
}

package sets

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// The explorer goes through all that may happen to a few processes, each with a real Judge, and masters, each with the memory
// master's register command. Time goes on by the pause between two registrations. In each step there is at most one fault, and the
// processes register in any order; each hears the answers at once, or just before it registers again.

const (
	tick  = Every
	ttl   = time.Second
	life  = ttl + protocol.FenceTTL
	giant = 9 * tick // ages above it are all the same
)

// scene is where an exploration begins, and how many faults of each kind it may have.
type scene struct {
	name                                    string
	masters                                 []uint8 // which ones each process has, as bits
	old                                     int     // so many processes are in use from the beginning, on masters that remember for long
	others                                  bool    // the masters of the other processes remember for long, too
	waiting                                 bool    // the last process has been refused already
	forget, cut, hang, start, kill, suspend int
}

// mutant is the Judge without one clause of its rule.
type mutant struct {
	name   string
	scene  scene
	breaks string
	send   func(g *Registration)
	look   func(j *Judge, now time.Time)
	answer func(j *Judge, master int, reply *protocol.Reply)
}

type server struct {
	memory.Sets
	hung bool
}

// proc is a process and what the explorer knows of it.
type proc struct {
	judge     *Judge // nil if it doesn't run
	cut       uint8  // the masters that it can't reach
	suspended bool
	inbox     []answer // that it hasn't heard yet
	sent      []answer // to hung masters
	again     bool     // it wants to register again
	deaf      bool     // it hears the answers of this step in the next one

	locks   time.Time   // until when a lock of it may last
	reached []time.Time // by master: when that was last told that it claims or uses
	stuck   int         // for so many steps it should have come into use
}

type answer struct {
	master int
	g      Registration
	reply  protocol.Reply
}

type state struct {
	now     time.Time
	servers []server
	procs   []proc
	forgot  []time.Time         // by master
	used    map[uint8]time.Time // by set: since when it has been in use
	lasted  map[uint8]time.Time // by set: when it was last in use
	both    int                 // for so many steps two incompatible ones have been in use that could know of one another
	left    [6]int
	path    *step
	broken  string
}

type step struct {
	before *step
	what   string
}

var origin = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

type explorer struct {
	scene
	mutant
}

func (e *explorer) incompatible(a, b int) bool {
	return !majoritiesMeet(bits.OnesCount8(e.masters[a]), bits.OnesCount8(e.masters[b]), bits.OnesCount8(e.masters[a]&e.masters[b]))
}

func (s *state) clone() *state {
	c := *s
	c.servers, c.procs, c.forgot = slices.Clone(s.servers), slices.Clone(s.procs), slices.Clone(s.forgot)
	c.used, c.lasted = maps.Clone(s.used), maps.Clone(s.lasted)
	for i := range c.servers {
		c.servers[i].Uses = maps.Clone(s.servers[i].Uses)
		c.servers[i].Processes = nil
	}
	for i := range c.procs {
		p := &c.procs[i]
		p.inbox, p.sent, p.reached = slices.Clone(p.inbox), slices.Clone(p.sent), slices.Clone(p.reached)
		if p.judge != nil {
			j := *p.judge
			j.own.Masters, j.views = slices.Clone(j.own.Masters), slices.Clone(j.views)
			for m := range j.views {
				j.views[m].kept = slices.Clone(j.views[m].kept)
			}
			j.doubted, j.logged = make(map[string]doubt), make(map[string]bool)
			p.judge = &j
		}
	}
	return &c
}

func (e *explorer) newJudge(now time.Time, p int) *Judge {
	var names []string
	for m := range 8 {
		if e.masters[p]>>m&1 == 1 {
			names = append(names, fmt.Sprint(m))
		}
	}
	return New(now, names, ttl, ttl)
}

// each calls f for each master of a process, with its number in the Judge.
func (e *explorer) each(p int, f func(m, own int)) {
	own := 0
	for m := range 8 {
		if e.masters[p]>>m&1 == 1 {
			f(m, own)
			own++
		}
	}
}

func (e *explorer) begin() *state {
	s := &state{now: origin, used: map[uint8]time.Time{}, lasted: map[uint8]time.Time{}}
	var all uint8
	for _, set := range e.masters {
		all |= set
	}
	s.servers, s.forgot = make([]server, bits.Len8(all)), make([]time.Time, bits.Len8(all))
	for range e.masters {
		s.procs = append(s.procs, proc{reached: make([]time.Time, len(s.servers))})
	}
	if e.others {
		for m := range s.servers {
			s.servers[m].Register(&protocol.Command{Token: "1 none"}, s.now.UnixMicro())
		}
	}
	for p := range e.old {
		s.procs[p].judge = e.newJudge(s.now, p)
	}
	n := 0
	if e.old > 0 || e.others {
		n = 8
	}
	for i := range n {
		if e.waiting && i == 6 {
			last := len(s.procs) - 1
			s.procs[last].judge = e.newJudge(s.now, last)
		}
		for p := range s.procs {
			e.act(s, p)
		}
		e.pass(s)
	}
	if e.old > 0 && !s.uses(0) {
		panic("the old process isn't in use at the beginning")
	}
	s.left = [6]int{e.forget, e.cut, e.hang, e.start, e.kill, e.suspend}
	return s
}

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
		if p.cut>>m&1 == 0 && !s.servers[m].hung && !j.own.Masters[own].Up {
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

// register has a process register with each master, and hear the answers.
func (e *explorer) register(s *state, i int) {
	p := &s.procs[i]
	j := p.judge
	s.now = s.now.Add(time.Millisecond)
	e.each(i, func(m, own int) {
		if slices.ContainsFunc(p.sent, func(a answer) bool { return a.master == m }) {
			return // it hasn't answered yet
		}
		g := j.Register(s.now, own)
		if e.send != nil {
			e.send(&g)
		}
		switch a := (answer{master: m, g: g}); {
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
func (e *explorer) execute(s *state, i int, a answer) answer {
	a.reply = s.servers[a.master].Register(&protocol.Command{Token: a.g.Text, Former: a.g.Former, Age: a.g.Age}, s.now.UnixMicro())
	if a.g.state != Waits {
		s.procs[i].reached[a.master] = s.now
	}
	return a
}

// hear gives a process an answer.
func (e *explorer) hear(s *state, i int, a answer) {
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
	}
	if j.state == Waits { // the masters hear of that now
		p.reached = make([]time.Time, len(s.servers))
	}
	if j.state == Uses && before(s.now, j.Until()) {
		p.locks = s.now.Add(ttl)
		s.lasted[set] = s.now
	}
}

func (s *state) violated(form string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(form, args...)
	}
}

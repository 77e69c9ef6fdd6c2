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
// processes register in any order; each hears the replies at once, or just before it registers again.

const (
	tick  = Every
	ttl   = time.Second
	life  = ttl + protocol.FenceTTL
	giant = 9 * tick // ages above it are all the same
)

// scene is where an exploration begins, and how many faults of each kind it may have.
type scene struct {
	name                                    string
	masters                                 []uint8  // which ones each process has, as bits
	old                                     int      // so many processes are in use from the beginning, on masters that remember for long
	others                                  bool     // the masters of the other processes remember for long, too
	waiting                                 bool     // the last process has been refused already
	guard                                   bool     // a master that forgets has a restart guard
	spare                                   bool     // a master that forgets is another server, which remembers for long, and knows none of the sets
	script                                  []string // what happens in each step; without it, anything may
	soon                                    int      // for so many steps nobody may be in use at the most; 10 if it is 0
	forget, cut, hang, start, kill, suspend int
}

// mutant is the Judge without one clause of its rule.
type mutant struct {
	name   string
	scene  scene
	breaks string
	send   func(j *Judge, g *Registration)
	look   func(j *Judge, now time.Time)
	answer func(j *Judge, master int, reply *protocol.Reply)
}

type server struct {
	memory.Sets
	hung  bool
	guard time.Time // its restart guard ends then
}

// proc is a process and what the explorer knows of it.
type proc struct {
	judge     *Judge // nil if it doesn't run
	cut       uint8  // the masters that it can't reach
	suspended bool
	inbox     []heard // that it hasn't heard yet
	sent      []heard // to hung masters
	again     bool    // it wants to register again
	deaf      bool    // it hears the replies of this step in the next one
	late      bool    // it heard those of the step before in this one

	locks   time.Time   // until when a lock of it may last
	reached []time.Time // by master: when that was last told that it claims or uses
	stuck   int         // for so many steps it should have come into use
	waited  bool        // it has been refused since it was last in use
}

type heard struct {
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
	none    int                 // for so many steps nobody has been in use, though all reach their masters
	left    [6]int
	steps   int // of the script
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
	return !MajoritiesMeet(bits.OnesCount8(e.masters[a]), bits.OnesCount8(e.masters[b]), bits.OnesCount8(e.masters[a]&e.masters[b]))
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

func (s *state) violated(form string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(form, args...)
	}
}

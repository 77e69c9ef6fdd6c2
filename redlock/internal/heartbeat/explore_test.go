package heartbeat

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// The kinds of faults.
const (
	starts = iota
	dies
	stops // is suspended
	cut
	down
	forgets
	restarts
	faults
)

// world is where an exploration begins, and how many faults of each kind there may be.
type world struct {
	name    string
	masters []uint8     // of each process, as bits
	old     int         // so many of them lock from the beginning
	beside  bool        // the next one runs beside them, refused
	fresh   bool        // the masters' memories are young
	only    uint8       // the processes that faults may strike; 0 for all
	left    [faults]int // faults
	out     int         // for so many beats one may be refused beside a younger one that locks
	idle    int         // for so many beats one may be refused while nobody incompatible locks; 0 for R and three, never for none
	mutant
}

const never = -1

// runNames are of each master those of its first runs, and ofMask the masters in a mask: both are asked for in each state.
var (
	runNames [servers][4]string
	ofMask   [1 << servers][]int
)

func init() {
	for m := range servers {
		for run := range runNames[m] {
			runNames[m][run] = fmt.Sprint("run", m, ".", run)
		}
	}
	for mask := range ofMask {
		for m := range servers {
			if mask>>m&1 == 1 {
				ofMask[mask] = append(ofMask[mask], m)
			}
		}
	}
}

// mutant changes what is told, heard and known: the rule without one clause.
type mutant struct {
	send   func(b *protocol.Beat)
	answer func(j *Judge, i int, reply *protocol.Reply)
	look   func(j *Judge, now time.Time)
}

const (
	servers = 5
	maxTTL  = 3 * time.Second // R is four beats
	memoryR = 4
)

// state is one moment: the Judges, and what the masters remember.
type state struct {
	world    *world
	now      time.Time
	tick     int64 // of the masters' clocks, so that nobody has locked since the same time as another
	masters  [servers]server
	procs    []proc
	left     [faults]int
	told     bool // somebody has told something in this beat
	conflict string
	blind    [3][3]time.Time // when two processes have reached no master in common last
	excused  [3][3]time.Time // when two processes were not apart last
	beside   [3][3]time.Time // when one could hear last that another one locks, apart from it; zero if either has begun anew since
	before   *state
	what     string
}

type server struct {
	run    int
	down   bool
	forgot bool // in this beat
	memory memory.Processes

	lost  time.Time // when it has forgotten what is not forgiven yet
	knows []int     // those that have known it before
}

// leases is how long a lease can last that a master has forgotten.
const leases = memoryR * Every

type proc struct {
	*Judge
	mask, cut, pending uint8
	life               int
	on, stopped        bool
	did                bool // it locked when judge looked last
	locking            bool // it had begun when judge looked last
	beat               *protocol.Beat
	sent               time.Time
	again              int                // how often it has told anew in this beat
	locked             time.Time          // since when it locks; zero if it does not
	seen               uint8              // masters that have answered it in this beat
	had, ever          uint8              // masters to which it had a connection when judge looked last, or ever
	grown              time.Time          // when it has got one back while it locked
	meets              [servers]time.Time // until when a master must not vote for it
	doubts             [servers]int64     // for which loss, 0 for none known; -1 before the first
	silent             int                // for how many beats it hasn't
	out, idle          int
}

var epoch = time.Unix(1_000_000_000, 0)

func (w *world) begin() *state {
	s := &state{world: w, now: epoch, procs: make([]proc, len(w.masters))}
	for i := range s.procs {
		s.procs[i].mask = w.masters[i]
	}
	if !w.fresh {
		for m := range s.masters { // somebody has told of himself long ago
			s.masters[m].memory.Beat(&protocol.Beat{ID: "x", Number: 1, Life: time.Second, Kind: "x", Since: waits, About: "{}"}, s.now.UnixMicro())
		}
		s.now = s.now.Add(time.Hour)
	}
	for i := range w.old {
		s.start(i)
	}
	calm := func() {
		for range 3 * memoryR {
			s.deliverAll()
			s.end()
		}
	}
	if calm(); w.beside {
		s.start(w.old)
		calm()
	}
	for i := range s.procs {
		s.procs[i].out, s.procs[i].idle = 0, 0
	}
	s.left, s.conflict = w.left, ""
	return s
}

// clone returns a copy to be changed. What a process has told is never changed, and what it says of itself is replaced.
func (s *state) clone(what string) *state {
	c := *s
	c.before, c.what = s, what
	for m := range c.masters {
		c.masters[m].memory = s.masters[m].memory.Clone()
	}
	c.procs = slices.Clone(s.procs)
	for i := range c.procs {
		if j := c.procs[i].Judge; j != nil {
			n := *j
			n.own.Masters, n.masters, n.known = slices.Clone(j.own.Masters), slices.Clone(j.masters), make(map[string]*Process)
			for id, p := range j.known {
				known := *p
				n.known[id] = &known
			}
			n.logged, n.notes = make(map[string]bool), nil
			c.procs[i].Judge = &n
		}
	}
	return &c
}

func (s *state) start(i int) {
	p := &s.procs[i]
	p.life++
	var names []string
	for m := range servers {
		if p.mask>>m&1 == 1 {
			names = append(names, fmt.Sprint(i, m)) // its own: names say nothing
		}
	}
	p.Judge = New(fmt.Sprint("p", i, ".", p.life), About{MaxTTL: maxTTL.Milliseconds()}, names)
	p.Judge.pause = func() time.Duration { return Every }
	for m := range servers {
		p.meets[m], p.doubts[m] = time.Time{}, -1
	}
	p.on, p.stopped, p.locking, p.again, p.had, p.ever = true, false, false, 0, 0, 0
	s.beside[i] = [3]time.Time{}
	s.tell(i)
}

// tell has a process tell all its masters, in place of what they haven't heard yet.
func (s *state) tell(i int) {
	p := &s.procs[i]
	p.beat, p.sent, p.pending = p.Beat(), s.now, p.mask
	if s.world.send != nil {
		s.world.send(p.beat)
	}
}

// after looks at what a process wants after it was told something.
func (s *state) after(i int) {
	p := &s.procs[i]
	if s.world.look != nil {
		s.world.look(p.Judge, s.now)
	}
	if p.Again() && p.again < 3 {
		p.again++
		s.tell(i)
	}
	p.Notes()
	s.judge()
}

func (s *state) reaches(p *proc, m int) bool {
	return p.mask>>m&1 == 1 && p.cut>>m&1 == 0 && !s.masters[m].down
}

// deliver has a process tell a master, or try.
func (s *state) deliver(i, m int) {
	p, v := &s.procs[i], &s.masters[m]
	p.pending &^= 1 << m
	s.told = true
	k := slices.Index(bits(p.mask), m)
	switch {
	case !s.reaches(p, m) || s.doubt(i, m):
		p.Failed(s.now, k, p.beat, false)
	default:
		p.seen |= 1 << m
		if run := v.name(m); !p.masters[k].up || p.masters[k].run != run {
			p.Reached(s.now, k, protocol.Server{RunID: run}, time.Time{})
			if p.Again() {
				s.tell(i)
				p.pending &^= 1 << m
			}
		}
		s.tick++
		beat := *p.beat
		beat.Knew = p.Knew(s.now, k)
		if s.world.send != nil {
			s.world.send(&beat)
		}
		reply := v.memory.Beat(&beat, s.now.UnixMicro()+s.tick%1000)
		if s.world.answer != nil {
			s.world.answer(p.Judge, k, &reply)
		}
		p.Answered(s.now, k, p.beat, p.sent, reply)
	}
	s.after(i)
}

// doubt reports whether a master may not vote for a process that meets it for the first time, and notes if it may although somebody who knew it
// before, and is still there, could have told that it has lost its data.
func (s *state) doubt(i, m int) bool {
	p, v := &s.procs[i], &s.masters[m]
	if k := slices.Index(bits(p.mask), m); p.masters[k].up || p.masters[k].run != "" {
		return false
	}
	told := protocol.Server{Time: s.now.UnixMicro(), Past: v.memory.Greet(s.now.UnixMicro())}
	rest, lost := told.Doubt(Settled, leases)
	born := int64(0)
	if lost {
		born = told.Past.Born
	}
	if rest > 0 && p.doubts[m] != born && (lost || p.doubts[m] < 0) {
		p.doubts[m], p.meets[m] = born, s.now.Add(rest)
	}
	if before(s.now, p.meets[m]) {
		s.apartBy(s.reach)
		return true
	}
	for _, o := range v.knows {
		if o != i && s.now.Sub(v.lost) < leases && s.tells(o, m) {
			s.conflict = fmt.Sprintf("master %d votes for process %d, although process %d knows that it has lost its data %v ago", m, i, o, s.now.Sub(v.lost))
		}
	}
	return false
}

// tells reports whether a process is there, and reaches a master.
func (s *state) tells(i, m int) bool {
	p := &s.procs[i]
	return p.on && !p.stopped && s.reaches(p, m)
}

func (s *state) deliverAll() {
	for busy := true; busy; {
		busy = false
		for i := range s.procs {
			for m := range servers {
				if p := &s.procs[i]; p.on && !p.stopped && p.pending>>m&1 == 1 {
					s.deliver(i, m)
					busy = true
				}
			}
		}
	}
}

// locks reports whether a process may take locks now, and can get the votes.
func (s *state) locks(p *proc) bool {
	votes := s.votes(p)
	n := len(bits(votes))
	return p.on && !p.stopped && before(s.now.Add(maxTTL), p.Until()) && n >= p.own.quorum()
}

// votes returns the masters to which a process has a connection.
func (s *state) votes(p *proc) (votes uint8) {
	for i, m := range bits(p.mask) {
		if s.reaches(p, m) && p.masters[i].run == s.masters[m].name(m) {
			votes |= 1 << m
		}
	}
	return votes
}

func (v *server) name(m int) string { return runNames[m][v.run] }

// judge notes who locks, and whether two do that may hold the same lock, although they can know of one another. Nobody begins beside one
// that it could have heard of for some beats, with the masters that it has. Where two that lock come to be incompatible, as they reach other masters than before, one
// stops after some beats. The locks that one of them still has from masters that it has lost are given up: see docs/DESIGN.md.
func (s *state) judge() {
	for i := range s.procs {
		if p := &s.procs[i]; p.Judge != nil {
			votes := s.votes(p)
			if p.since > begins && votes&^p.had&p.ever != 0 {
				p.grown = s.now
			}
			p.had, p.ever = votes, p.ever|votes
			if p.since <= begins {
				for o := range s.procs {
					s.beside[o][i] = time.Time{}
				}
			} else if !p.locking {
				for o := range s.procs {
					if s.now.Sub(s.beside[i][o]) < (memoryR-1)*Every {
						s.conflict = fmt.Sprintf("process %d begins to lock beside process %d, although it has known that one", i, o)
					}
				}
			}
			p.locking = p.since > begins
		}
	}
	for i := range s.procs {
		p := &s.procs[i]
		began := !p.did
		if p.did = p.Judge != nil && s.locks(p); !p.did {
			continue
		}
		if p.locked.IsZero() {
			p.locked = s.now
		}
		for o := range s.procs {
			q := &s.procs[o]
			if o == i || q.Judge == nil || !s.locks(q) || !s.apart(p, q) {
				continue
			}
			switch a, b := min(i, o), max(i, o); {
			case began && min(s.now.Sub(s.blind[a][b]), s.now.Sub(p.grown), s.now.Sub(q.grown)) > 3*Every:
				s.conflict = fmt.Sprintf("process %d begins to lock beside process %d, with masters %v and %v", i, o, bits(s.votes(p)), bits(s.votes(q)))
			case s.now.Sub(s.excused[a][b]) > 5*Every:
				s.conflict = fmt.Sprintf("processes %d and %d lock beside one another, with masters %v and %v", i, o, bits(s.votes(p)), bits(s.votes(q)))
			}
		}
	}
}

// apart reports whether two processes reach a master in common, and yet can get quorums that don't meet.
func (s *state) apart(p, q *proc) bool {
	return s.reach(p)&s.reach(q) != 0 && p.own.quorum()+q.own.quorum() <= len(bits(s.votes(p)|s.votes(q)))
}

// forget has a master lose what it was told: in this beat nobody can know of another by it.
func (s *state) forget(m int) {
	v := &s.masters[m]
	v.lost, v.knows = s.now, nil
	for i := range s.procs {
		p := &s.procs[i]
		if k := slices.Index(bits(p.mask), m); k >= 0 && s.tells(i, m) && p.masters[k].bornRun == v.name(m) {
			v.knows = append(v.knows, i)
		}
	}
	s.masters[m].memory, s.masters[m].forgot = memory.Processes{}, true
	s.apartBy(s.reach)
}

// look notes at the end of a beat which processes reach no master in common.
func (s *state) look() {
	s.apartBy(s.common)
	for i := range s.procs {
		for o := range s.procs {
			if q := &s.procs[o]; o != i && s.excused[min(i, o)][max(i, o)].Before(s.now) && s.procs[i].since <= begins && s.locks(q) && s.now.Sub(q.locked) >= 2*Every {
				s.beside[i][o] = s.now
			}
		}
	}
	for i := range s.procs {
		s.procs[i].seen = 0
	}
	for m := range s.masters {
		s.masters[m].forgot = false
		var knows []int
		for _, i := range s.masters[m].knows {
			if s.tells(i, m) {
				knows = append(knows, i)
			}
		}
		s.masters[m].knows = knows
	}
}

// apartBy notes which processes can't know of one another, by the masters that each reaches.
func (s *state) apartBy(reached func(*proc) uint8) {
	var known uint8
	for m := range s.masters {
		if !s.masters[m].forgot {
			known |= 1 << m
		}
	}
	for i := range s.procs {
		for o := range i {
			p, q := &s.procs[i], &s.procs[o]
			blind := reached(p)&reached(q)&known == 0
			if blind {
				s.blind[o][i] = s.now
			}
			if blind || p.Judge == nil || q.Judge == nil || !s.apart(p, q) {
				s.excused[o][i] = s.now
				continue
			}
		}
	}
}

// common returns the masters by which others may know the process.
func (s *state) common(p *proc) (all uint8) {
	if p.on && !p.stopped {
		return p.seen
	}
	return s.reach(p)
}

func (s *state) reach(p *proc) (all uint8) {
	for _, m := range bits(p.mask) {
		if s.reaches(p, m) && !before(s.now, p.meets[m]) { // a master without a vote isn't told of the process, nor asked for others
			all |= 1 << m
		}
	}
	return all
}

func count(n *int, more bool) {
	if *n++; !more {
		*n = 0
	}
}

// end ends a beat, and begins the next.
func (s *state) end() {
	s.now = s.now.Add(Grace)
	for i := range s.procs {
		if p := &s.procs[i]; p.on && !p.stopped {
			p.Look(s.now)
			s.after(i)
		}
	}
	s.deliverAll()
	for i := range s.procs {
		p := &s.procs[i]
		if p.Judge == nil {
			continue
		}
		count(&p.silent, !s.locks(p))
		whole := p.on && !p.stopped && !slices.ContainsFunc(bits(p.mask), func(m int) bool { return !s.reaches(p, m) })
		others, younger, elder := false, false, false
		for o := range s.procs {
			if q := &s.procs[o]; o != i && q.Judge != nil && s.locks(q) && len(p.masters)/2+len(q.masters)/2+2 <= len(bits(p.mask|q.mask)) {
				others = true
				younger = younger || !p.locked.IsZero() && q.locked.Sub(p.locked) >= Every // of two that begin together either may stay
				elder = elder || q.locked.Before(p.locked)
			}
		}
		count(&p.out, whole && !s.locks(p) && younger)
		count(&p.idle, whole && !s.locks(p) && !others)
		if !p.on || p.silent >= memoryR-1 || p.silent > 0 && elder { // it has lost its place
			p.locked = time.Time{}
		}
	}
	s.look()
	s.told = false
	s.now = s.now.Add(Every - Grace)
	for i := range s.procs {
		p := &s.procs[i]
		if p.again = 0; p.on && !p.stopped {
			p.Look(s.now)
			s.after(i)
			s.tell(i)
		}
	}
}

func bits(mask uint8) []int { return ofMask[mask] }

// broken says what the state shows that must not be.
func (s *state) broken() string {
	w := s.world
	if s.conflict != "" {
		return s.conflict
	}
	idle := cmp.Or(w.idle, memoryR+3)
	for i := range s.procs {
		if p := &s.procs[i]; p.out > w.out {
			return fmt.Sprintf("process %d is refused for %d beats beside a younger one", i, p.out)
		} else if p.idle > max(0, idle) {
			return fmt.Sprintf("process %d is refused for %d beats, and nobody else locks", i, p.idle)
		}
	}
	return ""
}

// next calls f with all that may happen now, and what makes the state that follows.
func (s *state) next(f func(what string, follow func() *state)) {
	do := func(what string, fault int, change func(n *state)) {
		if fault >= 0 && s.left[fault] == 0 {
			return
		}
		f(what, func() *state {
			n := s.clone(what)
			if fault >= 0 {
				n.left[fault]--
			}
			change(n)
			n.judge()
			return n
		})
	}
	pending := false
	for i := range s.procs {
		p := &s.procs[i]
		if p.on && !p.stopped && p.pending != 0 {
			pending = true
			var own uint8 = p.pending
			for o := range s.procs {
				if o != i {
					own &^= s.procs[o].mask
				}
			}
			for m := range servers {
				if (p.pending&^own)>>m&1 == 1 {
					do(fmt.Sprintf("%d tells master %d", i, m), -1, func(n *state) { n.deliver(i, m) })
				}
			}
			if own != 0 { // nobody else asks these: their order doesn't matter
				do(fmt.Sprintf("%d tells its own masters", i), -1, func(n *state) {
					for m := range servers {
						if own>>m&1 == 1 && n.procs[i].pending>>m&1 == 1 {
							n.deliver(i, m)
						}
					}
				})
			}
			if s.told && p.since != waits {
				do(fmt.Sprintf("%d is suspended", i), stops, func(n *state) { n.procs[i].stopped = true })
			}
		}
	}
	if !pending {
		do("|", -1, (*state).end)
	}
	if s.told { // all other faults come between two beats
		return
	}
	for i := range s.procs {
		p := &s.procs[i]
		if s.world.only != 0 && s.world.only>>i&1 == 0 {
			continue
		}
		switch {
		case !p.on:
			do(fmt.Sprintf("%d starts", i), starts, func(n *state) { n.start(i) })
		case p.stopped:
			do(fmt.Sprintf("%d goes on", i), -1, func(n *state) {
				n.procs[i].stopped = false
				if n.procs[i].pending == 0 {
					n.tell(i)
				}
			})
		default:
			do(fmt.Sprintf("%d is killed", i), dies, func(n *state) { n.procs[i].on, n.procs[i].pending = false, 0 })
			do(fmt.Sprintf("%d is suspended", i), stops, func(n *state) { n.procs[i].stopped = true })
		}
		for m := range servers {
			if p.cut>>m&1 == 1 {
				do(fmt.Sprintf("%d reaches master %d again", i, m), -1, func(n *state) { n.procs[i].cut &^= 1 << m })
			} else if p.mask>>m&1 == 1 && p.Judge != nil {
				do(fmt.Sprintf("%d is cut off from master %d", i, m), cut, func(n *state) { n.procs[i].cut |= 1 << m })
			}
		}
	}
	for m := range servers {
		if s.masters[m].down {
			do(fmt.Sprintf("master %d is up", m), -1, func(n *state) { n.masters[m].down = false })
			continue
		}
		do(fmt.Sprintf("master %d is down", m), down, func(n *state) { n.masters[m].down = true })
		do(fmt.Sprintf("master %d forgets", m), forgets, func(n *state) { n.forget(m) })
		do(fmt.Sprintf("master %d restarts", m), restarts, func(n *state) {
			for i := range n.procs {
				n.procs[i].idle = 0
			}
			n.forget(m)
			n.masters[m].run++
			n.masters[m].knows = nil // of a restart the run ID tells
		})
	}
}

// key is what matters of a state: of times their ages, of since when somebody locks the order.
func (s *state) key() string {
	var all []int64
	for i := range s.procs {
		if p := &s.procs[i]; p.Judge != nil {
			all = append(all, p.since)
			for _, k := range p.known {
				all = append(all, k.Since)
			}
		}
	}
	for m := range s.masters {
		for _, t := range s.masters[m].memory.Told {
			all = append(all, t.Since)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	rank := func(since int64) int { return slices.Index(all, since) }
	number := make(map[string]int64)
	for i := range s.procs {
		if j := s.procs[i].Judge; j != nil {
			number[j.id] = j.number
		}
	}
	age := func(t time.Time) int64 {
		if t.IsZero() {
			return -1
		}
		return int64(min(s.now.Sub(t), 8*Every) / Grace)
	}
	b := make([]byte, 0, 2048)
	put := func(values ...any) { // as fmt.Append would, in a quarter of the time
		for _, value := range values {
			switch v := value.(type) {
			case bool:
				b = strconv.AppendBool(b, v)
			case int:
				b = strconv.AppendInt(b, int64(v), 10)
			case int64:
				b = strconv.AppendInt(b, v, 10)
			case string:
				b = append(b, v...)
			case Server:
				b = append(append(append(b, v.Name...), ' '), v.Run...)
			default:
				b = fmt.Append(b, v)
			}
			b = append(b, ' ')
		}
	}
	for _, n := range s.left {
		put(n)
	}
	put(s.told)
	for i := range s.procs {
		for o := range i {
			put(age(s.blind[o][i]), age(s.excused[o][i]), age(s.beside[o][i]), age(s.beside[i][o]))
		}
	}
	for m := range s.masters {
		v := &s.masters[m]
		put("|", v.run, v.down, v.forgot, age(time.UnixMicro(v.memory.Born)), v.memory.Lost == v.memory.Born, age(v.lost))
		for _, i := range v.knows {
			put(i)
		}
		for _, id := range slices.Sorted(maps.Keys(v.memory.Told)) {
			if t := v.memory.Told[id]; id != "x" {
				put(id, number[id]-t.Number, rank(t.Since), age(time.UnixMilli(t.At)), t.Kind)
			}
		}
	}
	for i := range s.procs {
		p := &s.procs[i]
		put("/", p.on, p.stopped, p.did, p.locking, p.cut, p.pending, p.again, p.out, p.idle, p.seen, p.ever, age(p.grown))
		if p.Judge == nil {
			continue
		}
		put(age(p.sent), rank(p.since), age(p.began), p.next.Sub(s.now) > 0, p.beat.Number-p.number, p.entered-p.number, p.beat.Since == p.since, p.beat.Kind == p.kind())
		for k := range p.masters {
			m := &p.masters[k]
			at := bits(p.mask)[k]
			put(";", m.run, m.up, age(m.answered), m.gone, p.own.Masters[k], m.bornRun, m.born == s.masters[at].memory.Born, min(p.doubts[at], 1), max(0, p.meets[at].Sub(s.now))/Grace)
		}
		for _, id := range slices.Sorted(maps.Keys(p.known)) {
			k := p.known[id]
			put(",", id, number[id]-k.Number, rank(k.Since), age(k.Told), age(k.unlike), age(k.apart))
			for _, m := range k.Masters {
				put(m)
			}
		}
	}
	return string(b)
}

// trace tells how the state came about.
func (s *state) trace() string {
	var all []string
	for at := s; at.before != nil; at = at.before {
		all = append(all, at.what)
	}
	slices.Reverse(all)
	return strings.Join(all, "\n")
}

// explore goes through the states, up to so many, and returns one that must not be, or nil.
func (w *world) explore(most int) (seen int, all bool, broken *state) {
	first := w.begin()
	known := map[string]bool{first.key(): true}
	for list := []*state{first}; len(list) > 0; {
		var after []*state
		for _, s := range list {
			s.next(func(_ string, follow func() *state) {
				n := follow()
				if key := n.key(); !known[key] {
					known[key] = true
					after = append(after, n)
					if broken == nil && n.broken() != "" {
						broken = n
					}
				}
			})
			if broken != nil || len(known) >= most {
				return len(known), false, broken
			}
			*s = state{before: s.before, what: s.what} // all that a trace needs
		}
		list = after
	}
	return len(known), true, nil
}

// walk goes random ways of so many beats, and returns a state that must not be, or nil.
func (w *world) walk(ways, beats int, seed uint64) *state {
	r := rand.New(rand.NewPCG(seed, 0))
	for range ways {
		s := w.begin()
		for n := 0; n < beats; {
			var tells, strikes []func() *state
			s.next(func(what string, follow func() *state) {
				if what == "|" || strings.Contains(what, " tells ") {
					tells = append(tells, follow)
				} else {
					strikes = append(strikes, follow)
				}
			})
			if len(strikes) > 0 && (r.IntN(5) == 0 || len(tells) == 0) {
				tells = strikes
			}
			if len(tells) == 0 {
				break
			}
			if s = tells[r.IntN(len(tells))](); s.what == "|" {
				n++
			}
			if s.broken() != "" {
				return s
			}
		}
	}
	return nil
}

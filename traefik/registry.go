package traefik

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// registry registers on the masters which masters this process has, and learns from them which ones other processes have, as package
// redlock does (registry.go, conflict.go). If two majorities might not share a master, the process that came later takes no locks.
// The locker's mu guards it.
type registry struct {
	l       *locker
	key     string
	process string // its ID and its name, by which others find who holds a key

	refused    string    // why no lock may be taken; "" if locks may be taken
	registered time.Time // until when a quorum knows about this process

	own     set
	state   int
	tried   time.Time // when the state became trying
	views   []*view   // by master
	doubted map[string]*doubt
	due     time.Time // when to register again
	pause   time.Duration
}

// The states of a registry.
const (
	inUse   = iota // the process may lock
	waiting        // until another set is gone
	trying         // it is gone: the process registers on a quorum before its first lock
)

// view is what a master knows.
type view struct {
	sent    time.Time // when the last register with an answer was sent; zero if none was answered
	inUse   bool      // that one registered our set as in use
	now     int64     // its clock then, in microseconds
	uses    []*use
	pending bool // a register is under way
}

// use is a set that was registered on a master.
type use struct {
	text        string
	set         *set
	since, seen int64
}

func newRegistry(l *locker) *registry {
	host, err := os.Hostname()
	if err != nil || strings.Contains(host, " ") {
		host = "unknown"
	}
	r := &registry{l: l, key: l.prefix + ":sets:{sets}", process: l.id + " " + host + "/" + strconv.Itoa(os.Getpid()), doubted: map[string]*doubt{}, pause: registerEvery / 16}
	r.own = set{MaxTTL: int64(l.maxTTL / time.Millisecond), Covers: int64(l.covers() / time.Millisecond)}
	for _, s := range l.streams {
		r.own.Masters = append(r.own.Masters, member{Name: s.address.name})
		r.views = append(r.views, &view{})
	}
	return r
}

// text returns our set as it is registered.
func (r *registry) text() string {
	r.own.Waits = r.state == waiting
	return r.own.text()
}

// attend registers on all masters on which no register is under way, if it is time.
func (r *registry) attend(now time.Time) {
	if now.Before(r.due) {
		return
	}
	r.due = now.Add(r.pause)
	r.pause = shorter(2*r.pause, registerEvery)
	text := r.text()
	for _, s := range r.l.streams {
		v := r.views[s.index]
		if v.pending {
			continue
		}
		v.pending = true
		mark := int64(0)
		if s.clock.right(now) {
			mark = s.clock.mark
		}
		c := &command{op: opRegister, sentAt: now, set: text, inUse: r.state != waiting}
		c.words = 10
		c.body = keysOf(r.key) + bulks(text, r.process, strconv.FormatInt(mark, 10), strconv.FormatInt(int64(markLife/time.Millisecond), 10), "0")
		push(s, c)
	}
}

// reached records which server is behind a master's address now.
func (r *registry) reached(master int, srv *server) {
	for i := 0; i < len(r.own.Masters); i++ {
		if i != master && r.own.Masters[i].RunID == srv.runID { // the server has moved
			r.own.Masters[i].RunID = ""
			r.own.Masters[i].Up = false
		}
	}
	m := &r.own.Masters[master]
	changed := m.RunID != srv.runID || !m.Up
	m.reach(srv)
	if changed { // judge before the master votes
		r.judge()
		r.due = time.Now()
	}
}

// allows reports whether a lock that was won may be used: the other processes know about this one.
func (r *registry) allows() bool {
	return r.refused == "" && !r.registered.IsZero() && !past(r.registered)
}

// answered takes a master's answer; nil means that there is none.
func (r *registry) answered(master int, c *command, a *answer) {
	v := r.views[master]
	v.pending = false
	if c.set != r.text() { // another server was reached meanwhile
		r.due = time.Now()
	}
	switch {
	case a != nil && kindsOf(a) == "*::$":
		v.sent = c.sentAt
		v.inUse = c.inUse
		v.now = a.items[0].n
		v.uses = parseUses(a.items[2].text)
		r.l.streams[master].clock.marked(a.items[1].n)
	case a != nil && a.kind == '-': // nothing is known then
		r.l.note(r.own.Masters[master].Name + " does not let this process register its masters: " + a.text)
		v.sent = c.sentAt
		v.inUse = c.inUse
		v.uses = nil
	default:
		r.own.Masters[master].Up = false
		return
	}
	r.judge()
}

// parseUses parses the sets that a master knows.
func parseUses(lines string) []*use {
	uses := []*use{}
	for _, line := range strings.Split(lines, "\n") {
		parts := strings.SplitN(line, " ", 3)
		if len(parts) < 3 {
			continue
		}
		s, ok := parseSet(parts[2])
		if !ok { // it is of another version
			continue
		}
		u := &use{text: parts[2], set: s}
		u.since, _ = strconv.ParseInt(parts[0], 10, 64)
		u.seen, _ = strconv.ParseInt(parts[1], 10, 64)
		uses = append(uses, u)
	}
	return uses
}

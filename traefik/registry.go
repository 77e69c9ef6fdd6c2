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
	doubted map[string]time.Time
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
	r := &registry{l: l, key: l.prefix + ":sets:{sets}", process: l.id + " " + host + "/" + strconv.Itoa(os.Getpid()), doubted: map[string]time.Time{}, pause: registerEvery / 16}
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

// judge decides, by what the masters know, whether this process may lock.
func (r *registry) judge() {
	now := time.Now()
	registered, heard := []time.Time{}, 0 // when our set was registered, the latest first; how many masters have answered lately
	var apart *set
	for _, v := range r.views {
		if v.sent.IsZero() || now.Sub(v.sent) > r.own.life() {
			continue
		}
		if v.inUse && r.state != waiting && (r.state == inUse || !v.sent.Before(r.tried)) {
			registered = append(registered, v.sent)
			for i := len(registered) - 1; i > 0 && registered[i].After(registered[i-1]); i-- {
				registered[i], registered[i-1] = registered[i-1], registered[i]
			}
		}
		if now.Sub(v.sent) < doubtTime {
			heard++
		}
		for _, u := range v.uses {
			if !r.metBy(v, u, now) && !u.set.Waits && r.first(v, u) {
				apart = u.set
			}
		}
	}
	quorum := r.l.quorum
	r.decide(apart, heard >= quorum, len(registered) >= quorum, now)
	if len(registered) >= quorum {
		life := r.own.life()
		r.registered = registered[quorum-1].Add(life - drift(life))
	}
}

// metBy reports whether each majority of our set shares a master with each of another set, or may do so.
func (r *registry) metBy(v *view, u *use, now time.Time) bool {
	if r.own.same(u.set, false) || r.own.same(u.set, true) && !r.isReal(v, u, now) {
		return true
	}
	return r.own.meets(u.set, true) && (r.own.meets(u.set, false) || !r.isReal(v, u, now))
}

// isReal reports whether a difference is more than a restart that one process hasn't noticed yet.
func (r *registry) isReal(v *view, u *use, now time.Time) bool {
	return r.lasts(v, u, now) || r.coexist(v, u, now)
}

// coexist reports that our servers and those of another set have been there side by side. Only a new process judges by this, as in
// package redlock.
func (r *registry) coexist(v *view, u *use, now time.Time) bool {
	if now.Sub(r.l.began) > noticed || v.now-u.seen > int64(2*registerEvery/time.Microsecond) {
		return false
	}
	since := v.sent.Add(-time.Duration(v.now-u.since) * time.Microsecond)
	for i := 0; i < len(r.own.Masters); i++ {
		m := &r.own.Masters[i]
		if m.Up && (now.Sub(m.started) < noticed || !r.views[i].sent.After(since)) {
			return false
		}
	}
	return true
}

// lasts reports whether a doubt about a set is so old that its processes must have noticed a restart, or have ended, and yet the set
// is in use. A master that hasn't answered for as long is no witness of that.
func (r *registry) lasts(v *view, u *use, now time.Time) bool {
	if v.now-u.seen > int64(2*registerEvery/time.Microsecond) {
		delete(r.doubted, u.text)
		return false
	}
	if now.Sub(v.sent) > doubtTime {
		return false
	}
	since, ok := r.doubted[u.text]
	if !ok {
		if len(r.doubted) > maxSets {
			r.doubted = map[string]time.Time{}
		}
		since = now
		r.doubted[u.text] = now
	}
	return now.Sub(since) > doubtTime
}

// first reports whether another set was in use before ours, also as it was before its servers restarted. If both came at about the
// same time, all masters decide alike.
func (r *registry) first(v *view, u *use) bool {
	text := r.text()
	if r.state != inUse {
		return true
	}
	for _, own := range v.uses {
		if own.text != text {
			continue
		}
		if theirs, ours := v.firstSince(u.set), v.firstSince(&r.own); differ(theirs, ours) {
			return theirs < ours
		}
		if differ(u.since, own.since) {
			return u.since < own.since
		}
		return u.text < text
	}
	return true
}

// differ reports whether two times of a master are so far apart that every process sees them in the same order.
func differ(a, b int64) bool {
	return a-b > int64(doubtTime/time.Microsecond) || b-a > int64(doubtTime/time.Microsecond)
}

// firstSince returns since when a master knows a set, or what it was before its servers restarted.
func (v *view) firstSince(s *set) int64 {
	first := v.now
	for _, u := range v.uses {
		if u.set.succeeds(s) && u.since < first {
			first = u.since
		}
	}
	return first
}

// decide lets the process lock, or wait.
func (r *registry) decide(apart *set, heard, registered bool, now time.Time) {
	switch {
	case apart != nil:
		if r.refused == "" || r.state == trying {
			r.refused = "another process that was here first has other masters, so that two could hold a lock: its masters are " +
				apart.names() + "; ours are " + r.own.names() + "; give all the same, or change one at a time"
			r.l.note(r.refused)
		}
		if r.state != waiting {
			r.state = waiting
			r.due = now
		}
	case r.state == waiting && heard:
		r.state = trying
		r.tried = now
		r.due = now
	case r.state == trying && registered:
		r.state = inUse
		r.refused = ""
	}
}

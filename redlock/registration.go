package redlock

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// view is what one master last said.
type view struct {
	sent    time.Time // when it was asked; zero if it hasn't answered yet
	inUse   bool      // it was told then that our set is in use
	now     int64     // its clock then, in microseconds
	uses    []use
	pending bool // it has been asked again and hasn't answered
}

// use is a set of masters as one master knows it: since when, and when a process last registered it.
type use struct {
	text        string
	set         *set
	since, seen int64
}

// registration receives one master's answer to a register.
type registration struct {
	registry *registry
	sent     time.Time
	inUse    bool
	text     string
}

func (g *registration) receive(c *call) {
	r := g.registry
	r.mu.Lock()
	r.answered(g, c)
	logs := r.takeLogs()
	r.mu.Unlock()
	for _, log := range logs {
		log()
	}
}

// answered handles a master's answer. Callers hold mu.
func (r *registry) answered(g *registration, c *call) {
	v := &r.views[c.master]
	v.pending = false
	if g.text != r.text() { // another server was reached meanwhile
		signal(r.again)
	}
	switch {
	case errors.Is(c.Reply.Err, protocol.ErrRefused): // other sets go unnoticed
		r.logOnce("refused", "master refuses to register this process's set of masters, so it can't be compared with those of other processes: grant this user what docs/masters.md lists, unless the error names another reason",
			"master", r.own.Masters[c.master].Name, "error", c.Reply.Err)
		r.knowsNothing(g, c.master)
		return
	case c.Reply.Err != nil && r.streams[c.master].cluster != nil:
		r.knowsNothing(g, c.master)
		return
	case c.Reply.Err != nil:
		r.own.Masters[c.master].Up = false
		return
	}
	if m := &r.own.Masters[c.master]; !m.Up && m.RunID != "" { // others must not take it for one that is away
		m.Up = true
		signal(r.again)
	}
	former := *v
	*v = view{sent: g.sent, inUse: g.inUse, now: c.Reply.Time, uses: r.parse(c.Reply.Lines)}
	if r.lost(&former, v, g.text) {
		r.logs = append(r.logs, r.streams[c.master].dataLost)
	}
	r.compare()
}

// lost reports whether a master has lost its data between two answers: it should still have known our set,
// but says that it knows it only since after the first. That is so after FLUSHALL, or if the server was a
// replica of another for a moment.
func (r *registry) lost(former, now *view, own string) bool {
	if former.now == 0 || now.now-former.now > r.own.life().Microseconds()/2 {
		return false
	}
	known := slices.ContainsFunc(former.uses, func(u use) bool { return u.text == own && u.since <= former.now })
	return known && slices.ContainsFunc(now.uses, func(u use) bool { return u.text == own && u.since > former.now })
}

// knowsNothing treats a master as one that knows no set. It does so too while the node of a Redis Cluster that
// has the sets is down, because locks whose keys are on the other nodes can be taken all the same.
// Callers hold mu.
func (r *registry) knowsNothing(g *registration, master int) {
	r.views[master] = view{sent: g.sent, inUse: g.inUse, pending: r.views[master].pending}
	r.compare()
}

// parse reads a master's list of sets. Callers hold mu.
func (r *registry) parse(lines string) (uses []use) {
	parsed := make(map[string]*set)
	for line := range strings.Lines(lines) {
		since, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seen, text, _ := strings.Cut(rest, " ")
		s := r.parsed[text]
		if s == nil {
			var err error
			if s, err = parseSet(text); err != nil {
				continue // written by another version
			}
		}
		parsed[text] = s
		u := use{text: text, set: s}
		u.since, _ = strconv.ParseInt(since, 10, 64)
		u.seen, _ = strconv.ParseInt(seen, 10, 64)
		uses = append(uses, u)
	}
	for _, v := range r.views {
		for _, u := range v.uses {
			parsed[u.text] = u.set
		}
	}
	r.parsed = parsed
	return uses
}

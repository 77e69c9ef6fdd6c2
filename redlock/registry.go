package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// registerEvery is how often a process registers with each master. What a clock has shown before it is
	// set back is known up to so long ago; that is less than a fence is remembered for.
	registerEvery = 2 * time.Second
	// doubtTime is how long a process may take to notice that a server has restarted.
	doubtTime = 5 * registerEvery
	// noticed is how long after a restart no process registers the former run any more.
	noticed = doubtTime + 2*registerEvery
	// markLife is how long a master remembers what its clock has shown, after the last process has gone.
	markLife = time.Hour
)

// registry registers the masters of this process with each of them, and learns which masters other
// processes have. It detects sets of masters whose majorities need not meet, so that both could grant a
// lock, and logs when a change of the masters is complete. It costs one command to each master every two
// seconds, and none for a lock.
type registry struct {
	options
	streams []*stream
	quorum  int
	key     string
	process string // its ID and name
	again   chan struct{}
	ended   chan struct{}
	never   atomic.Bool // never set: a registration is always wanted

	conflict   atomic.Pointer[conflictError] // why no lock may be taken now, or nil
	registered atomic.Pointer[time.Time]     // until when a quorum of the masters knows of this process
	firstKnown chan struct{}                 // closed when a quorum does for the first time
	refused    chan struct{}                 // closed when another set excludes this one for the first time

	mu          sync.Mutex
	own         set
	state       useState
	announcedAt time.Time // when the state last became announcing
	began       time.Time // when the first registration was sent
	views       []view    // by master
	parsed      map[string]*set
	doubted     map[string]doubt // sets that differ only if a restart has been noticed everywhere
	logged      map[string]bool  // what was logged already, by what it is about
	changing    bool             // another set is in use
	logs        []func()         // to be logged once mu is free
}

// useState is how far this process may lock, with regard to the sets of others.
type useState int

const (
	inUse      useState = iota // it may
	waiting                    // another set that was here first must go
	announcing                 // that has gone; before the first lock the others must be told of ours
)

// conflictError is the reason why a process must not lock: another one has masters of which a majority need not
// share any with a majority of ours.
type conflictError struct{ ours, theirs string }

func (e *conflictError) Error() string {
	return fmt.Sprintf("another process with other masters was here first, and both could hold the same lock: its masters are %s; ours are %s; configure the same masters everywhere, or change one at a time (docs/operations.md)", e.theirs, e.ours)
}

// Is makes errors.Is find errNoVote.
func (e *conflictError) Is(target error) bool { return target == errNoVote }

// newRegistry returns nil for masters in this process's own memory, which no other process shares.
func newRegistry(o options, masters []Master, quorum int, id string) *registry {
	r := &registry{
		options: o, quorum: quorum,
		key:     o.prefix + ":sets:{sets}", // the braces put all its keys into one slot of a Redis Cluster
		process: id + " " + o.instance,
		again:   make(chan struct{}, 1),
		ended:   make(chan struct{}), firstKnown: make(chan struct{}), refused: make(chan struct{}),
		own:   set{MaxTTL: o.maxTTL.Milliseconds(), Covers: o.covers().Milliseconds()},
		views: make([]view, len(masters)), parsed: make(map[string]*set), doubted: make(map[string]doubt), logged: make(map[string]bool),
	}
	for _, m := range masters {
		if _, ok := m.impl.(protocol.Admitter); !ok {
			return nil
		}
		r.own.Masters = append(r.own.Masters, member{Name: m.String()})
	}
	return r
}

// start registers with all masters, before any lock is asked for, and keeps doing so until the Locker closes.
func (r *registry) start(l *Locker) {
	if r == nil {
		return
	}
	r.streams, r.began = l.streams, time.Now()
	r.register()
	go r.run(l)
}

// end waits for the end of run; the Locker is closing.
func (r *registry) end() {
	if r != nil {
		<-r.ended
	}
}

// run registers again and again, until the Locker closes.
func (r *registry) run(l *Locker) {
	defer close(r.ended)
	announced := false
	pause := registerEvery / 16 // short at first: two processes that start together soon know of each other
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.again:
		case <-l.closing:
			return
		}
		announced = announced || l.announce(time.Since(r.began))
		r.register()
		pause = min(2*pause, registerEvery)
		timer.Reset(pause)
	}
}

// register asks all masters but those that haven't answered the last time.
func (r *registry) register() {
	now := time.Now()
	for i, s := range r.streams {
		r.mu.Lock()
		pending := r.views[i].pending
		r.views[i].pending = true
		answer := &registration{registry: r, sent: now, inUse: r.state != waiting, text: r.text()}
		if pending && s.cluster != nil && s.forKey(r.key).fails() {
			r.knowsNothing(answer, i)
		}
		r.mu.Unlock()
		if pending {
			continue
		}
		c := &call{Command: protocol.Command{Op: protocol.OpRegister, Key: r.key, Token: answer.text, Process: r.process, TTL: markLife}, master: i, abandoned: &r.never, to: answer}
		if s.clock.confirmed(now) {
			c.Ticket = s.clock.mark.Load()
		}
		s.push(c)
	}
}

// text returns our set as it is registered now. Callers hold mu.
func (r *registry) text() string {
	own := r.own
	own.Masters = slices.Clone(own.Masters)
	own.Waits = r.state == waiting
	return own.text()
}

// reached notes which server a master's address leads to now.
func (r *registry) reached(master int, server protocol.Server) {
	if r == nil {
		return
	}
	r.mu.Lock()
	for i := range r.own.Masters {
		if former := &r.own.Masters[i]; i != master && former.RunID == server.RunID { // the server has moved here
			former.RunID, former.Up = "", false
		}
	}
	m := &r.own.Masters[master]
	changed := m.RunID != server.RunID || !m.Up
	m.reach(server)
	if changed { // compare the sets again before the server votes
		r.compare()
		signal(r.again)
	}
	logs := r.takeLogs()
	r.mu.Unlock()
	for _, log := range logs {
		log()
	}
}

// takeLogs returns what is to be logged once mu is free. Callers hold mu.
func (r *registry) takeLogs() []func() {
	logs := r.logs
	r.logs = nil
	return logs
}

// refusal returns why no lock may be taken now, or nil.
func (r *registry) refusal() error {
	if r == nil {
		return nil
	}
	if conflict := r.conflict.Load(); conflict != nil {
		return conflict
	}
	return nil
}

// allows reports whether a lock that was won may be used: a quorum must know of this process for as long as
// the lock may be valid. For the first lock of a process it waits until deadline for that: in a Redis
// Cluster the sets may be on another node than the lock, so that their answer may come later.
func (r *registry) allows(ctx context.Context, closing <-chan struct{}, deadline time.Time) bool {
	if r == nil {
		return true
	}
	if r.registered.Load() == nil && r.conflict.Load() == nil {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-r.firstKnown:
		case <-r.refused:
		case <-timer.C:
		case <-ctx.Done():
		case <-closing:
		}
	}
	until := r.registered.Load()
	return r.conflict.Load() == nil && until != nil && !past(*until)
}

package redlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/version"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/sets"
)

// registry registers the masters of this process with each of them, and learns which masters other
// processes have. The judge detects sets of masters whose majorities need not meet, so that both could grant
// a lock. It costs one command to each master every two seconds, and none for a lock.
type registry struct {
	options
	streams []*link.Stream
	turns   func(now time.Time) string // what the masters are told of the turns that last for long
	key     string
	process string // its ID and name
	about   string // what it says about itself
	wanted  chan struct{}
	ended   chan struct{}
	never   atomic.Bool // never set: a registration is always wanted

	refused atomic.Pointer[refusal]   // why no lock may be taken now, or nil
	inUse   atomic.Pointer[time.Time] // until when a quorum of the masters knows of this process; nil if it may not lock
	differs atomic.Pointer[[]sets.Difference]
	turned  atomic.Pointer[chan struct{}] // closed when one of the two above has changed so that a call may go on

	mu      sync.Mutex
	judge   *sets.Judge
	pending []bool // by master: it has been asked again and hasn't answered
	began   time.Time
}

// refusal is why the masters' votes don't count, whatever each of them says.
type refusal struct{ error }

// Is makes errors.Is find ErrNoVote.
func (refusal) Is(target error) bool { return target == admission.ErrNoVote }

// newRegistry returns nil for masters in this process's own memory, which no other process shares.
func newRegistry(o options, masters []Master, id string) *registry {
	r := &registry{
		options: o,
		key:     o.prefix + ":sets:{sets}", // the braces put all its keys into one slot of a Redis Cluster
		process: id + " " + o.instance, about: sets.About(time.Now(), version.String()),
		wanted: make(chan struct{}, 1), ended: make(chan struct{}),
		pending: make([]bool, len(masters)), began: time.Now(),
	}
	turned := make(chan struct{})
	r.turned.Store(&turned)
	var names []string
	for _, m := range masters {
		if !m.impl.Capabilities().Shared {
			return nil
		}
		names = append(names, m.String())
	}
	r.judge = sets.New(r.began, names, o.maxTTL, o.admission().Covers())
	return r
}

// start registers with all masters, before any lock is asked for, and keeps doing so until the Locker closes.
func (r *registry) start(l *Locker) {
	if r == nil {
		return
	}
	r.streams, r.turns = l.streams, l.longTurns
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
	const least = sets.Every / 16 // while the process claims its set: it soon hears that it may lock
	pause := least
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.wanted:
		case <-l.closing:
			return
		}
		announced = announced || l.announce(time.Since(r.began))
		r.register()
		if pause = min(2*pause, sets.Every); r.claims() {
			pause = least
		}
		timer.Reset(pause)
	}
}

// want has the process register soon: with a server that was just reached, which it couldn't ask before.
func (r *registry) want() {
	if r != nil {
		link.Signal(r.wanted)
	}
}

// claims reports whether the process claims its set: each look at that must come soon after the one before.
func (r *registry) claims() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.judge.State() == sets.Claims
}

// register asks all masters but those that haven't answered the last time.
func (r *registry) register() {
	now := time.Now()
	turns := r.turns(now)
	r.tell(func(j *sets.Judge) { j.Look(now) })
	for i, s := range r.streams {
		r.mu.Lock()
		pending := r.pending[i]
		r.pending[i] = true
		r.mu.Unlock()
		var g sets.Registration
		r.tell(func(j *sets.Judge) {
			if !pending {
				g = j.Register(now, i)
			} else if s.IsCluster() && s.ForKey(r.key).Fails() {
				j.KnowsNothing(now, i)
			}
		})
		if pending {
			continue
		}
		c := &link.Command{Command: protocol.Command{Op: protocol.OpRegister, Key: r.key, Token: g.Text, Former: g.Former, Age: g.Age, Process: r.process, About: r.about, Turns: turns, TTL: sets.Memory, Ticket: s.Clock.Confirmed(now)},
			Master: i, Abandoned: &r.never, To: &registration{r, g}}
		s.Push(c)
	}
}

// registration receives one master's reply to a register.
type registration struct {
	registry *registry
	sets.Registration
}

func (g *registration) Receive(c *link.Command) {
	r, now := g.registry, time.Now()
	s, lost := r.streams[c.Master], false
	r.tell(func(j *sets.Judge) {
		r.pending[c.Master] = false
		switch {
		case errors.Is(c.Reply.Err, protocol.ErrRefused): // other sets go unnoticed
			j.Refused(now, c.Master, c.Reply.Err)
		case c.Reply.Err != nil && s.IsCluster():
			j.KnowsNothing(now, c.Master)
		case c.Reply.Err != nil:
			j.Failed(now, c.Master, g.Registration, absence(c.Reply.Err))
		default:
			lost = j.Answered(now, c.Master, g.Registration, c.Reply)
		}
	})
	if lost {
		s.DataLost()
	}
}

// absence returns why a master has given no reply.
func absence(err error) sets.Absence {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return sets.Gone
	case errors.Is(err, ErrRestarted): // or replaced
		return sets.Guarded
	}
	return sets.Silent
}

// reached notes which server a master's address leads to now, and until when it was excluded for a loss of its data.
func (r *registry) reached(master int, server protocol.Server, lostUntil time.Time) {
	if r != nil {
		r.tell(func(j *sets.Judge) { j.Reached(time.Now(), master, server, lostUntil) })
	}
}

// tell tells the judge something, and passes on what it says.
func (r *registry) tell(news func(*sets.Judge)) {
	r.mu.Lock()
	news(r.judge)
	r.publish()
	notes, again := r.judge.Notes(), r.judge.Again()
	r.mu.Unlock()
	if again {
		r.want()
	}
	for _, n := range notes {
		r.logger.Log(context.Background(), n.Level, n.Text, n.Args...)
	}
}

// publish lets callers know how far the process may lock. Callers hold mu.
func (r *registry) publish() {
	refused, former := r.refusal() != nil, r.inUse.Load()
	differs := r.judge.Differences()
	r.differs.Store(&differs)
	if err := r.judge.Refusal(); err != nil {
		r.refused.Store(&refusal{err})
	} else {
		r.refused.Store(nil)
	}
	if until := r.judge.Until(); r.judge.State() == sets.Uses {
		r.inUse.Store(&until)
	} else {
		r.inUse.Store(nil)
	}
	if now := r.inUse.Load(); refused != (r.refusal() != nil) || now != nil && (former == nil || !now.Equal(*former)) {
		turned := make(chan struct{})
		close(*r.turned.Swap(&turned))
	}
}

// refusal returns why no lock may be taken now, or nil.
func (r *registry) refusal() error {
	if r == nil {
		return nil
	}
	if refused := r.refused.Load(); refused != nil {
		return refused
	}
	return nil
}

// allows reports whether a lock that was won, and is valid until then unless it is renewed, may be used: a quorum must know of this
// process for as long. It waits until deadline for that: at first, after the masters were out of reach, and in a Redis Cluster where
// the sets are on another node than the lock, that may be known later.
func (r *registry) allows(ctx context.Context, closing <-chan struct{}, deadline, valid time.Time) bool {
	if r == nil {
		return true
	}
	for {
		turned := *r.turned.Load() // before the look
		switch until := r.inUse.Load(); {
		case r.refusal() != nil:
			return false
		case until != nil && !past(*until) && !until.Before(valid):
			return true
		}
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-turned:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		case <-closing:
			return false
		}
	}
}

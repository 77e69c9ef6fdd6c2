package redlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/version"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// heart tells each master every two seconds about this process, and learns of processes that have other masters. A majority of another process's
// masters may share no master with a majority of ours. Then both processes could get the same lock. The heart costs each master one command every two
// seconds, and none for a lock.
type heart struct {
	options
	streams []vote.Stream
	turns   func(now time.Time) string // returns lines for the masters about calls that have held a key, or waited for it, for long
	key     string
	wanted  chan struct{}
	ended   chan struct{}
	never   atomic.Bool // stays false, because no beat is abandoned

	differs atomic.Pointer[[]heartbeat.Difference]
	refused atomic.Pointer[refusal]       // the reason why this process may take no lock now, or nil
	until   atomic.Pointer[time.Time]     // until when this process may take locks; zero if it may not now
	changed atomic.Pointer[chan struct{}] // closed, and replaced, when a call in allows must check refused and until again

	mu    sync.Mutex
	judge *heartbeat.Judge
	asked []time.Time // for each master, when the unanswered beat was sent; zero if there is none
	began time.Time
}

// refusal is the reason why this process may not lock, whatever the masters reply.
type refusal struct{ error }

func (refusal) Is(target error) bool { return target == admission.ErrNoVote }

// newHeart returns nil for masters in this process's own memory, which no other process shares.
func newHeart(o options, masters []Master, id string) *heart {
	h := &heart{
		options: o,
		key:     protocol.Processes(o.prefix),
		wanted:  make(chan struct{}, 1), ended: make(chan struct{}),
		asked: make([]time.Time, len(masters)), began: time.Now(),
	}
	changed := make(chan struct{})
	h.changed.Store(&changed)
	h.until.Store(new(time.Time))
	var names []string
	for _, m := range masters {
		if !m.impl.Capabilities().Shared {
			return nil
		}
		names = append(names, m.String())
	}
	h.judge = heartbeat.New(id, heartbeat.About{
		Name: o.instance, Version: version.String(), Started: h.began.UnixMilli(),
		MaxTTL: o.maxTTL.Milliseconds(), Covers: o.admission().Covers().Milliseconds(),
	}, names)
	return h
}

// start sends the first beat, so that it is sent before any acquire. Further beats follow until the Locker closes.
func (h *heart) start(l *Locker) {
	if h == nil {
		return
	}
	h.streams, h.turns = l.voters.Streams, l.longTurns
	h.beat()
	go h.run(l)
}

// end tells the masters that this process has ended in order, so that nobody takes it for one that hangs. Nothing depends on whether they hear it.
func (h *heart) end() {
	if h == nil {
		return
	}
	<-h.ended
	h.mu.Lock()
	beat := h.judge.Farewell()
	h.mu.Unlock()
	for i, s := range h.streams {
		s.Push(&link.Command{Command: protocol.Command{Op: protocol.OpBeat, Key: h.key, Ask: beat}, Master: i})
	}
}

func (h *heart) run(l *Locker) {
	defer close(h.ended)
	announcer := announcer{since: h.began}
	pause := heartbeat.Every / 16
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-h.wanted:
		case <-l.closing:
			return
		}
		announcer.look(l.mastersStatus(), time.Now(), l.logger)
		h.beat()
		if pause = min(2*pause, heartbeat.Every); h.begins() {
			pause = min(pause, heartbeat.Grace)
		}
		timer.Reset(pause)
	}
}

// want asks for a beat soon, for example after a master was just reached.
func (h *heart) want() {
	if h != nil {
		link.Signal(h.wanted)
	}
}

func (h *heart) begins() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.judge.Begins()
}

// beat sends a beat to all masters except those that haven't answered the last one.
func (h *heart) beat() {
	now := time.Now()
	turns := h.turns(now)
	var beat *protocol.Beat
	var free []int
	knew := make([]int64, len(h.streams))
	h.tell(func(j *heartbeat.Judge) {
		for i, s := range h.streams {
			switch missed := now.Sub(h.asked[i]) >= heartbeat.Every*9/10; {
			case h.asked[i].IsZero():
				free = append(free, i)
				h.asked[i] = now
				if !s.Divided() { // in a cluster, the key of the beats may move to a different node
					knew[i] = j.Knew(now, i)
				}
			case s.Divided() && s.At(h.key).Fails():
				j.KnowsNothing(now, i, j.Beat(), now)
			case missed:
				j.Missed(now, i)
			}
		}
		j.Look(now)
		beat = j.Beat()
	})
	for _, i := range free {
		s, sent := h.streams[i], *beat
		sent.Turns, sent.Shown, sent.Knew = turns, s.At(h.key).Clock.Confirmed(now), knew[i]
		s.Push(&link.Command{Command: protocol.Command{Op: protocol.OpBeat, Key: h.key, Ask: &sent}, Master: i, Abandoned: &h.never, To: h})
	}
}

func (h *heart) Receive(c *link.Command) {
	now := time.Now()
	s, beat, lost := h.streams[c.Master], c.Ask.(*protocol.Beat), false
	h.tell(func(j *heartbeat.Judge) {
		sent := h.asked[c.Master]
		h.asked[c.Master] = time.Time{}
		switch {
		case errors.Is(c.Reply.Err, protocol.ErrRefused): // the master denies the beat, so other processes go unnoticed
			j.Refused(now, c.Master, beat, sent, c.Reply.Err)
		case c.Reply.Err != nil && s.Divided():
			j.KnowsNothing(now, c.Master, beat, sent)
		case c.Reply.Err != nil:
			j.Failed(now, c.Master, beat, errors.Is(c.Reply.Err, syscall.ECONNREFUSED))
		default:
			lost = j.Answered(now, c.Master, beat, sent, c.Reply)
		}
	})
	if lost && !s.Divided() {
		s.At(h.key).DataLost()
	}
}

// reached notes the server that answers at a master's address now, and until when that server is excluded because it has lost its data.
func (h *heart) reached(master int, server protocol.Server, lostUntil time.Time) {
	if h != nil {
		h.tell(func(j *heartbeat.Judge) { j.Reached(time.Now(), master, server, lostUntil) })
	}
}

func (h *heart) tell(news func(*heartbeat.Judge)) {
	h.mu.Lock()
	news(h.judge)
	h.publish()
	notes, again := h.judge.Notes(), h.judge.Again()
	h.mu.Unlock()
	if again {
		h.want()
	}
	for _, n := range notes {
		h.logger.Log(context.Background(), n.Level, n.Text, n.Args...)
	}
}

// publish makes the judge's decisions visible to callers that don't hold mu. Its own callers hold mu.
func (h *heart) publish() {
	refused, former := h.refusal() != nil, *h.until.Load()
	differs, until := h.judge.Differences(time.Now()), h.judge.Until()
	h.differs.Store(&differs)
	h.until.Store(&until)
	if err := h.judge.Refusal(); err != nil {
		h.refused.Store(&refusal{err})
	} else {
		h.refused.Store(nil)
	}
	if refused != (h.refusal() != nil) || until.After(former) {
		changed := make(chan struct{})
		close(*h.changed.Swap(&changed))
	}
}

func (h *heart) difference(p *heartbeat.Process) heartbeat.Difference {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.judge.Difference(p)
}

func (h *heart) refusal() error {
	if h == nil {
		return nil
	}
	if refused := h.refused.Load(); refused != nil {
		return refused
	}
	return nil
}

// allows reports whether a lock that was won may be used. A quorum must remember this process until valid, which is the end of the lock if it isn't
// renewed. allows waits until deadline for the replies to a beat, because they may come later than the grants. That happens at the start, after the
// masters were out of reach, and in a Redis Cluster, where one node has the lock and another one has the processes.
func (h *heart) allows(ctx context.Context, closing <-chan struct{}, deadline, valid time.Time) bool {
	if h == nil {
		return true
	}
	for {
		changed := *h.changed.Load() // loaded before refused and until, so that no later change is missed
		switch until := *h.until.Load(); {
		case h.refusal() != nil:
			return false
		case !vote.Past(until) && !until.Before(valid):
			return true
		case time.Until(deadline) <= 0:
			return false
		}
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		case <-closing:
			return false
		}
	}
}

package vote

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Round is one goroutine's wait for the masters' replies to one command. Several rounds can follow each other, such as the rounds for the acquire,
// the extend and the release of an attempt.
type Round struct {
	masters *Masters
	Replies *Inbox
}

// NewRound returns a round for an operation. The waiting goroutine wakes when need replies have come, and then for each further reply.
func (m *Masters) NewRound(op protocol.Op, need int) Round {
	return Round{m, &Inbox{ready: make(chan struct{}, 1), op: op, need: need, replies: make([]*link.Command, 0, len(m.Streams))}}
}

type Ending int

const (
	Answered   Ending = iota // the function count has returned true, or all masters have answered
	TimeOver                 // the span is over
	CallerLeft               // the caller's context has ended, or the process is closing its masters
)

// Span is how long masters may take to answer. It passes in steps. A step counts as no more than its length, however late this process notices its
// end. If a busy machine has kept the process from running, the replies have arrived meanwhile, and only need to be read.
type Span struct {
	Rest   time.Duration // the time after the present step
	began  time.Time     // the origin of the time in behind
	behind *atomic.Int64 // gets the earliest end of the span, as the time since began, for the calls that wait for this one; or nil

	step time.Duration
	over time.Time // the end of the present step; zero before the first step
}

const spanSteps = 8

// NewSpan returns a span for which no other call waits.
func NewSpan(d time.Duration) Span { return Span{Rest: d, step: d / spanSteps} }

// NewSpanOf is NewSpan for a span that other calls wait for. It stores the earliest end of the span in others, as the time since began.
func NewSpanOf(d time.Duration, began time.Time, others *atomic.Int64) Span {
	s := NewSpan(d)
	s.began, s.behind = began, others
	s.tell(time.Now())
	return s
}

// begin begins a step, unless one is under way or the span is over, and returns its end.
func (s *Span) begin() time.Time {
	if now := time.Now(); s.Rest > 0 && !now.Before(s.over) {
		s.tell(now)
		step := min(s.step, s.Rest)
		s.Rest, s.over = s.Rest-step, now.Add(step)
	}
	return s.over
}

// tell updates the earliest end of the span for the calls that wait for it.
func (s *Span) tell(now time.Time) {
	if s.behind != nil {
		s.behind.Store(int64(now.Add(s.Rest).Sub(s.began)))
	}
}

// Collect passes each reply to count, with the number of replies still missing, until count returns true or all expected replies have come. Replies
// that have arrived by the end of the span still count.
func (r *Round) Collect(ctx context.Context, closing <-chan struct{}, within *Span, expected int, count func(c *link.Command, pending int) (done bool)) Ending {
	var room [5]*link.Command // room for the replies of most rounds; saves an allocation
	var timer *alarm          // nil if the replies are already there, so that no wait is needed
	defer func() {
		if timer != nil {
			r.masters.calm(timer)
		}
	}()
	for pending := expected; pending > 0; {
		over := false
		if timer == nil && len(r.Replies.ready) == 0 {
			timer = r.masters.alarmAt(within.begin(), r.Replies)
		}
		select {
		case <-r.Replies.ready:
			if timer != nil && !time.Now().Before(within.over) {
				if over = within.Rest <= 0; !over {
					timer.timer.Reset(time.Until(within.begin()))
				}
			}
		case <-ctx.Done():
			return CallerLeft
		case <-closing:
			return CallerLeft
		}
		for _, c := range r.Replies.drain(room[:0]) {
			pending--
			if count(c, pending) {
				return Answered
			}
		}
		if over {
			return TimeOver
		}
	}
	return Answered
}

// AskAll sends a command to all masters. It returns the replies that have come when done returns true for one of them, when ctx has ended, or when
// the masters' time is over. The other replies have errors.
func (m *Masters) AskAll(ctx context.Context, cmd protocol.Command, done func(protocol.Reply) bool) (replies []protocol.Reply, end Ending) {
	r := m.NewRound(cmd.Op, 1)
	over := new(atomic.Bool)
	defer over.Store(true)
	timeout := m.Patience(cmd.Key)
	for i, s := range m.Streams {
		s.Push(&link.Command{Command: cmd, Master: i, Abandoned: over, To: r.Replies})
	}
	replies = make([]protocol.Reply, len(m.Streams))
	answered := make([]bool, len(m.Streams))
	within := NewSpan(timeout)
	end = r.Collect(ctx, m.Closing, &within, len(m.Streams), func(c *link.Command, _ int) bool {
		replies[c.Master], answered[c.Master] = c.Reply, true
		return done != nil && done(c.Reply)
	})
	for i := range replies {
		switch {
		case answered[i]:
		case end == CallerLeft:
			replies[i].Err = cmp.Or(context.Cause(ctx), link.ErrClosed)
		default:
			replies[i].Err = m.Hung(i, cmd.Key, timeout)
		}
	}
	return replies, end
}

// alarm signals one inbox at a time, from a separate goroutine, which nothing else can delay. Alarms are reused. So a late signal may wake the owner
// of another inbox, which notices that its time isn't over.
type alarm struct {
	timer *time.Timer
	rings atomic.Pointer[Inbox]
}

func (m *Masters) alarmAt(deadline time.Time, in *Inbox) *alarm {
	a, used := m.alarms.Get().(*alarm)
	if !used {
		a = &alarm{}
		a.rings.Store(in)
		a.timer = time.AfterFunc(time.Until(deadline), func() {
			if in := a.rings.Load(); in != nil {
				in.ring()
			}
		})
		return a
	}
	a.rings.Store(in)
	a.timer.Reset(time.Until(deadline))
	return a
}

func (m *Masters) calm(a *alarm) {
	a.timer.Stop()
	a.rings.Store(nil)
	m.alarms.Put(a)
}

// Inbox collects the replies to one round of commands. It signals its owner when there may be enough replies for a decision, rather than at every
// reply. So the owner mostly wakes once in a round.
type Inbox struct {
	ready chan struct{}

	mu      sync.Mutex
	op      protocol.Op     // replies to other operations are late, and are dropped
	need    int             // how many replies must come before the owner is signaled
	replies []*link.Command // the replies that the owner hasn't taken yet
}

// expect drops the replies that have come, and begins to collect the replies to another operation.
func (in *Inbox) expect(op protocol.Op, need int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.op, in.need, in.replies = op, need, in.replies[:0]
	select {
	case <-in.ready:
	default:
	}
}

func (in *Inbox) Receive(c *link.Command) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.Op != in.op { // a late reply of an earlier round
		return
	}
	in.replies = append(in.replies, c)
	if len(in.replies) >= in.need {
		in.ring()
	}
}

// drain appends the replies that have come to the slice into. From now on each further reply signals the owner.
func (in *Inbox) drain(into []*link.Command) []*link.Command {
	in.mu.Lock()
	defer in.mu.Unlock()
	into = append(into, in.replies...)
	in.replies, in.need = in.replies[:0], 1
	return into
}

func (in *Inbox) ring() { link.Signal(in.ready) }

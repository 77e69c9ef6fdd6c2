package traefik

import (
	"errors"
	"io"
	"sync"
	"time"
)

// lease says until when a turn surely has its lock. It counts from the time at which a mark was sent to the agent, and never from
// the time at which a line has come, because the agent may have been stopped, or the line may have waited, before.
type lease struct {
	turn *turn

	mu    sync.Mutex
	marks map[int]time.Time // when each mark was sent that a line may still answer; mark 0 is the request
	mark  int
	end   time.Time
	timer *time.Timer
}

// suspended is the longest pause between two looks at the clock, so that a machine that was suspended, during which timers stand
// still, soon finds out.
const suspended = time.Second

var (
	errEnded = errors.New("redlock: the lock is lost: the agent has not renewed it in time")
	errLost  = errors.New("redlock: the lock is lost: the agent has ended it, or is gone")
)

// watch reads the agent's lines about a turn until the response ends, and ends the request when its lease is over. If no line has said
// that the lock was released, the lock is lost.
func (t *turn) watch() {
	defer close(t.read)
	l := &lease{turn: t, marks: map[int]time.Time{0: t.sent}}
	released := false
	defer func() {
		_ = recover() // a panic would end Traefik
		l.stop()
		if !released {
			t.lose(errLost)
		}
	}()
	l.timer = time.AfterFunc(time.Hour, l.check)
	l.renewed(t.first)
	for {
		said := line{}
		if err := t.lines.Decode(&said); err != nil {
			t.whole = err == io.EOF
			return
		}
		if said.Released != nil {
			released = true
		}
		if said.ValidMs > 0 {
			l.renewed(said)
			l.remark(said.Mark)
		}
	}
}

func (t *turn) lose(err error) {
	t.cancel(err)
	t.abort()
}

// renewed moves the end of the lease to the end that a line of the agent gives, unless that is earlier.
func (l *lease) renewed(said line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, ok := l.marks[said.Mark]
	if !ok {
		return
	}
	valid := time.Duration(said.ValidMs) * time.Millisecond
	if !l.turn.agent.local {
		valid -= valid / 100 // the clocks of two machines may differ in speed
	}
	if end := sent.Add(valid); end.After(l.end) {
		l.end = end
	}
	l.timer.Reset(l.left())
	for mark := range l.marks {
		if mark < said.Mark {
			delete(l.marks, mark)
		}
	}
}

// remark sends a new mark to an agent on another machine if the last mark was answered. Otherwise the hundredth that renewed takes
// off would grow with the time of the request.
func (l *lease) remark(answered int) {
	if l.turn.agent.local || answered != l.mark {
		return
	}
	l.mu.Lock()
	l.mark++
	l.marks[l.mark] = time.Now()
	l.mu.Unlock()
	_, _ = l.turn.conn.net.Write(chunk([]byte("\n")))
}

// left returns how long the lease is certain on both clocks: the monotonic one stands still while a machine is suspended, and the
// other may be set back. It is at most the constant suspended.
func (l *lease) left() time.Duration {
	now := time.Now()
	left := l.end.Sub(now)
	if wall := l.end.Round(0).Sub(now.Round(0)); wall < left {
		left = wall
	}
	if left > suspended {
		return suspended
	}
	return left
}

func (l *lease) check() {
	l.mu.Lock()
	left := l.left()
	if left > 0 && l.timer != nil {
		l.timer.Reset(left)
	}
	l.mu.Unlock()
	if left <= 0 {
		l.turn.lose(errEnded)
	}
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.timer = nil
}

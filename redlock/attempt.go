package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// attempt is one try to take a key: one fresh token, and one vote of each master. A token is never
// used twice: a late release of an earlier attempt would free the lock of a later one.
type attempt struct {
	locker  *Locker
	start   time.Time
	ttl     time.Duration
	timeout time.Duration
	calls   []call     // the acquires, by master
	answers chan *call // has room for all of them
	over    atomic.Bool

	granted int
	held    []Reply       // the votes that another has
	failed  []MasterError // the masters that gave no vote
}

// newAttempt sends an acquire to all masters at once.
func (l *Locker) newAttempt(key string, ttl time.Duration) *attempt {
	a := &attempt{
		locker:  l,
		start:   time.Now(),
		ttl:     ttl,
		calls:   make([]call, len(l.streams)),
		answers: make(chan *call, len(l.streams)),
	}
	token := l.terms + rand.Text()
	for i, s := range l.streams {
		a.calls[i] = call{
			Command: Command{Op: OpAcquire, Key: key, Token: token, TTL: ttl},
			master:  i,
			over:    &a.over,
			done:    a.answers,
		}
		s.push(&a.calls[i])
		a.timeout = max(a.timeout, s.latency.timeout())
	}
	return a
}

// await collects votes until a quorum has granted, or is out of reach, or the masters' time is
// over, or the caller leaves. It says whether the lock is won.
func (a *attempt) await(ctx context.Context) bool {
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	pending := make(map[int]bool, len(a.calls))
	for i := range a.calls {
		pending[i] = true
	}
	for len(pending) > 0 && a.granted+len(pending) >= a.locker.quorum {
		select {
		case c := <-a.answers:
			delete(pending, c.master)
			switch {
			case c.Reply.Err != nil:
				a.fail(c.master, c.Reply.Err)
			case c.Reply.Status == StatusGranted:
				a.granted++
			default:
				a.held = append(a.held, c.Reply)
			}
		case <-timer.C:
			for i := range pending {
				a.fail(i, fmt.Errorf("%w within %v", errHung, a.timeout))
			}
			return false
		case <-ctx.Done():
			return false
		case <-a.locker.closing:
			return false
		}
		if a.granted >= a.locker.quorum {
			return time.Now().Before(a.until())
		}
	}
	return false
}

func (a *attempt) fail(master int, err error) {
	a.failed = append(a.failed, MasterError{Master: a.locker.streams[master].master.String(), Err: err})
}

// until is the end of the validity of a lock won in this attempt: counted from before the masters
// began to count, less the drift.
func (a *attempt) until() time.Time { return a.start.Add(a.ttl - drift(a.ttl)) }

// release frees the key on all masters that have, or may have, granted it. It doesn't wait: the
// streams keep the order and the retries. The answers go to the channel, if there is one; it needs
// room for all masters.
func (a *attempt) release(answers chan<- *call) {
	a.over.Store(true)
	calls := make([]call, len(a.calls))
	for i := range a.calls {
		acquire := &a.calls[i]
		calls[i] = call{
			Command: Command{Op: OpRelease, Key: acquire.Key, Token: acquire.Token},
			master:  i,
			acquire: acquire,
			until:   time.Now().Add(a.ttl),
			done:    answers,
		}
		a.locker.streams[i].push(&calls[i])
	}
}

// split says whether the votes went to several at once, so that perhaps nobody has won.
func (a *attempt) split() bool {
	votes := make(map[string]int, len(a.held))
	for _, reply := range a.held {
		votes[reply.Holder]++
		if votes[reply.Holder] >= a.locker.quorum {
			return false
		}
	}
	return len(a.held) > 0 && !a.tooFewLive()
}

// tooFewLive says whether so many masters failed that nobody can have a quorum.
func (a *attempt) tooFewLive() bool { return len(a.calls)-len(a.failed) < a.locker.quorum }

// failure says why the attempt was lost. Votes that went to others are contention, whether or not
// one of them has won: that is ErrHeld. ErrNoQuorum is for masters that don't answer.
func (a *attempt) failure() error {
	if a.tooFewLive() || len(a.held) == 0 {
		return &QuorumError{Answered: a.granted + len(a.held), Quorum: a.locker.quorum, Masters: a.failed}
	}
	held := &HeldError{}
	for _, reply := range a.held {
		held.RetryAfter = max(held.RetryAfter, reply.TTL)
	}
	return held
}

// terms are the settings on which all processes must agree. Every token starts with them, so that
// whoever meets another's lock can tell that they differ: "<masters>.<max ttl in ms>.".
func terms(masters int, maxTTL time.Duration) string {
	return fmt.Sprintf("%d.%d.", masters, maxTTL.Milliseconds())
}

// foreignTerms finds, among the holders met, one that works under other terms than ours.
func (a *attempt) foreignTerms() (masters int, maxTTL time.Duration, found bool) {
	for _, reply := range a.held {
		if strings.HasPrefix(reply.Holder, a.locker.terms) {
			continue
		}
		parts := strings.SplitN(reply.Holder, ".", 3)
		if len(parts) < 3 {
			continue // not a token of ours
		}
		n, errN := strconv.Atoi(parts[0])
		ms, errMS := strconv.ParseInt(parts[1], 10, 64)
		if errN == nil && errMS == nil {
			return n, time.Duration(ms) * time.Millisecond, true
		}
	}
	return 0, 0, false
}

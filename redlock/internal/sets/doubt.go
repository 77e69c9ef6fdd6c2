package sets

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// doubtTime is how long a process may take to notice that a server has restarted.
	doubtTime = 5 * Every
	// noticed is how long after a restart no process registers the former run any more.
	noticed = doubtTime + 2*Every
)

// doubt is a difference that may only be a restart which one process hasn't noticed yet.
type doubt struct{ since, last time.Time } // when it was seen first, and last

// conflictError is the reason why a process must not lock: another one has masters of which a majority need not
// share any with a majority of ours.
type conflictError struct{ ours, theirs, process string }

func (e *conflictError) Error() string {
	return fmt.Sprintf("another process with other masters was here first, and both could hold the same lock: the masters of %s are %s; ours are %s; configure the same masters everywhere, or change one at a time (docs/operations.md)", e.process, e.theirs, e.ours)
}

func (j *Judge) conflict(other *set) error {
	return &conflictError{ours: j.own.String(), theirs: other.String(), process: other.process()}
}

type unsettledError struct{}

func (unsettledError) Error() string {
	return fmt.Sprintf("a master has just forgotten which processes lock: those that do have %v to register there again, after its restart guard", settled)
}

// PassesIn returns how soon a process that is refused for this reason may ask again with hope; 0 if it has to be configured.
func PassesIn(refusal error) time.Duration {
	if errors.Is(refusal, errUnsettled) {
		return settled
	}
	return 0
}

// errUnsettled is the reason why a process that has just started must not lock yet.
var errUnsettled error = unsettledError{}

// same reports whether a process has the same masters as this one, or may have.
func (j *Judge) same(v *view, u use, now time.Time) bool {
	return j.own.same(u.set, false) || j.own.same(u.set, true) && !j.isReal(v, u, now)
}

// isReal reports whether a difference between two sets is real. It may only be that one process hasn't noticed
// a restart yet.
func (j *Judge) isReal(v *view, u use, now time.Time) bool {
	return j.persists(u.text, v, u, now) || j.coexist(v, u, now)
}

// coexist reports that our servers and those of another set have been there side by side: all of ours have run for longer than it takes
// to notice a restart, and have answered since the other set was seen. Only a new process judges by this, and only if it has reached
// no other servers before. It can wait, whereas one that has locked for long must not be stopped by another that was suspended, and still
// registers the servers of before.
func (j *Judge) coexist(v *view, u use, now time.Time) bool {
	if now.Sub(j.began) > noticed || v.now-u.seen > (2*Every).Microseconds() {
		return false
	}
	seen := v.sent.Add(-time.Duration(v.now-u.seen) * time.Microsecond)
	for i, m := range j.own.Masters {
		if m.Up && (m.Was != "" || now.Sub(m.started) < noticed || !j.views[i].sent.After(seen)) {
			return false
		}
	}
	return true
}

// persists reports whether a difference has lasted for longer than it takes to notice a restart, with both sets still in use. A
// master that hasn't answered for as long is no witness of that.
func (j *Judge) persists(about string, v *view, u use, now time.Time) bool {
	if v.now-u.seen > (2 * Every).Microseconds() {
		delete(j.doubted, about)
		return false
	}
	if now.Sub(v.sent) > doubtTime {
		return false
	}
	d, ok := j.doubted[about]
	if !ok && len(j.doubted) > protocol.MaxSets {
		clear(j.doubted)
	}
	if now.Sub(d.last) > 2*Every { // it is another one: in between, the sets were the same, or one was not in use
		d.since = now
	}
	d.last = now
	j.doubted[about] = d
	return now.Sub(d.since) > doubtTime
}

//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	// patience is how long a command waits before it tells the reason.
	patience = 300 * time.Millisecond
	// tryPatience is how long --try waits for masters that are known to have a vote soon.
	tryPatience = 10 * time.Second
	// lookMost is the longest pause between two looks at the masters.
	lookMost = 5 * time.Second
)

// mastersPatience is how long a command without --wait waits for a majority of the masters, if it isn't known when there will be
// one.
var mastersPatience = time.Minute

var errNoMajority = errors.New("no majority of the masters could be reached in time")

// errAgentEnds is the error of an agent that takes no more locks: another one may take its place. errNoAgent is the error if no
// agent answers.
var (
	errAgentEnds = errors.New("the agent takes no more locks")
	errNoAgent   = errors.New("no agent answers")
)

// bound returns how long the command waits for the lock; 0 means until it has the lock.
func (c *runCommand) bound() time.Duration {
	most := c.wait
	if c.try || c.waits && c.wait == 0 {
		most = tryPatience
	}
	if c.period > 0 && (most == 0 || c.period < most) {
		most = c.period // then the next start of the job asks for the lock
	}
	return most
}

// tries reports whether the command waits for no other holder.
func (c *runCommand) tries() bool { return c.try || c.waits && c.wait == 0 }

// await takes the lock through the door. While too few masters have a vote, it asks again until the wait is over, unless it is known
// that they come too late.
func (c *runCommand) await(ctx context.Context, d door) (*holding, error) {
	w := &awaiting{run: c, door: d, began: time.Now()}
	if most := c.bound(); most > 0 {
		w.end = w.began.Add(most)
	}
	ctx, w.giveUp = context.WithCancelCause(ctx)
	defer w.giveUp(nil)
	defer w.tell(ctx)()
	for {
		held, err := d.lock(ctx, w.rest())
		switch {
		case context.Cause(ctx) == errNoMajority:
			if err == nil {
				err = held.free(false)
			}
			return nil, w.gaveUp(err)
		case err == nil, !w.again(ctx, err):
			return held, err
		}
		select {
		case <-time.After(patience):
		case <-ctx.Done():
		}
	}
}

type awaiting struct {
	run    *runCommand
	door   door
	began  time.Time
	end    time.Time // zero: none
	moves  time.Time // when to give up waiting for an agent that takes the place of one that takes no more locks
	giveUp context.CancelCauseFunc
}

// rest returns for how long the command may go on waiting for the lock; nil means without an end.
func (w *awaiting) rest() *time.Duration {
	switch {
	case w.run.tries():
		return new(time.Duration)
	case w.end.IsZero():
		return nil
	}
	rest := max(0, time.Until(w.end))
	return &rest
}

func (w *awaiting) again(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !w.end.IsZero() && !time.Now().Before(w.end) {
		return false
	}
	switch {
	case errors.Is(err, errAgentEnds):
		if w.moves = w.end; w.end.IsZero() {
			w.moves = time.Now().Add(agentPatience)
		}
		return !w.run.tries()
	case errors.Is(err, errNoAgent):
		return time.Now().Before(w.moves)
	}
	if !errors.Is(err, redlock.ErrNoQuorum) {
		return false
	}
	var quorum *redlock.QuorumError
	status := w.door.status(ctx)
	switch until := quorumAt(status); {
	case errors.As(err, &quorum) && quorum.Total == 0 && quorum.RetryAfter > 0: // masters that have restarted learn now which processes there are
		return w.end.IsZero() || time.Until(w.end) > quorum.RetryAfter
	case status.Err != nil:
		return false
	case !until.IsZero():
		return w.end.IsZero() || until.Before(w.end)
	case w.run.tries():
		return status.Ready() // the masters don't know this process yet: that takes seconds after they have started
	}
	return true
}

func (w *awaiting) gaveUp(last error) error {
	text := absent(w.door.status(context.Background()))
	return &coded{codeNoQuorum, errors.Join(fmt.Errorf("gave up waiting for the masters after %v: %s", time.Since(w.began).Round(time.Second), text), unlessWait(last))}
}

// unlessWait returns an error that isn't about the end of the wait.
func unlessWait(err error) error {
	if errors.Is(err, redlock.ErrNoQuorum) || errors.Is(err, redlock.ErrHeld) || errors.Is(err, context.Canceled) || errors.Is(err, errNoMajority) {
		return nil
	}
	return err
}

// tell prints the reason for the wait, until stop is called: whenever the masters without a vote change, that there are too few with one;
// and once, if a person reads it, who has the lock. It ends a wait for masters that lasts for too long.
func (w *awaiting) tell(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		person := isTerminal(os.Stderr) && !w.run.tries()
		missing, since := "", time.Time{} // the absence that was told, and since when there is no majority
		for pause := patience; ; pause = min(2*pause, lookMost) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			status := w.door.status(ctx)
			until := quorumAt(status)
			switch {
			case ctx.Err() != nil:
				return
			case len(status.Masters) == 0, w.connects(status):
			case status.Ready():
				since = time.Time{}
				if missing != "" {
					missing = ""
					tell("a majority of the masters has a vote again: waiting for the lock")
				}
			default:
				if now := time.Now(); since.IsZero() {
					since = now
				} else if until.After(since) {
					since = until
				}
				if !w.run.waits && time.Since(since) > mastersPatience {
					w.giveUp(errNoMajority)
					return
				}
				if now := absence(status); now != missing {
					missing = now
					w.tellMasters(status, until, since)
				}
			}
			if person && missing == "" {
				person = false
				w.tellHolder(ctx)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// connects reports whether the first connections to the masters are still being made, which takes too little time for a message.
func (w *awaiting) connects(status redlock.Status) bool {
	hopeful := 0
	for _, m := range status.Masters {
		if m.State == redlock.MasterConnecting || m.State == redlock.MasterAvailable {
			hopeful++
		}
	}
	return !status.Ready() && hopeful >= status.Quorum && time.Since(w.began) < time.Second
}

// tellMasters says that too few masters have a vote, and until when, if that is known. since is when the command began to be patient with them.
func (w *awaiting) tellMasters(status redlock.Status, until, since time.Time) {
	if !until.IsZero() && (w.end.IsZero() || until.Before(w.end)) {
		tell("waiting for masters that may have forgotten locks, because they have just started or are new: they have no vote before %s, for another %v; %s",
			until.Format(time.TimeOnly), max(0, time.Until(until)).Round(time.Second), guardOff)
		return
	}
	end := w.end
	if !w.run.waits && (end.IsZero() || since.Add(mastersPatience).Before(end)) {
		end = since.Add(mastersPatience)
	}
	tell("waiting for masters, and giving up at %s with exit code %d: %s", end.Format(time.TimeOnly), codeNoQuorum, absent(status))
}

func (w *awaiting) tellHolder(ctx context.Context) {
	c := w.run
	text := fmt.Sprintf("waiting for the lock on %s", c.key)
	if c.most > 1 {
		text = fmt.Sprintf("waiting for one of the %d slots of %s", c.most, c.key)
	} else if holder, fence := w.door.inspect(ctx); holder != "" {
		text += fmt.Sprintf(", which %s holds", holder)
		if fence != 0 { // the masters forget it for a moment between renewals
			text += fmt.Sprintf(" (fence %d)", fence)
		}
	}
	if ctx.Err() == nil {
		tell("%s", text)
	}
}

// absent says which masters have no vote, and why, or why none counts.
func absent(status redlock.Status) string {
	if status.Err != nil {
		return status.Err.Error()
	}
	var each []string
	for _, m := range status.Masters {
		if m.State != redlock.MasterAvailable {
			each = append(each, fmt.Sprintf("%s: %v", m.Name, cmp.Or(m.Err, errors.New(string(m.State)))))
		}
	}
	return fmt.Sprintf("%d of %d have a vote, and %d are needed: %s", status.Available, len(status.Masters), status.Quorum, strings.Join(each, "; "))
}

// absence returns a text that differs if other masters lack a vote, or if one lacks it for another reason. Masters that don't
// answer have one reason, because their states change often.
func absence(status redlock.Status) string {
	each := []string{fmt.Sprint(status.Err)}
	for _, m := range status.Masters {
		switch m.State {
		case redlock.MasterAvailable:
		case redlock.MasterConnecting, redlock.MasterUnreachable, redlock.MasterHung:
			each = append(each, m.Name)
		default:
			each = append(each, m.Name+" "+string(m.State))
		}
	}
	return strings.Join(each, " ")
}

// quorumAt returns the time at which enough of the masters that have just started will have a vote for a quorum. It is zero if they are
// too few, or if there is a quorum already.
func quorumAt(status redlock.Status) time.Time {
	var restarted []time.Time
	for _, m := range status.Masters {
		if m.State == redlock.MasterRestarted {
			restarted = append(restarted, m.Until)
		}
	}
	missing := status.Quorum - status.Available
	if missing <= 0 || missing > len(restarted) {
		return time.Time{}
	}
	slices.SortFunc(restarted, time.Time.Compare)
	return restarted[missing-1]
}

package redlock

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// electorate decides which servers vote. The masters of a Locker must be independent: one server
// under two names would vote twice, and a replica repeats what its master says.
type electorate struct {
	options
	masters []Master

	mu      sync.Mutex
	servers map[string]int // by run id, the master that reached the server first
}

// admit says whether the server that a master has just reached may vote.
func (e *electorate) admit(master int, s server) error {
	name := e.masters[master].String()
	if s.role != "" && s.role != "master" {
		return noVoteError(name + " is a replica; name its master or an independent server instead")
	}
	if e.guard > 0 && s.uptime < 0 {
		return noVoteError(name + " does not tell since when it runs, so it may have forgotten locks in a restart; allow this user the command INFO, or turn the restart guard off")
	}
	if s.uptime < e.guard {
		return &guardError{until: time.Now().Add(e.guard - s.uptime)}
	}
	if s.runID == "" {
		e.logger.Warn("master does not tell its run id: one server under two names would vote twice, and can't be found out; allow this user the command INFO", "master", name)
		return nil
	}
	e.mu.Lock()
	first, seen := e.servers[s.runID]
	if !seen {
		e.servers[s.runID] = master
	}
	e.mu.Unlock()
	if seen && first != master {
		return noVoteError(fmt.Sprintf("%s is the same server as %s; name each server once", name, e.masters[first]))
	}
	if s.maxmemoryPolicy != "" && s.maxmemoryPolicy != "noeviction" {
		e.logger.Warn("master may evict locks before their time: set maxmemory-policy to noeviction", "master", name, "maxmemory-policy", s.maxmemoryPolicy)
	}
	return nil
}

// errNoVote marks the refusal of a server that may not vote.
var errNoVote = errors.New("it has no vote")

// guardError says that a server runs for less than the restart guard.
type guardError struct{ until time.Time }

func (e *guardError) Error() string {
	return fmt.Sprintf("%v: no vote for another %v", ErrRestarted, time.Until(e.until).Round(time.Second))
}

// Is makes errors.Is find ErrRestarted; see noVoteError.
func (e *guardError) Is(target error) bool { return target == ErrRestarted }

// noVoteError is that refusal. It wraps nothing: of what fails while it connects, go-redis hands on
// the wrapped error alone, and the reason would be lost.
type noVoteError string

func (e noVoteError) Error() string { return errNoVote.Error() + ": " + string(e) }

// Is makes errors.Is find errNoVote.
func (e noVoteError) Is(target error) bool { return target == errNoVote }

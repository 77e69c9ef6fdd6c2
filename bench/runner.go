package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	faultHung   = "hung"
	faultKilled = "killed"
)

// sample is what one contestant did in one round.
type sample struct {
	outcome
	ServerCPU time.Duration
	Commands  int     // that its clients sent to all masters
	Healthy   *sample // the same before the fault, where there is one
}

func (s sample) turns() (n int) {
	for _, t := range s.Turns {
		n += t
	}
	return n
}

// result is all that is known of a contestant in a cell.
type result struct {
	name     string
	samples  []sample // by round
	keysLeft int      // one second after the last turn
}

// entrant is a contestant with its servers and processes. It has servers of its own, so that their
// CPU time and statistics are its own.
type entrant struct {
	kind      contestantKind
	servers   []*server
	processes []*process
}

func (c cell) enter(name, profile string) (*entrant, error) {
	e := &entrant{kind: kindOf(name)}
	var err error
	if e.servers, err = startServers(c.masters); err != nil {
		return e, err
	}
	for range c.processes {
		p, err := startProcess(name, addrs(e.servers), profile)
		if err != nil {
			return e, err
		}
		e.processes = append(e.processes, p)
	}
	warmUp := c.load
	warmUp.Key, warmUp.Time = "", min(c.load.Time, 100*time.Millisecond)
	_, err = e.measure(warmUp)
	return e, err
}

func (e *entrant) leave() error {
	var errs []error
	for _, p := range e.processes {
		errs = append(errs, p.stop())
	}
	stopServers(e.servers)
	return errors.Join(errs...)
}

// run measures the contestants in turn, a slice each, round after round. Every other round goes
// the other way, so that nobody always follows the same one.
func (c cell) run(profile string) (results []result, err error) {
	entrants := make([]*entrant, 0, len(c.contestants))
	defer func() {
		for _, e := range entrants {
			err = errors.Join(err, e.leave())
		}
	}()
	for _, name := range c.contestants {
		e, err := c.enter(name, profile)
		entrants = append(entrants, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, result{name: name})
	}
	order := make([]int, len(entrants))
	for i := range order {
		order[i] = i
	}
	for range c.rounds {
		for _, i := range order {
			s, err := c.round(entrants[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", results[i].name, err)
			}
			results[i].samples = append(results[i].samples, s)
		}
		slices.Reverse(order)
	}
	time.Sleep(time.Second)
	for i, e := range entrants {
		if results[i].keysLeft, err = keysLeft(e.servers); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (c cell) round(e *entrant) (sample, error) {
	if c.fault == "" {
		return e.measure(c.load)
	}
	healthy, err := e.measure(c.load)
	if err != nil {
		return healthy, err
	}
	s, err := e.suffer(c.fault, c.load)
	s.Healthy = &healthy
	return s, err
}

// suffer measures with one master that is down, and mends it. The others' CPU time and commands are
// not looked at: those of a master that is down can't be read.
func (e *entrant) suffer(fault string, load slice) (sample, error) {
	victim := e.servers[len(e.servers)-1]
	if fault == faultHung {
		if err := victim.pause(); err != nil {
			return sample{}, err
		}
	} else {
		victim.kill()
	}
	s, err := e.put(load)
	if fault == faultHung {
		err = errors.Join(err, victim.resume())
	} else {
		err = errors.Join(err, victim.launch())
	}
	time.Sleep(500 * time.Millisecond) // they find each other again
	return s, err
}

// measure puts the load on the contestant, and reads what its servers did.
func (e *entrant) measure(load slice) (sample, error) {
	before, err := read(e.servers, e.kind.sends)
	if err != nil {
		return sample{}, err
	}
	s, err := e.put(load)
	if err != nil {
		return s, err
	}
	after, err := read(e.servers, e.kind.sends)
	s.ServerCPU, s.Commands = after.cpu-before.cpu, after.commands-before.commands
	return s, err
}

// put has all processes put the load on the contestant at once, and adds up what they did.
func (e *entrant) put(load slice) (sample, error) {
	outcomes, errs := make([]outcome, len(e.processes)), make([]error, len(e.processes))
	done := make(chan struct{})
	for i, p := range e.processes {
		go func() {
			outcomes[i], errs[i] = p.put(load)
			done <- struct{}{}
		}()
	}
	for range e.processes {
		<-done
	}
	s := sample{outcome: outcomes[0]}
	for _, o := range outcomes[1:] {
		s.Turns = append(s.Turns, o.Turns...)
		s.Elapsed = max(s.Elapsed, o.Elapsed)
		s.CPU += o.CPU
		s.Mallocs += o.Mallocs
		s.LongestWait = max(s.LongestWait, o.LongestWait)
		s.Pending += o.Pending
		s.Errors += o.Errors
		s.Overlaps += o.Overlaps
	}
	return s, errors.Join(errs...)
}

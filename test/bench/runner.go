package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	faultHung   = "hung"
	faultKilled = "killed"

	faultProcess = "process killed" // not a master
)

// sample is what one contestant did in one round.
type sample struct {
	outcome
	ServerCPU time.Duration
	Commands  int           // that its clients sent to all masters
	Healthy   *sample       // the same before the fault, where there is one
	Trip      time.Duration // to the masters, of a PING, where there is a distance
	HandOffs  latencies     // from an unlock's beginning until the next caller has the lock
	Most      int           // that held the key at the same time
	AtEnd     float64       // that held it on average, in the last quarter of the time
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
	line      *delayLine // nil where clients and masters are side by side
}

// enter starts its servers and processes, and warms them up.
func (e *entrant) enter(c cell, profile string) (err error) {
	if e.servers, err = startServers(c.masters); err != nil {
		return err
	}
	if c.trip > 0 {
		if e.line, err = startLine(c.trip, addrs(e.servers)); err != nil {
			return err
		}
	}
	if err := e.start(c, profile); err != nil {
		return err
	}
	warmUp := c.load
	warmUp.Key, warmUp.Held, warmUp.Time = "", 0, 100*time.Millisecond
	if _, err = e.measure(warmUp); err != nil {
		err = fmt.Errorf("%s: %w", e.kind.name, err)
	}
	return err
}

// start starts its processes.
func (e *entrant) start(c cell, profile string) error {
	to := addrs(e.servers)
	if e.line != nil {
		to = e.line.addrs
	}
	for range c.processes {
		p, err := startProcess(e.kind.name, to, "-profile", profile, "-at-once", strconv.Itoa(max(c.load.AtOnce, atOnce)))
		if err != nil {
			return err
		}
		e.processes = append(e.processes, p)
	}
	return nil
}

func (e *entrant) leave() error {
	var errs []error
	for _, p := range e.processes {
		errs = append(errs, p.stop())
	}
	if e.line != nil {
		errs = append(errs, e.line.stop())
	}
	stopServers(e.servers)
	return errors.Join(errs...)
}

// run measures the contestants in turn, a slice each, round after round. Every other round goes
// the other way, so that nobody always follows the same one.
func (c cell) run(profile string) (results []result, err error) {
	entrants := make([]*entrant, len(c.contestants))
	results = make([]result, len(entrants))
	order := make([]int, len(entrants))
	for i, name := range c.contestants {
		entrants[i] = &entrant{kind: kindOf(name)}
		results[i].name = name
		order[i] = i
	}
	each := func(do func(i int) error) error { return inOrder(order, true, do) }
	defer func() { err = errors.Join(err, each(func(i int) error { return entrants[i].leave() })) }()
	if err := each(func(i int) error { return entrants[i].enter(c, profile) }); err != nil {
		return nil, err
	}
	for range c.rounds {
		err := inOrder(order, c.together, func(i int) error {
			s, err := c.round(entrants[i])
			results[i].samples = append(results[i].samples, s)
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.Reverse(order)
	}
	time.Sleep(time.Second)
	err = each(func(i int) (err error) {
		results[i].keysLeft, err = keysLeft(entrants[i].servers)
		return err
	})
	return results, err
}

// inOrder does something for each, one after the other or all together.
func inOrder(order []int, together bool, do func(i int) error) error {
	errs := make([]error, len(order))
	var all sync.WaitGroup
	for at, i := range order {
		all.Go(func() { errs[at] = do(i) })
		if !together {
			all.Wait()
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c cell) round(e *entrant) (sample, error) {
	if e.line != nil {
		trip, err := e.line.trip()
		if err != nil {
			return sample{}, err
		}
		s, err := e.measure(c.load)
		s.Trip = trip
		return s, err
	}
	switch c.fault {
	case "":
		return e.measure(c.load)
	case faultProcess:
		return e.killOne(c.load)
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
		s.Errors += o.Errors
		s.FirstError = cmp.Or(s.FirstError, o.FirstError)
		s.Overlaps += o.Overlaps
	}
	turns := holdsOf(outcomes)
	s.HandOffs, s.Holds = handOffs(turns), nil
	s.Most, s.AtEnd = holders(turns)
	return s, errors.Join(errs...)
}

// holdsOf are the turns of all processes, in their order.
func holdsOf(outcomes []outcome) (turns []hold) {
	for _, o := range outcomes {
		turns = append(turns, o.Holds...)
	}
	slices.SortFunc(turns, func(a, b hold) int { return cmp.Compare(a.Locked, b.Locked) })
	return turns
}

// handOffs are the times from the beginning of an unlock until the next caller has the lock, in whatever process.
func handOffs(turns []hold) latencies {
	var took []time.Duration
	for i := 1; i < len(turns); i++ {
		took = append(took, time.Duration(turns[i].Locked-turns[i-1].Freeing))
	}
	return newLatencies(took)
}

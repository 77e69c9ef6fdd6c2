package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// slice is a piece of load that a process puts on its contestant.
type slice struct {
	Callers int
	Key     string        // that all callers lock; each has its own keys where it is empty
	Hold    time.Duration // of each lock
	Time    time.Duration // for which callers begin turns
	Log     bool          // tell when each lock was had and given back
	AtOnce  int           // how many may hold the key; 0 is 1
	Keys    int           // the callers share so many keys, beginning with Key; 0 is 1
	Held    int           // further keys that the process holds all the time
}

// outcome is what a slice did.
type outcome struct {
	Turns        []int // of each caller
	Elapsed      time.Duration
	CPU          time.Duration // of the process
	Mallocs      uint64
	Lock, Unlock latencies
	LongestWait  time.Duration // also of those that were still waiting at the end
	Errors       int
	FirstError   string
	Overlaps     int // locks that were granted while others had the same key, and no more may
	Holds        []hold
}

type latencies struct{ P50, P99, Max time.Duration }

// hold is when a lock was had, and when its unlock began, on the clock of the machine: in nanoseconds.
type hold struct{ Locked, Freeing int64 }

// keysOfCaller is how many keys each caller goes round.
const keysOfCaller = 128

// maxFree is how long a caller waits for a key that nobody else wants, before it counts as failed.
const maxFree = 12 * time.Second

// caller is one goroutine's part, without sharing memory with the others while it runs.
type caller struct {
	keys         []string
	turns        int
	lock, unlock []time.Duration
	longest      time.Duration
	errors       int
	firstError   string
	last         hold
	holds        []hold
}

func newCallers(s slice) []*caller {
	callers := make([]*caller, s.Callers)
	for i := range callers {
		c := &caller{lock: make([]time.Duration, 0, 1<<14), unlock: make([]time.Duration, 0, 1<<14)}
		switch {
		case s.Keys > 1:
			c.keys = []string{fmt.Sprint(s.Key, " ", i%s.Keys)}
		case s.Key != "":
			c.keys = []string{s.Key}
		default:
			for k := range keysOfCaller {
				c.keys = append(c.keys, fmt.Sprintf("bench:%d:%d", i, k))
			}
		}
		callers[i] = c
	}
	return callers
}

// put puts the slice on the contestant.
func (s slice) put(on Contestant) outcome {
	callers := newCallers(s)
	var holders, overlaps atomic.Int32
	section := func() {
		if s.Key == "" {
			return
		}
		if s.Keys > 1 {
			time.Sleep(s.Hold)
			return
		}
		if holders.Add(1) > int32(max(s.AtOnce, 1)) {
			overlaps.Add(1)
		}
		if s.Hold > 0 {
			time.Sleep(s.Hold)
		}
		holders.Add(-1)
	}
	held := s.hold(on)
	runtime.GC()
	cpu, mallocs := usage()
	start := time.Now()
	limit := start.Add(s.Time)
	if s.Key == "" {
		limit = start.Add(s.Time + maxFree)
	}
	var all sync.WaitGroup
	for _, c := range callers {
		all.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), limit) // its own, as a request has
			defer cancel()
			for {
				c.turn(ctx, on.Lock, section)
				if s.Log && c.turns > len(c.holds) {
					c.holds = append(c.holds, c.last)
				}
				if ctx.Err() != nil || time.Since(start) >= s.Time {
					return
				}
			}
		})
	}
	all.Wait()
	o := outcome{Elapsed: time.Since(start)}
	if s.Key != "" {
		o.Elapsed = max(s.Time, o.Elapsed)
	}
	cpuAfter, mallocsAfter := usage()
	o.CPU, o.Mallocs = cpuAfter-cpu, mallocsAfter-mallocs
	o.Overlaps = int(overlaps.Load())
	o.gather(callers)
	held(&o)
	return o
}

// hold takes the keys that are held meanwhile, and returns what gives them back, and counts those that were lost.
func (s slice) hold(on Contestant) (release func(*outcome)) {
	const together = 64
	unlocks, errs := make([]func() error, s.Held), make([]error, s.Held)
	each := func(do func(i int)) {
		var all sync.WaitGroup
		for part := range together {
			all.Go(func() {
				for i := part; i < s.Held; i += together {
					do(i)
				}
			})
		}
		all.Wait()
	}
	each(func(i int) { unlocks[i], errs[i] = on.Lock(context.Background(), fmt.Sprint("bench:held:", i)) })
	return func(o *outcome) {
		each(func(i int) {
			if errs[i] == nil {
				errs[i] = unlocks[i]()
			}
		})
		for _, err := range errs {
			if err != nil {
				o.Errors++
				o.FirstError = cmp.Or(o.FirstError, err.Error())
			}
		}
	}
}

func (c *caller) turn(ctx context.Context, lock lockFunc, section func()) {
	begin := time.Now()
	unlock, err := lock(ctx, c.keys[c.turns%len(c.keys)])
	locked := time.Now()
	c.longest = max(c.longest, locked.Sub(begin))
	if err != nil {
		if ctx.Err() == nil || len(c.keys) > 1 {
			c.fail(err)
		}
		return
	}
	c.lock = append(c.lock, locked.Sub(begin))
	c.turns++
	section()
	freeing := time.Now()
	c.last = hold{locked.UnixNano(), freeing.UnixNano()}
	err = unlock()
	c.unlock = append(c.unlock, time.Since(freeing))
	if err != nil {
		c.fail(err)
	}
}

func (c *caller) fail(err error) {
	c.errors++
	if c.firstError == "" {
		c.firstError = err.Error()
	}
}

func (o *outcome) gather(callers []*caller) {
	var lock, unlock []time.Duration
	for _, c := range callers {
		o.Turns = append(o.Turns, c.turns)
		lock, unlock = append(lock, c.lock...), append(unlock, c.unlock...)
		o.LongestWait = max(o.LongestWait, c.longest)
		o.Errors += c.errors
		o.Holds = append(o.Holds, c.holds...)
		o.FirstError = cmp.Or(o.FirstError, c.firstError)
	}
	o.Lock, o.Unlock = newLatencies(lock), newLatencies(unlock)
}

func newLatencies(d []time.Duration) latencies {
	if len(d) == 0 {
		return latencies{}
	}
	slices.Sort(d)
	return latencies{P50: d[len(d)/2], P99: d[len(d)*99/100], Max: d[len(d)-1]}
}

// usage is the CPU time of this process so far, user and system, and its allocations.
func usage() (time.Duration, uint64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), m.Mallocs
}

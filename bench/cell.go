package main

import (
	"fmt"
	"slices"
	"time"
)

// cell is one situation, in which all its contestants are measured in turn.
type cell struct {
	group       string // the table it belongs to
	name        string
	masters     int
	processes   int
	rounds      int
	load        slice
	fault       string // what happens to one master: "", hung or killed
	contestants []string
	together    bool // they don't wait for each other: faster, and where CPU time is short the figures mean nothing
	network     network
	fresh       bool // each round has a new process, and measures its first locks
}

const (
	groupFree      = "Uncontended"
	groupContended = "Contended, one process"
	groupProcesses = "Contended, two processes"
	groupBurst     = "Burst"
	groupFaults    = "One master hung or killed"
)

var (
	waiting  = []string{nameOwn, nameRedsync, nameRedsync10, nameRueidis, nameRueLock}
	measured = []string{nameOwn, nameRedsync, nameRedsyncFast, nameRueidis, nameRueidisFast, nameRueLock, nameGoRedis, nameRaw}
)

const oneKey = "bench-one"

func cells(quick bool) []cell {
	list := slices.Concat(freeCells(), contendedCells(), burstCells(), processCells(), faultCells())
	if !quick {
		return list
	}
	return quickly(list)
}

func freeCells() []cell {
	var list []cell
	for _, masters := range []int{1, 3, 5} {
		for _, callers := range []int{1, 16, 64, 256} {
			c := cell{
				group: groupFree, name: fmt.Sprintf("N = %d, %s", masters, count(callers, "caller")),
				masters: masters, processes: 1, rounds: 7,
				load:        slice{Callers: callers, Time: 250 * time.Millisecond},
				contestants: measured,
			}
			if masters == 1 {
				c.contestants = slices.Insert(slices.Clone(measured), 6, nameBsm)
			}
			list = append(list, c)
		}
	}
	return list
}

func contendedCells() []cell {
	var list []cell
	for _, masters := range []int{1, 3} {
		for _, callers := range []int{8, 32, 128} {
			for _, hold := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
				if masters == 1 && (callers != 32 || hold != time.Millisecond) {
					continue // one cell is for bsm/redislock, which knows one master only
				}
				c := cell{
					group: groupContended, name: fmt.Sprintf("N = %d, %d waiters, %v", masters, callers, hold),
					masters: masters, processes: 1, rounds: 3,
					load:        slice{Callers: callers, Key: oneKey, Hold: hold, Time: window(callers, hold)},
					contestants: append(slices.Clone(waiting), nameFIFO),
				}
				if masters == 1 {
					c.contestants = slices.Insert(c.contestants, len(waiting), nameBsm)
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// window is long enough for about six turns of each caller that waits in a perfect queue: in less,
// nobody's share could be told.
func window(callers int, hold time.Duration) time.Duration {
	return max(time.Second, time.Duration(callers)*(hold+time.Millisecond)*6)
}

func burstCells() []cell {
	burst := func(callers int, hold time.Duration, masters, rounds int) cell {
		return cell{
			group: groupBurst, name: fmt.Sprintf("N = %d, %d at once, %v each", masters, callers, hold),
			masters: masters, processes: 1, rounds: rounds,
			load:        slice{Callers: callers, Key: oneKey, Hold: hold, Limit: 10 * time.Second},
			contestants: append(slices.Clone(waiting), nameFIFO),
		}
	}
	return []cell{burst(32, 0, 3, 7), burst(100, 5*time.Millisecond, 3, 3)}
}

func processCells() []cell {
	var list []cell
	for _, hold := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		list = append(list, cell{
			group: groupProcesses, name: fmt.Sprintf("N = 3, 2 × 16 waiters, %v", hold),
			masters: 3, processes: 2, rounds: 3,
			load:        slice{Callers: 16, Key: oneKey, Hold: hold, Time: 2 * time.Second},
			contestants: waiting,
		})
	}
	return list
}

func faultCells() []cell {
	var list []cell
	for _, fault := range []string{faultHung, faultKilled} {
		list = append(list, cell{
			group: groupFaults, name: "N = 3, 8 callers, one " + fault,
			masters: 3, processes: 1, rounds: 2, fault: fault,
			load:        slice{Callers: 8, Time: time.Second},
			contestants: []string{nameOwn, nameRedsync, nameRedsync50, nameRueidis, nameRueLock},
		})
	}
	return list
}

// quickly is a smoke run: every contestant in every group, a few cells of each, one round.
func quickly(list []cell) []cell {
	var short []cell
	for _, c := range list {
		typical := c.load.Callers == 32 || c.group == groupFree && c.load.Callers == 16 || c.group == groupProcesses
		if c.load.Hold > time.Millisecond || !typical && c.group != groupFaults {
			continue
		}
		c.rounds, c.together = 1, true
		c.load.Time = min(c.load.Time, 100*time.Millisecond)
		c.load.Limit = min(c.load.Limit, time.Second)
		short = append(short, c)
	}
	return short
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

package main

import (
	"fmt"
	"slices"
	"time"
)

// cell is one situation, in which all its contestants are measured in turn.
type cell struct {
	group       string // the tables it belongs to
	name        string
	masters     int
	processes   int
	rounds      int
	load        slice
	fault       string        // what happens to one master: "", hung or killed; or a process is killed
	trip        time.Duration // the round trip to each master; 0: they are on this machine
	contestants []string
	together    bool // they don't wait for each other: faster, and where CPU time is short the figures mean nothing
}

const (
	groupFree      = "Uncontended"
	groupContended = "Contended"
	groupFaults    = "One master hung or killed"
	groupDistance  = "Distance"
	groupAtOnce    = "N at once"
	groupSlots     = "Slots in use"
	groupKeys      = "Many contended keys"
	groupHeld      = "Many held locks"
	groupHTTP      = "HTTP"
)

const oneKey = "bench-one"

func cells(quick bool) []cell {
	list := slices.Concat(freeCells(), contendedCells(), faultCells(), distanceCells(), atOnceCells(), slotCells(), keyCells(), heldCells())
	if !quick {
		return list
	}
	return quickly(list)
}

func freeCells() []cell {
	var list []cell
	for _, masters := range []int{1, 3, 5} {
		for _, callers := range []int{1, 16, 64, 256} {
			list = append(list, cell{
				group: groupFree, name: fmt.Sprintf("N = %d, %s", masters, count(callers, "caller")),
				masters: masters, processes: 1, rounds: 7,
				load:        slice{Callers: callers, Time: 250 * time.Millisecond},
				contestants: []string{nameOwn, nameRueidis, nameRedsync, nameRaw},
			})
		}
	}
	return list
}

func contendedCells() []cell {
	var list []cell
	for _, at := range []struct {
		processes, callers int
		hold               time.Duration
	}{{1, 8, 0}, {1, 32, 0}, {1, 32, 5 * time.Millisecond}, {1, 128, 0}, {2, 16, 0}, {2, 16, 5 * time.Millisecond}} {
		list = append(list, cell{
			group: groupContended, name: fmt.Sprintf("%s × %d waiters, %v", count(at.processes, "process"), at.callers, at.hold),
			masters: 3, processes: at.processes, rounds: 3,
			load:        slice{Callers: at.callers, Key: oneKey, Hold: at.hold, Time: window(at.processes*at.callers, at.hold), Log: true},
			contestants: []string{nameOwn, nameRueidis, nameRedsync, nameRedsync10},
		})
	}
	return list
}

// window is long enough for about six turns of each caller that waits in a perfect queue: in less,
// nobody's share could be told.
func window(callers int, hold time.Duration) time.Duration {
	return max(time.Second, time.Duration(callers)*(hold+time.Millisecond)*6)
}

func faultCells() []cell {
	var list []cell
	for _, fault := range []string{faultHung, faultKilled} {
		list = append(list, cell{
			group: groupFaults, name: "8 callers, one " + fault,
			masters: 3, processes: 1, rounds: 2, fault: fault,
			load:        slice{Callers: 8, Time: time.Second},
			contestants: []string{nameOwn, nameRueidis, nameRedsync, nameRedsync50},
		})
	}
	return list
}

func distanceCells() []cell {
	var list []cell
	for _, trip := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		for _, callers := range []int{1, 16, 64} {
			list = append(list, cell{
				group: groupDistance, name: fmt.Sprintf("%v, %s", trip, count(callers, "caller")),
				masters: 3, processes: 1, rounds: 3, trip: trip,
				load:        slice{Callers: callers, Time: max(250*time.Millisecond, 10*trip)},
				contestants: []string{nameOwn, nameRueidis, nameRedsync, nameRaw},
			})
		}
	}
	return list
}

// atOnceCells has the floor only where there is one process, beside which it knows no other.
func atOnceCells() []cell {
	all := []string{nameSlots, nameSlotsOf1, nameSortedSet, nameCounter, nameSemaphore}
	var list []cell
	for _, at := range []struct {
		processes, callers int
		hold               time.Duration
	}{{1, 16, time.Millisecond}, {1, 32, 5 * time.Millisecond}, {2, 16, 5 * time.Millisecond}} {
		list = append(list, cell{
			group: groupAtOnce, name: fmt.Sprintf("%s × %d callers, %v", count(at.processes, "process"), at.callers, at.hold),
			masters: 3, processes: at.processes, rounds: 3,
			load:        slice{Callers: at.callers, Key: oneKey, Hold: at.hold, Time: time.Second, Log: true, AtOnce: atOnce},
			contestants: all[:len(all)+1-at.processes],
		})
	}
	return append(list, cell{
		group: groupAtOnce, name: "2 processes × 8 callers, 5ms, one killed",
		masters: 3, processes: 2, rounds: 1, fault: faultProcess,
		load:        slice{Callers: 8, Key: oneKey, Hold: 5 * time.Millisecond, Time: 16 * time.Second, Log: true, AtOnce: atOnce},
		contestants: all[:len(all)-1],
	})
}

// slotCells have twice as many callers as may hold the key.
func slotCells() []cell {
	var list []cell
	for _, n := range []int{4, 16, 64, 256} {
		list = append(list, cell{
			group: groupSlots, name: fmt.Sprintf("%d slots", n),
			masters: 3, processes: 2, rounds: 2,
			load:        slice{Callers: n, Key: oneKey, Hold: 100 * time.Millisecond, Time: 4 * time.Second, Log: true, AtOnce: n},
			contestants: []string{nameSlots, nameSortedSet, nameCounter},
		})
	}
	return list
}

func keyCells() []cell {
	var list []cell
	for _, processes := range []int{1, 2, 4, 8} {
		list = append(list, cell{
			group: groupKeys, name: count(processes, "process"),
			masters: 3, processes: processes, rounds: 2,
			load:        slice{Callers: 2000, Key: oneKey, Keys: 500, Time: 3 * time.Second},
			contestants: []string{nameOwn, nameRueidis},
		})
	}
	return list
}

// heldCells have no peer: the others leave it to the caller to renew.
func heldCells() []cell {
	var list []cell
	for _, held := range []int{1_000, 10_000, 30_000, 100_000} {
		list = append(list, cell{
			group: groupHeld, name: fmt.Sprintf("%d held", held),
			masters: 3, processes: 1, rounds: 1,
			load:        slice{Callers: 4, Held: held, Time: 8 * time.Second},
			contestants: []string{nameOwn},
		})
	}
	return list
}

// quickly is a smoke run: every contestant in every group, a few cells of each, one round.
func quickly(list []cell) []cell {
	var short []cell
	for _, c := range list {
		if c.load.Hold > time.Millisecond && c.fault == "" || c.load.Callers > 16 || c.load.Callers == 1 {
			continue
		}
		c.rounds, c.together = 1, true
		c.load.Time, c.load.Held = min(c.load.Time, 100*time.Millisecond), min(c.load.Held, 100)
		short = append(short, c)
	}
	return short
}

func count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case what == "process":
		return fmt.Sprintf("%d processes", n)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

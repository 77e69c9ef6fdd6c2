package main

import (
	"fmt"
	"slices"
	"time"
)

const (
	groupDistance = "Distance"
	groupHandOff  = "Waiting and hand-off"
	groupFar      = "A far master among near ones"
	groupFirst    = "The first lock of a process"
	groupLoss     = "Loss"
	groupStalls   = "Stalls"
)

const ms = time.Millisecond

var (
	trips    = []time.Duration{ms / 2, 5 * ms, 20 * ms, 60 * ms, 150 * ms}
	distant  = []string{nameOwn, nameRedsync, nameRedsyncFast, nameRueidis, nameRueidisFast, nameRaw}
	handOver = []string{nameOwn, nameRedsync, nameRedsync10, nameRueidis, nameRueLock}
)

func netCells(quick bool) []cell {
	list := slices.Concat(distanceCells(), handOffCells(), farCells(), firstCells(), lossCells(), stallCells())
	if !quick {
		return list
	}
	var short []cell
	for _, c := range list {
		if c.network.Trips[0] != 5*ms || c.masters != 3 || c.load.Callers > 16 {
			continue
		}
		c.rounds, c.together = 1, true
		c.load.Time = min(c.load.Time, 200*ms)
		short = append(short, c)
	}
	return short
}

// distanceCell has callers with keys of their own.
func distanceCell(group, name string, n network, callers int) cell {
	c := cell{
		group: group, name: fmt.Sprintf("%s, %s", name, count(callers, "caller")),
		masters: len(n.Trips), processes: 1, rounds: 3, network: n,
		load:        slice{Callers: callers, Time: max(250*ms, 10*n.near())},
		contestants: distant,
	}
	c.together = waits(callers, n.near())
	return c
}

// waits reports whether the contestants have so little to do beside waiting that they can do it all at
// once without being in each other's way: at most 500 locks a second each.
func waits(callers int, trip time.Duration) bool {
	return float64(callers)/(2*trip.Seconds()) <= 500
}

func nameOf(n network) string { return fmt.Sprintf("N = %d, %v", len(n.Trips), n.near()) }

func distanceCells() []cell {
	var list []cell
	for _, masters := range []int{1, 3, 5} {
		for _, trip := range trips {
			for _, callers := range []int{1, 16, 64, 256} {
				n := evenly(masters, trip)
				list = append(list, distanceCell(groupDistance, nameOf(n), n, callers))
			}
		}
	}
	return list
}

func handOffCells() []cell {
	var list []cell
	for _, trip := range trips {
		for _, waiters := range []struct{ processes, callers int }{{1, 16}, {2, 1}, {2, 8}} {
			n := evenly(3, trip)
			c := cell{
				group: groupHandOff, name: fmt.Sprintf("%s, %d × %s", nameOf(n), waiters.processes, count(waiters.callers, "waiter")),
				masters: 3, processes: waiters.processes, rounds: 2, network: n,
				load:        slice{Callers: waiters.callers, Key: oneKey, Time: max(time.Second, 30*trip), Log: true},
				contestants: handOver, together: waits(1, trip),
			}
			if waiters.processes == 1 {
				c.contestants = append(slices.Clone(handOver), nameFIFO)
			}
			list = append(list, c)
		}
	}
	return list
}

func farCells() []cell {
	var list []cell
	for _, near := range []time.Duration{ms / 2, 5 * ms} {
		for _, callers := range []int{1, 16, 64} {
			n := evenly(3, near)
			n.Trips[2] = 60 * ms
			list = append(list, distanceCell(groupFar, nameOf(n)+" and one 60ms", n, callers))
		}
	}
	return list
}

// firstCells have 4 callers, each of which asks once for a key of its own, and gives it back.
func firstCells() []cell {
	var list []cell
	for _, trip := range []time.Duration{5 * ms, 20 * ms, 60 * ms, 80 * ms, 100 * ms, 150 * ms, 250 * ms} {
		n := evenly(3, trip)
		c := cell{
			group: groupFirst, name: nameOf(n), masters: 3, processes: 1, rounds: 10, network: n,
			load: slice{Callers: 4, Try: true}, fresh: true, together: true,
			contestants: []string{nameOwn, nameRedsync, nameRueidis},
		}
		if trip > 80*ms {
			c.contestants = slices.Insert(slices.Clone(c.contestants), 1, nameOwnFar)
		}
		list = append(list, c)
	}
	return list
}

func lossCells() []cell {
	var list []cell
	for _, masters := range []int{1, 3} {
		for _, trip := range []time.Duration{5 * ms, 20 * ms, 60 * ms} {
			n := evenly(masters, trip)
			n.Loss = 0.01
			list = append(list, longer(distanceCell(groupLoss, nameOf(n), n, 16)))
		}
	}
	return list
}

func stallCells() []cell {
	var list []cell
	for _, stuck := range []int{1, 3} {
		n := evenly(3, 5*ms)
		n.Stall, n.Every, n.Stuck = 300*ms, time.Second, stuck
		list = append(list, longer(distanceCell(groupStalls, fmt.Sprintf("%s, %s of 3", nameOf(n), count(stuck, "master")), n, 16)))
	}
	return list
}

// longer lets a cell meet what is rare.
func longer(c cell) cell {
	c.load.Time, c.together = 4*time.Second, waits(c.load.Callers/4, c.network.near())
	return c
}

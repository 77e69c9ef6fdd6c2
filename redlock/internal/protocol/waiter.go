package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// A token begins with RandomLen random characters, and the name of a process in the queues ends with as many. The first IDLen of them are the
// process's ID.
const (
	IDLen     = 8
	RandomLen = 26
)

// MaxWaiters bounds how many waiters a master reports.
const MaxWaiters = 100

// Waiter is the place of a process in the queue of a key, as OpInspect reports it.
type Waiter struct {
	Process string // the random end of the process's name, which begins with the process's ID
	Ticket  int64
}

func (w Waiter) Line() string {
	process, _ := CallOf(w.Process)
	return fmt.Sprintf("%d %s", w.Ticket, process[max(0, len(process)-RandomLen):])
}

func ParseWaiter(line string) (w Waiter, ok bool) {
	ticket, process, ok := strings.Cut(line, " ")
	number, valid := ParseNumber(ticket, MaxTime.Microseconds())
	return Waiter{process, number}, ok && valid
}

const MaxSlots = 256

const slotInfix = ":slot:"

// SlotKey returns the key of a slot of a lock. Slot 0 is the lock's own key. So a process that allows one holder, and a process that allows several,
// exclude each other from that slot. No lock has the key of another lock's slot, because the key of a lock ends with a brace.
func SlotKey(key string, slot int) string {
	if slot == 0 {
		return key
	}
	return key + slotInfix + strconv.Itoa(slot)
}

// SlotOf returns the key of the lock, and the slot, from a name that SlotKey has made. The queue of all slots is named after the key of the lock.
func SlotOf(name string) (key string, slot int) {
	if strings.HasSuffix(name, "}") {
		return name, 0
	}
	if at := strings.LastIndex(name, slotInfix); at >= 0 {
		if slot, ok := ParseNumber(name[at+len(slotInfix):], MaxSlots-1); ok {
			return name[:at], int(slot)
		}
	}
	return name, 0
}

// CallName returns the name of a call in the queue of a key with several holders. Wake-ups for the call go to its process.
func CallName(process string, call uint64) string {
	return process + "#" + strconv.FormatUint(call, 10)
}

// CallOf returns the process and the call from a name in a queue. The call is 0 for the name of a process itself.
func CallOf(name string) (process string, call uint64) {
	if at := strings.LastIndexByte(name, '#'); at >= 0 {
		if call, err := strconv.ParseUint(name[at+1:], 10, 64); err == nil {
			return name[:at], call
		}
	}
	return name, 0
}

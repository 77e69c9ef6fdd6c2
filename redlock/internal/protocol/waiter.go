package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// A token, and the name of a process among the waiters, end with so many characters that are made by chance: first
// those of the process, its ID, and then others.
const (
	IDLen     = 8
	RandomLen = 26
)

// MaxWaiters bounds how many waiters a master shows.
const MaxWaiters = 100

// Waiter is the place of a process in the queue of a key, as OpInspect shows it.
type Waiter struct {
	Process string // the end of its name, which begins with its ID
	Ticket  int64
	Polls   bool
}

// Line returns the waiter as it is in a reply.
func (w Waiter) Line() string {
	polls := 0
	if w.Polls {
		polls = 1
	}
	process, _ := CallOf(w.Process)
	return fmt.Sprintf("%d %d %s", w.Ticket, polls, process[max(0, len(process)-RandomLen):])
}

// ParseWaiter reads a line of a reply.
func ParseWaiter(line string) (w Waiter, ok bool) {
	ticket, rest, _ := strings.Cut(line, " ")
	polls, process, ok := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(ticket, 10, 64)
	return Waiter{process, number, polls == "1"}, ok && err == nil
}

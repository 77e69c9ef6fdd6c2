package redlock

import (
	"fmt"
	"strings"
	"time"
)

// announceTime is how long the line about the start waits for masters that neither answer nor fail.
const announceTime = 3 * time.Second

// announce logs once, after the start, how many masters are available, and reports whether it has. From then on each
// change of a master is logged.
func (l *Locker) announce(since time.Duration) (done bool) {
	status := l.Status()
	var others []string
	for _, m := range status.Masters {
		if m.State == MasterConnecting && since < announceTime {
			return false
		}
		if m.State != MasterAvailable {
			others = append(others, fmt.Sprintf("%s (%s)", m.Name, m.State))
		}
	}
	text := fmt.Sprintf("%d of %d masters available", status.Available, len(status.Masters))
	switch {
	case len(others) == 0:
		l.logger.Info(text)
	case status.Available >= status.Quorum:
		l.logger.Warn(text, "needed", status.Quorum, "unavailable", strings.Join(others, ", "))
	default:
		l.logger.Error(text, "needed", status.Quorum, "unavailable", strings.Join(others, ", "))
	}
	return true
}

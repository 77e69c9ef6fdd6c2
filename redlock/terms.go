package redlock

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// terms are the settings on which all processes must agree. Every token starts with them, so that
// whoever meets another's lock can tell that they differ: "<masters>.<max ttl in ms>.".
func terms(masters int, maxTTL time.Duration) string {
	return fmt.Sprintf("%d.%d.", masters, maxTTL.Milliseconds())
}

// foreignTerms finds, among the holders met, one that works under other terms than ours.
func (a *attempt) foreignTerms() (masters int, maxTTL time.Duration, found bool) {
	for _, reply := range a.held {
		if strings.HasPrefix(reply.Holder, a.locker.terms) {
			continue
		}
		parts := strings.SplitN(reply.Holder, ".", 3)
		if len(parts) < 3 {
			continue // not a token of ours
		}
		n, errN := strconv.Atoi(parts[0])
		ms, errMS := strconv.ParseInt(parts[1], 10, 64)
		if errN == nil && errMS == nil {
			return n, time.Duration(ms) * time.Millisecond, true
		}
	}
	return 0, 0, false
}

func (l *Locker) compareTerms(a *attempt) {
	masters, maxTTL, found := a.foreignTerms()
	if found && l.warned.CompareAndSwap(false, true) {
		l.logger.Error("another process shares locks under other settings: the locks don't exclude each other; make masters and max ttl the same everywhere",
			"its masters", masters, "its max ttl", maxTTL, "our masters", len(l.streams), "our max ttl", l.maxTTL)
	}
}

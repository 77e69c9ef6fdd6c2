package link

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLateRepliesAreForgotten: what is counted of the last minute doesn't depend on when the process began, which in a bubble is yet to come.
func TestLateRepliesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent
		for range fewLate {
			r.count(true, time.Now())
			time.Sleep(5 * time.Second)
		}
		if share := r.share(time.Now()); share != 1 {
			t.Errorf("%v of the replies were late, want all", share)
		}
		time.Sleep(time.Minute)
		if replies, late := r.sums(time.Now()); replies != 0 || late != 0 {
			t.Errorf("a minute later: %d replies, %d late", replies, late)
		}
	})
}

// TestSlow: a master is slow when half of its replies are late, and stays so while a quarter is. The advice is half of the last one's time:
// the timeout of a master that is far away grows to four times what is set.
func TestSlow(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		late, replies int
		known, slow   bool
	}{
		"half":                     {10, 20, false, true},
		"a third":                  {10, 30, false, false},
		"a third, and it is known": {10, 30, true, true},
		"a fifth, and it is known": {10, 50, true, false},
	} {
		l := latency{recent: recent{latest: 8 * time.Second}}
		for i := range c.replies {
			l.recent.count(i < c.late, now)
		}
		err := l.slow(c.known, 0, now)
		if errors.Is(err, ErrSlow) != c.slow {
			t.Errorf("%s: %v, want slow: %t", name, err, c.slow)
		}
		if err != nil && !strings.HasSuffix(err.Error(), "at least 4s") {
			t.Errorf("%s: %v, want an advice of 4s", name, err)
		}
	}
}

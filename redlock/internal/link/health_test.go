package link

import (
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

package redistest

import (
	"testing"
	"time"
)

// Eventually waits until the condition holds, and fails the test if that takes longer than any machine needs. Where the question is a process
// or a scrape, one after the other would slow down what is waited for: it pauses for twice as long as the last answer took.
func Eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	const limit = 5 * time.Minute
	for deadline := time.Now().Add(limit); ; {
		asked := time.Now()
		if condition() {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(max(pause, 2*time.Since(asked)))
	}
}

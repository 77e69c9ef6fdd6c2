package clients

import (
	"strings"
	"testing"
	"time"
)

// TestClientNested: a lock that is asked for within itself is refused, whatever the wait is.
func TestClientNested(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range []string{"node"} {
		if !has(t, language) {
			continue
		}
		for _, wait := range []string{"", "WAIT=0"} {
			if line := a.start(t, language, wait, "nested", language).expect(t, "error "); !strings.Contains(line, "would wait for itself") {
				t.Errorf("%s %s: %q was printed, want that it would wait for itself", language, wait, line)
			}
			_ = a.lock(t, language).Unlock()
		}
	}
}

// TestClientAgentBack: a client whose agent dies while it waits asks another one that takes its place.
func TestClientAgentBack(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"node"} {
		if !has(t, language) {
			continue
		}
		for _, options := range []string{"WAIT=100", "PATIENCE=100"} {
			t.Run(language+" "+options, func(t *testing.T) {
				t.Parallel()
				a := startAgent(t)
				busy := a.lock(t, "k")
				w := a.start(t, language, options, "hold", "k")
				for a.waiting(t) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
				_ = a.process.Kill()
				for a.listens() {
					time.Sleep(10 * time.Millisecond)
				}
				a.serve(t)
				_ = busy.Unlock()
				w.expect(t, "held ")
				w.end(t)
				w.expect(t, "done")
			})
		}
	}
}

package middleware_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestResponsesWithinTheirBudget: of many large responses at once, only as many are in memory as the budget has room for. The others wait,
// all are remembered whole, and all can be replayed at once. Then the budget is empty. Of few responses, on a busy machine, those that
// wait for longer than a response may are remembered without their bodies, and the Observer is told.
func TestResponsesWithinTheirBudget(t *testing.T) {
	const size = 900_000
	responses := 1000
	if redistest.Few() {
		responses = 40
	}
	body := strings.Repeat("paid ", size/5)
	most := int64(middleware.DefaultResponseBudget / size / 2)
	var inside, runs, noted atomic.Int64
	n := &notes{}
	full := make(chan struct{}) // some wait for room
	fill := sync.OnceFunc(func() { close(full) })
	l := newLocker(t, live, redlock.WithTimeout(bound)) // 900 MB keep a processor busy, and with it the clients, which are slow then
	server := serve(t, middleware.New(l, "", middleware.Rule{IdempotencyKey: "required", Remember: hour, RememberSize: 1<<20 - 128<<10, ResponseTimeout: bound, MastersWait: bound, Observer: n})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		_, _ = io.WriteString(w, body)
		if now := inside.Add(1); now > most {
			t.Errorf("%d responses of %d bytes are in memory", now, size)
			fill()
		}
		if middleware.ResponsesThatWait() > 0 {
			fill()
		}
		<-full
		inside.Add(-1)
	})))
	watch := make(chan struct{})
	go func() { // the last that finds room may come before the first that doesn't
		for middleware.ResponsesThatWait() == 0 {
			select {
			case <-watch:
				return
			default:
				runtime.Gosched()
			}
		}
		fill()
	}()
	defer close(watch)
	for _, replayed := range []string{"", "true"} {
		var all sync.WaitGroup
		room := make(chan struct{}, 200) // connections
		for i := range responses {
			all.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				var response *http.Response
				for {
					r := newRequest(t, server.URL, "Idempotency-Key", fmt.Sprint(i))
					var err error
					if response, err = http.DefaultClient.Do(r); err != nil {
						t.Error(err)
						return
					}
					if response.Header.Get("Redlock-Outcome") != string(middleware.OutcomeUnreadable) {
						break
					}
					_ = response.Body.Close() // on a busy machine a request may wait for room in vain
				}
				defer response.Body.Close()
				got, err := io.Copy(io.Discard, response.Body)
				if replayed != "" && response.Header.Get("Content-Type") == "application/problem+json" {
					noted.Add(1)
				} else if err != nil || response.StatusCode != http.StatusOK || got != size || response.Header.Get("Idempotency-Replayed") != replayed {
					t.Errorf("response %d, replayed %q: %d, %d bytes, %v", i, replayed, response.StatusCode, got, err)
				}
				if used := middleware.ResponseBytes(); used > middleware.DefaultResponseBudget {
					t.Errorf("%d bytes are taken", used)
				}
			})
		}
		all.Wait()
	}
	if n := noted.Load(); n > 0 && (!redistest.Few() || n > int64(responses/2)) {
		t.Errorf("%d are remembered without their bodies", n)
	}
	eventually(t, "the Observer is told of those without room", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		roomless := 0
		for _, why := range n.reasons {
			if why == middleware.ReasonNoRoom {
				roomless++
			}
		}
		return len(n.reasons) == responses && int64(roomless) == noted.Load()
	})
	if runs.Load() != int64(responses) {
		t.Errorf("%d runs", runs.Load())
	}
	eventually(t, "the budget is empty", func() bool { return middleware.ResponseBytes() == 0 })
}

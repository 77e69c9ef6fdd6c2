package middleware_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const (
	jsonHead = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	inChunks = "Transfer-Encoding: chunked"
)

// A client that doesn't send its body holds no lock meanwhile, and room for its body only for a limited time.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 4 * time.Second
		l := newLocker(t, live)
		listener := servePipes(t, middleware.New(l, "order:{body.id}", middleware.Rule{BodyTimeout: timeout, BodyBudget: middleware.NewBudget(1 << 20)})(http.HandlerFunc(ok)))
		send := func(head, body string) received { return exchange(t, listener.dial(), jsonHead+head+"\r\n\r\n"+body) }
		for _, length := range []string{"Content-Length: 1048576", inChunks} {
			start := time.Now()
			slow := make(chan received, 1)
			go func() { slow <- send(length, "8\r\n{\"id\":42") }()
			time.Sleep(timeout / 3)
			requireFree(t, l, "order:42")
			if got := send("Content-Length: 9", `{"id":42}`); got.body != "served" { // waits for room
				t.Errorf("another request: %d %s", got.StatusCode, got.body)
			}
			requireProblem(t, <-slow, http.StatusRequestTimeout, "body_timeout")
			if d := time.Since(start); d != timeout {
				t.Errorf("%s: answered after %v, want %v", length, d, timeout)
			}
		}
		if got := send("Content-Length: 1048576", `{"id":7}`+strings.Repeat(" ", 1<<20-8)); got.body != "served" {
			t.Errorf("room in the budget is not given back: %d %s", got.StatusCode, got.body)
		}
		time.Sleep(time.Second) // net/http closes a connection half a second after a refusal
	})
}

func TestBodyBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, end := make(chan bool), make(chan bool)
		rule := middleware.Rule{BodyBudget: middleware.NewBudget(1 << 20)}
		listener := servePipes(t, middleware.New(newLocker(t, live), "order:{body.id}", rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Hold") != "" {
				running <- true
				<-end
			}
			ok(w, r)
		})))
		send := func(id, length int, head string) received {
			body := fmt.Sprintf(`{"id":%d}`, id)
			body += strings.Repeat(" ", length-len(body))
			if head == inChunks {
				body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", length, body)
			} else {
				head += fmt.Sprintf("Content-Length: %d", length)
			}
			return exchange(t, listener.dial(), jsonHead+head+"\r\n\r\n"+body)
		}
		held := make(chan received, 1)
		go func() { held <- send(1, 600_000, "Hold: 1\r\n") }()
		<-running
		got := send(2, 600_000, inChunks)
		requireProblem(t, got, http.StatusServiceUnavailable, "body_budget")
		requireRetryAfter(t, got, time.Second)
		if got := send(3, 8, ""); got.body != "served" {
			t.Errorf("a small body, for which there is room: %d %s", got.StatusCode, got.body)
		}
		close(end)
		if got := <-held; got.body != "served" {
			t.Errorf("the first: %d %s", got.StatusCode, got.body)
		}
		if got := send(4, 1<<20, ""); got.body != "served" {
			t.Errorf("room in the budget is not given back: %d %s", got.StatusCode, got.body)
		}
		time.Sleep(time.Second)
	})
}

// slowClient sends the beginning of a body, and the rest when its end is called.
func slowClient(t *testing.T, url, beginning string) (got <-chan received, end func(rest string)) {
	t.Helper()
	body, pipe := io.Pipe()
	responses := make(chan received, 1)
	request := newRequest(t, url, "Content-Type", jsonType)
	request.Body = body
	go func() {
		if response, err := http.DefaultClient.Do(request); err == nil {
			text, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			responses <- received{response, string(text)}
		}
	}()
	if _, err := io.WriteString(pipe, beginning); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.CloseWithError(errors.New("the client leaves")) })
	return responses, func(rest string) {
		_, _ = io.WriteString(pipe, rest)
		_ = pipe.Close()
	}
}

// A writer that hides the connection makes it impossible to interrupt a read. The room is given back all the same.
func TestSlowBodyBehindTimeoutHandler(t *testing.T) {
	t.Parallel()
	hasty := middleware.Rule{BodyTimeout: 100 * time.Millisecond, BodyBudget: middleware.NewBudget(1 << 20)}
	l := newLocker(t, live)
	refused := make(chan error, 1)
	rule := middleware.New(l, "order:{body.id}", hasty)(http.HandlerFunc(ok))
	server := serve(t, http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rule.ServeHTTP(w, r)
		if r.ContentLength < 0 {
			first := make([]byte, 1)
			_, err := r.Body.Read(first)
			if err == nil && first[0] == '{' {
				err = http.ErrBodyReadAfterClose // on a busy machine the rule has read nothing; what mustn't be read is the middle of the body
			}
			refused <- err
		}
	}), bound, "too slow"))
	slowClient(t, server.URL, `{"id`)
	if err := receive(t, refused, "the refusal of the slow body"); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("read after the refusal: %v", err)
	}
	patient := hasty
	patient.BodyTimeout = bound
	roomy := serve(t, middleware.New(l, "order:{body.id}", patient)(http.HandlerFunc(ok)))
	if got := postBody(t, roomy.URL, jsonType, strings.NewReader(`{"id":7}`+strings.Repeat(" ", 1<<20-8))); got.body != "served" {
		t.Errorf("room in the budget is not given back: %d %s", got.StatusCode, got.body)
	}
}

// A dry run neither waits for room nor keeps it, and the handler reads on where it gave up.
func TestBodiesOfDryRun(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	budget := middleware.NewBudget(1 << 20)
	seen := make(chan middleware.Outcome, 10)
	dry := serve(t, middleware.New(l, "order:{body.id}", middleware.Rule{BodyBudget: budget, DryRun: true, BodyTimeout: 50 * time.Millisecond})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		seen <- turn.Outcome
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %v", turn.Outcome, body, err)
	})))
	running, release := make(chan bool), make(chan bool)
	real := serve(t, middleware.New(l, "real:{body.id}", middleware.Rule{BodyBudget: budget})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Hold") != "" {
			running <- true
			<-release
		}
		ok(w, r)
	})))

	slow, end := slowClient(t, dry.URL, `{"id"`)
	if outcome := receive(t, seen, "the slow request"); outcome != middleware.OutcomeBodyTimeout {
		t.Errorf("outcome of a slow body: %s", outcome)
	}
	held := make(chan received, 1)
	go func() { // it takes all but a few bytes of the room, while the slow one is still reading
		r := newRequest(t, real.URL, "Hold", "1", "Content-Type", jsonType)
		body := `{"id":1,"x":"` + strings.Repeat("x", 1<<20-100) + `"}`
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		held <- do(t, r)
	}()
	receive(t, running, "the request with a large body")
	body := `{"id":"` + strings.Repeat("x", 1000) + `"}`
	if got := postBody(t, dry.URL, jsonType, strings.NewReader(body)); got.body != "body_budget "+body+" <nil>" {
		t.Errorf("without room: %.100q", got.body)
	}
	end(`:42}`)
	if got := receive(t, slow, "the slow response"); got.body != `body_timeout {"id":42} <nil>` {
		t.Errorf("the slow one: %q", got.body)
	}
	close(release)
	if got := receive(t, held, "the response to the large one"); got.body != "served" {
		t.Errorf("the large one: %d %s", got.StatusCode, got.body)
	}
}

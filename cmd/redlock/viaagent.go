//go:build unix

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// watch checks that the agent still answers other calls while it makes one wait, until ctx ends.
func (a *agentClient) watch(ctx context.Context, hangs context.CancelCauseFunc) {
	for pause := time.Second; ; pause = agentPatience {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if _, _, err := a.call(ctx, http.MethodGet, "/healthz"); errors.Is(err, errHangs) { // after any other error, the call fails by itself
			hangs(err)
		}
	}
}

// inspect returns who holds a key. Without the slot, the agent would look at all slots that there may be.
func (a *agentClient) inspect(ctx context.Context, key string) (holder string, fence uint64) {
	var seen console.Inspection
	if err := a.Ask(ctx, http.MethodGet, "locks", url.Values{"key": {key}, "slot": {"0"}}, &seen); err == nil && len(seen.Lockers) > 0 {
		return seen.Lockers[0].Holder, seen.Lockers[0].Fence
	}
	return "", 0
}

// status returns the state of the agent's masters, or an empty Status if that isn't known.
func (a *agentClient) status(ctx context.Context) redlock.Status {
	var seen console.Status
	if err := a.Ask(ctx, http.MethodGet, "masters", nil, &seen); err != nil || len(seen.Lockers) == 0 {
		return redlock.Status{}
	}
	shown := seen.Lockers[0]
	status := redlock.Status{Quorum: shown.Quorum, Available: shown.Available}
	if shown.Ready {
		status.Asked = shown.Quorum
	}
	if shown.Error != "" {
		status.Err = errors.New(shown.Error)
	}
	for _, m := range shown.Masters {
		known := redlock.MasterStatus{Name: m.Name, State: redlock.MasterState(m.State), Until: m.Until}
		if m.Error != "" {
			known.Err = errors.New(m.Error)
		}
		status.Masters = append(status.Masters, known)
	}
	return status
}

// agentLease is a lock that an agent holds for as long as a request lasts.
type agentLease struct {
	ctx   context.Context
	lose  context.CancelCauseFunc
	conn  net.Conn
	end   chan string   // gets the bytes that end the request's body
	ended chan struct{} // closed behind the last line
	last  *agentLine    // the last line, to be read after ended is closed; nil if the connection has ended before

	mu    sync.Mutex
	sent  map[int64]time.Time // when it began to send each mark that a line may still answer; mark 0 is the request
	until time.Time
}

// agentLine is a line of the agent's response: docs/protocol.md.
type agentLine struct {
	Fence       uint64 `json:"fence"`
	Slot        int    `json:"slot"`
	Mark        int64  `json:"mark"`
	Valid       int64  `json:"valid_ms"`
	Lost        string `json:"lost"`
	Detail      string `json:"detail"`
	Released    *bool  `json:"released"`
	Unconfirmed bool   `json:"unconfirmed"`
}

// lockThrough takes a lock. It waits for at most this time, or with nil until ctx ends. If the agent refuses the lock, the error has the
// exit code that it would have on masters.
func (c *runCommand) lockThrough(ctx context.Context, a *agentClient, wait *time.Duration) (*agentLease, *agentLine, error) {
	ask := map[string]any{
		"key": c.key, "ttl": c.ttl.String(), "label": label,
		"linger":    true,           // if this process is killed, the command may still run for a moment
		"heartbeat": c.ttl.String(), // if it is stopped, nobody renews the lock for it
	}
	if wait != nil {
		ask["wait"] = wait.String()
	}
	if hold := c.lockHold(); hold > 0 {
		ask["max_hold"] = hold.String()
	}
	if c.most > 1 {
		ask["concurrency"] = c.most
	}
	if c.period > 0 {
		ask["once_per"] = c.period.String()
	}
	line, err := json.Marshal(ask)
	if err != nil {
		return nil, nil, err
	}
	waiting, hangs := context.WithCancelCause(ctx)
	defer hangs(nil)
	if wait != nil {
		defer time.AfterFunc(*wait+agentPatience, func() { hangs(silentFor(agentPatience)) }).Stop()
	}
	conn, kept, err := a.dial(waiting)
	if err != nil {
		return nil, nil, &coded{codeNoQuorum, fmt.Errorf("%w at %s: %w", errNoAgent, a.address, err)}
	}
	l := &agentLease{sent: map[int64]time.Time{0: time.Now()}, conn: conn, end: make(chan string, 1), ended: make(chan struct{})}
	l.ctx, l.lose = context.WithCancelCause(context.Background())
	go a.watch(waiting, hangs)
	lines, first, err := c.ask(l, a, string(line)+"\n")
	if !kept() && err == nil { // from now on a signal is for the command
		err = context.Cause(waiting)
	}
	if err != nil {
		_ = conn.Close()
		var refused *coded
		switch {
		case errors.As(err, &refused):
			return nil, nil, err
		case context.Cause(waiting) != nil:
			err = context.Cause(waiting)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
			err = &sorted{errors.New("it has ended before it gave the lock: start it again"), errNoAgent}
		}
		return nil, nil, &coded{codeNoQuorum, fmt.Errorf("the agent at %s: %w", a.address, err)}
	}
	go l.read(lines)
	go l.beat(c.ttl / 3)
	return l, first, nil
}

// ask asks for the lock, and returns the first line of the answer, and a reader for the others.
func (c *runCommand) ask(l *agentLease, a *agentClient, line string) (lines *bufio.Reader, first *agentLine, err error) {
	header := http.Header{"Content-Type": {"application/json"}, "Transfer-Encoding": {"chunked"}}
	if err := a.send(l.conn, "POST /v1/lock", header, line); err != nil {
		return nil, nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(l.conn), nil)
	if err != nil {
		return nil, nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, nil, c.refusedBy(a, response)
	}
	lines = bufio.NewReader(response.Body)
	first, err = l.next(lines)
	if err == nil && first.Fence == 0 {
		err = errors.New(cmp.Or(first.Detail, "its first line has no fence"))
	}
	return lines, first, err
}

func (c *runCommand) refusedBy(a *agentClient, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	var problem console.Problem
	if json.Unmarshal(text, &problem) != nil || response.Header.Get("Redlock-Agent") != "1" {
		return &coded{codeNoQuorum, fmt.Errorf("something else than an agent answers at %s (status %d)", a.address, response.StatusCode)}
	}
	switch {
	case response.Header.Get("Redlock-Outcome") == "done":
		return c.refused(redlock.ErrDone)
	case response.StatusCode == http.StatusLocked:
		return c.refused(redlock.ErrHeld)
	case response.StatusCode == http.StatusBadRequest, response.StatusCode == http.StatusUnauthorized:
		return &coded{codeUsage, errors.New(problem.Detail)}
	}
	err := fmt.Errorf("the agent at %s: %s: %s", a.address, problem.Title, problem.Detail)
	switch {
	case response.Header.Get("Redlock-Outcome") == "no_quorum":
		err = &sorted{err, redlock.ErrNoQuorum}
	case response.StatusCode == http.StatusServiceUnavailable:
		err = &sorted{err, errAgentEnds}
	}
	return &coded{codeNoQuorum, err}
}

// sorted is an error that matches another one, which its text doesn't mention.
type sorted struct {
	error
	sort error
}

func (s *sorted) Unwrap() []error { return []error{s.error, s.sort} }

// Context ends when the lock is lost.
func (l *agentLease) Context() context.Context { return l.ctx }

var errLeaseEnded = errors.New("the lease has ended")

// Until returns the latest end of the lease in any line. If that is over by the wall clock, it ends the lease: only the wall
// clock goes on while a machine is suspended.
func (l *agentLease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Round(0).After(l.until.Round(0)) {
		l.lose(errLeaseEnded)
	}
	return l.until
}

// next reads a line, and prolongs the lease by it.
func (l *agentLease) next(lines *bufio.Reader) (*agentLine, error) {
	text, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the connection has ended: %w", err)
	}
	line := new(agentLine)
	if err := json.Unmarshal(text, line); err != nil {
		return nil, fmt.Errorf("its line can't be read: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent, known := l.sent[line.Mark]; known && line.Valid > 0 {
		if end := sent.Add(time.Duration(line.Valid) * time.Millisecond); end.After(l.until) {
			l.until = end
		}
		maps.DeleteFunc(l.sent, func(mark int64, _ time.Time) bool { return mark < line.Mark })
	}
	return line, nil
}

// read reads lines until the last one. If lines don't come in time, the lease ends by itself, because nothing prolongs it.
func (l *agentLease) read(lines *bufio.Reader) {
	defer close(l.ended)
	for {
		line, err := l.next(lines)
		switch {
		case err != nil:
			l.lose(fmt.Errorf("the agent: %w", err))
			return
		case line.Lost != "":
			l.last = line
			err := fmt.Errorf("the agent: %s", line.Detail)
			if line.Lost == "max_hold" {
				err = &sorted{err, redlock.ErrMaxHold}
			}
			l.lose(err)
			return
		case line.Released != nil:
			l.last = line
			return
		}
	}
}

// beat sends marks, until it has sent the end or the last line has come.
func (l *agentLease) beat(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for mark := int64(1); ; mark++ {
		select {
		case <-l.ended:
			return
		case end := <-l.end:
			_, _ = io.WriteString(l.conn, end) // if the agent doesn't receive it, it doesn't confirm the release
			return
		case <-ticker.C:
		}
		l.mu.Lock()
		l.sent[mark] = time.Now()
		l.mu.Unlock()
		if _, err := io.WriteString(l.conn, chunk("\n")); err != nil {
			return
		}
	}
}

// releasePatience is how long the agent may take to say that it has released the lock.
const releasePatience = 5 * time.Second

// release ends the request in order. If the work of the period is done, it first sends the word done. Its error matches the
// errors of redlock.Lock.Unlock.
func (l *agentLease) release(done bool) error {
	closes := func() { _ = l.conn.Close() }
	defer closes()
	if cause := context.Cause(l.ctx); cause != nil {
		return fmt.Errorf("%w: %w", redlock.ErrLost, cause)
	}
	defer time.AfterFunc(releasePatience, closes).Stop()
	end := "0\r\n\r\n"
	if done {
		end = chunk("done") + end
	}
	l.end <- end
	<-l.ended
	switch last := l.last; {
	case last == nil:
		return errors.New("the agent has not confirmed the release: the key is free when the ttl is over, at the latest")
	case last.Unconfirmed:
		return fmt.Errorf("%w: the agent: %s", redlock.ErrNoQuorum, last.Detail)
	case last.Released != nil && *last.Released:
		return nil
	default:
		return fmt.Errorf("%w: the agent: %s", redlock.ErrExpired, last.Detail)
	}
}

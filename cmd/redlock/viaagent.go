//go:build unix

package main

import (
	"bufio"
	"bytes"
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
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/cli"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// agentClient asks an agent on a Unix socket: on the same machine, so both have the same clocks.
type agentClient struct {
	address string
	http.Client
}

// newAgentClient returns the client of an agent at an address such as unix:/run/redlock/redlock.sock.
func newAgentClient(address string) (*agentClient, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return nil, fmt.Errorf("--agent %s: want unix:/path of an agent's socket", address)
	}
	a := &agentClient{address: address}
	a.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	return a, nil
}

func (a *agentClient) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://redlock"+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Redlock-Agent", "1")
	r.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("REDLOCK_AGENT_TOKEN"); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := a.Do(r)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return response, err
}

// ask has the agent's console answer, and reports whether it has.
func (a *agentClient) ask(ctx context.Context, path string, seen any) bool {
	response, err := a.send(ctx, http.MethodGet, "/console"+path, nil)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	known, err := cli.Decode(response.StatusCode, response.Header, text, seen)
	return known && err == nil
}

// inspect returns who holds a key. Without the slot, the agent would look for all that there may be.
func (a *agentClient) inspect(ctx context.Context, key string) (holder string, fence uint64) {
	var seen console.Inspection
	if a.ask(ctx, "/locks?"+url.Values{"key": {key}, "slot": {"0"}}.Encode(), &seen) && len(seen.Lockers) > 0 {
		return seen.Lockers[0].Holder, seen.Lockers[0].Fence
	}
	return "", 0
}

// guardedUntil returns when a quorum of masters will have a vote that lack it because they have just started.
func (a *agentClient) guardedUntil(ctx context.Context) time.Time {
	var seen console.Status
	if !a.ask(ctx, "/masters", &seen) || len(seen.Lockers) == 0 {
		return time.Time{}
	}
	var restarted []time.Time
	for _, m := range seen.Lockers[0].Masters {
		if m.State == string(redlock.MasterRestarted) {
			restarted = append(restarted, m.Until)
		}
	}
	return quorumAt(seen.Lockers[0].Quorum-seen.Lockers[0].Available, restarted)
}

// agentLease is a lock that an agent holds for as long as a request lasts.
type agentLease struct {
	ctx      context.Context
	lose     context.CancelCauseFunc
	body     *io.PipeWriter
	response *http.Response
	close    context.CancelFunc // closes the connection
	ended    chan struct{}      // closed behind the last line
	last     *agentLine         // that line, after ended; nil if the connection has ended before

	mu    sync.Mutex
	sent  map[int64]time.Time // when the request, which is mark 0, and the marks since the last line began to be sent
	until time.Time
}

// agentLine is a line of the agent's response: docs/agent.md.
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

// lockThrough takes a lock. If the agent refuses it, the error is coded as it would be on masters.
func (c *runCommand) lockThrough(ctx context.Context, a *agentClient) (*agentLease, *agentLine, error) {
	ask := map[string]any{
		"key": c.key, "ttl": c.ttl.String(), "label": label,
		"linger":    true,           // if this process is killed, the command may still run for a moment
		"heartbeat": c.ttl.String(), // if it is stopped, nobody renews the lock for it
	}
	if c.try {
		ask["try"] = true
	} else if c.waits {
		ask["wait"] = c.wait.String()
	}
	if c.maxHold > 0 {
		ask["max_hold"] = c.maxHold.String()
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
	connection, closes := context.WithCancel(context.Background())
	waits := context.AfterFunc(ctx, closes)
	rest, body := io.Pipe()
	context.AfterFunc(connection, func() { _ = rest.Close() }) // Do waits for who writes the body
	l := &agentLease{sent: map[int64]time.Time{0: time.Now()}, body: body, close: closes, ended: make(chan struct{})}
	l.ctx, l.lose = context.WithCancelCause(context.Background())
	if l.response, err = a.send(connection, http.MethodPost, "/v1/lock", io.MultiReader(bytes.NewReader(append(line, '\n')), rest)); err != nil {
		closes()
		return nil, nil, &coded{codeNoQuorum, fmt.Errorf("no agent answers at %s: %w", a.address, err)}
	}
	lines := bufio.NewReader(l.response.Body)
	if l.response.StatusCode != http.StatusOK {
		defer closes()
		return nil, nil, c.refusedBy(a, lines, l.response)
	}
	first, err := l.next(lines)
	if err == nil && first.Fence == 0 {
		err = errors.New(cmp.Or(first.Detail, "its first line has no fence"))
	}
	if err == nil && !waits() { // from now on a signal is for the command
		err = ctx.Err()
	}
	if err != nil {
		closes()
		return nil, nil, &coded{codeNoQuorum, fmt.Errorf("the agent at %s: %w", a.address, err)}
	}
	go l.read(lines)
	go l.beat(c.ttl / 3)
	return l, first, nil
}

// refusedBy returns the error for a response that is no lock.
func (c *runCommand) refusedBy(a *agentClient, body io.Reader, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(body, 64<<10))
	var problem console.Problem
	if json.Unmarshal(text, &problem) != nil || response.Header.Get("Redlock-Agent") != "1" {
		return &coded{codeNoQuorum, fmt.Errorf("something else than an agent answers at %s (status %d)", a.address, response.StatusCode)}
	}
	switch {
	case response.Header.Get("Redlock-Outcome") == "done":
		return c.refused(redlock.ErrDone)
	case response.StatusCode == http.StatusLocked:
		return c.refused(redlock.ErrHeld)
	case response.StatusCode == http.StatusBadRequest:
		return &coded{codeUsage, errors.New(problem.Detail)}
	}
	return &coded{codeNoQuorum, fmt.Errorf("the agent at %s: %s: %s", a.address, problem.Title, problem.Detail)}
}

// Context ends when the lock is lost.
func (l *agentLease) Context() context.Context { return l.ctx }

// Until is the latest end of the lease that any line has said. While a machine is suspended, only its wall clock goes on.
func (l *agentLease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Round(0).After(l.until.Round(0)) {
		l.lose(errors.New("the lease has ended"))
	}
	return l.until
}

// next reads a line.
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

// read reads lines until the last one. A lease whose lines don't come in time ends by itself: its end stays where it is.
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
			l.lose(fmt.Errorf("the agent: %s", line.Detail))
			return
		case line.Released != nil:
			l.last = line
			return
		}
	}
}

// beat sends marks until the last line has come.
func (l *agentLease) beat(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for mark := int64(1); ; mark++ {
		select {
		case <-l.ended:
			return
		case <-ticker.C:
		}
		l.mu.Lock()
		l.sent[mark] = time.Now()
		l.mu.Unlock()
		if _, err := l.body.Write([]byte{'\n'}); err != nil {
			return
		}
	}
}

// releasePatience is how long the agent may take to say that it has released the lock.
const releasePatience = 5 * time.Second

// release ends the request in order, after the word that the work of the period is done, if it is. Its error matches those of
// redlock.Lock.Unlock.
func (l *agentLease) release(done bool) error {
	defer l.close()
	if cause := context.Cause(l.ctx); cause != nil {
		return fmt.Errorf("%w: %w", redlock.ErrLost, cause)
	}
	defer time.AfterFunc(releasePatience, l.close).Stop()
	if done {
		_, _ = io.WriteString(l.body, "done") // what isn't received is not confirmed
	}
	_ = l.body.Close()
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

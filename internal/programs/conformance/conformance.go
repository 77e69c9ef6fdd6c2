// Package conformance runs the cases of clients/cases.json against a client of the agent in any language. It calls the client's worker, a small
// program that redlock conformance --help describes, and has the agents that the worker meets in this process, on masters in memory.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// bound is how long a case may take: only a client that hangs needs it.
const bound = 2 * time.Minute

// Case is what a client does, and what it is to print.
type Case struct {
	Name    string
	Agent   string   // a name in the table agents: which agent the client meets; "": one that is well
	Options string   // of the worker: variables of its environment
	Args    []string // of the worker: a mode and keys, of which busy is held by somebody else
	Stop    bool     // whether the worker is told to end its work once it has printed its first line
	Prints  []string // patterns of whole lines
	Next    []string // the same after the first time; nil: Prints
	Times   int      // how often it runs; 0: once
	Done    bool     // whether the agent is to know at the end that the work is done
}

// Parse returns the cases of a file such as clients/cases.json.
func Parse(text []byte) (cases []Case, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&cases); err != nil {
		return nil, err
	}
	for _, c := range cases {
		if agents[c.Agent] == nil || len(c.Args) < 2 || len(c.Prints) == 0 {
			return nil, fmt.Errorf("%s: want one of the agents, a mode and a key, and lines", c.Name)
		}
	}
	return cases, nil
}

// ErrSkipped means that the worker has said that its client can't do this.
var ErrSkipped = errors.New("skipped")

// Run runs the case with a worker. It returns nil, ErrSkipped, or an error that says what the worker was to print, what it has printed, and what it
// and the agent have sent.
func (c *Case) Run(ctx context.Context, command Command) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	dir, err := os.MkdirTemp("", "redlock") // short, because a path of a socket must be
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &scene{ctx: ctx, dir: dir, record: record{began: time.Now()}}
	defer s.close()
	if err := agents[c.Agent](s); err != nil {
		return err
	}
	var busy *redlock.Lock
	if s.granted {
		if busy, err = s.locker.Lock(ctx, "busy"); err != nil {
			return err
		}
	}
	prints, times := c.Prints, max(c.Times, 1)
	for n := range times {
		options := append([]string{"ADDRESS=" + s.address, "TOKEN=" + s.token}, strings.Fields(c.Options)...)
		w, err := command.Start(ctx, dir, options, c.Args...)
		if err != nil {
			return err
		}
		err = c.follow(s, w, prints)
		ended := w.End()
		switch {
		case errors.Is(err, ErrSkipped):
			return ErrSkipped
		case err == nil && ended != nil:
			err = fmt.Errorf("want the end of the worker\ngot: %w", ended)
		}
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w in %v", err, bound)
			}
			return fmt.Errorf("%w\n\ncall %d of %d: %s\n\n%v\n%v", err, n+1, times, strings.Join(append(options, w.Cmd.Args...), " "), w, &s.record)
		}
		if c.Next != nil {
			prints = c.Next
		}
	}
	if busy == nil {
		return nil
	}
	_ = busy.Unlock()
	if err := s.requireFree(ctx, c.Args[1], c.Done); err != nil {
		return fmt.Errorf("%w\n\n%v", err, &s.record)
	}
	return nil
}

// follow holds what a worker prints against the case.
func (c *Case) follow(s *scene, w *Worker, prints []string) error {
	if s.waits != nil {
		if err := s.waits(); err != nil {
			return err
		}
	}
	for i, pattern := range prints {
		line, ok := w.Line()
		switch {
		case ok && i == 0 && line == "skip":
			return ErrSkipped
		case !ok:
			return fmt.Errorf("want line %d: %s\ngot: nothing more", i+1, pattern)
		case !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(line):
			return fmt.Errorf("want line %d: %s\ngot: %s", i+1, pattern, line)
		case strings.HasPrefix(line, "lost ") && !s.until.IsZero():
			text, _, _ := strings.Cut(strings.TrimPrefix(line, "lost "), " ")
			if ms, err := strconv.ParseInt(text, 10, 64); err != nil || ms > s.until.UnixMilli() {
				return fmt.Errorf("want line %d: lost and a time of at most %d, at which the lease has ended, in milliseconds\ngot: %s", i+1, s.until.UnixMilli(), line)
			}
		}
		if i > 0 {
			continue
		}
		if s.holds != nil {
			s.holds()
		}
		if c.Stop {
			if err := w.Stop(); err != nil {
				return err
			}
		}
	}
	if line, ok := w.Line(); ok {
		return fmt.Errorf("want no more lines\ngot: %s", line)
	}
	return nil
}

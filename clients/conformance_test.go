package clients

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/conformance"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestConformance runs the cases of cases.json in each language, with -short in two, and those that only some languages have.
func TestConformance(t *testing.T) {
	t.Parallel()
	cases, err := conformance.Parse(Cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range some(t) {
		command := workerOf(t, language)
		for _, c := range slices.Concat(cases, ownCases[folder(language)]) {
			t.Run(language+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				err := c.Run(t.Context(), command)
				lacks := slices.Contains(lacking[folder(language)], c.Name)
				if lacks != errors.Is(err, conformance.ErrSkipped) || err != nil && !lacks {
					t.Fatalf("%v; want it skipped: %v", err, lacks)
				}
			})
		}
	}
}

// lacking has the names of the cases that a client can't pass, by its folder.
var lacking = map[string][]string{
	"shell": { // knows neither TCP nor work that is done once
		"after the end",
		"over TCP",
		"a wrong token",
		"lines that are no chunks",
		"a first line that comes in the last hundredth of the lease",
		"a lock that had ended before",
		"work that is done once per period",
		"work of a period that fails is done again",
		"work of a period that finds other work done",
		"work of a period that too few masters remember",
		"work that is done once",
		"work that fails is done again",
		"work that finds other work done",
		"work that too few masters remember",
	},
}

// objects are the cases of languages in which a lock is an object, and work a function.
var objects = []conformance.Case{
	{Name: "without a block", Options: "WAIT=60", Args: []string{"kept", "k"}, Prints: []string{`held [1-9]\d*`, "done"}, Times: 2},
	{Name: "after the end, why", Args: []string{"after", "k"}, Stop: true, Prints: []string{`held [1-9]\d*`, `lost \d+ it was released`}},
	{Name: "work that is done once has the same value at first", Options: "WAIT=60", Args: []string{"equal", "k"}, Prints: []string{"equal true", "done"}},
	{Name: "what only this language has", Args: []string{"own", "k"}, Prints: []string{"done"}},
	{Name: "a key that the client itself holds", Options: "WAIT=0", Args: []string{"nested", "k"}, Prints: []string{"error this thread holds the lock itself, and would wait for itself: locks are not reentrant"}},
	{Name: "a key that the client itself holds, in capitals, for a wait without limit", Args: []string{"nested", "k", "K"}, Prints: []string{"error this thread holds the lock itself, and would wait for itself: locks are not reentrant"}},
	{Name: "a value that JSON can't have", Options: "WAIT=60", Args: []string{"unwritable", "k"}, Prints: []string{"unwritable, and its value is there: .* the work is done, but the next caller may do it again: .+", "done"}},
	{Name: "a value that is kept for no time", Options: "WAIT=60 KEEP=0", Args: []string{"once", "k", "the work has begun"}, Prints: []string{"error once 0.*: want .+"}},
	{Name: "a period of no time", Options: "WAIT=60 KEEP=0", Args: []string{"once_per", "k", "the work has begun"}, Prints: []string{"error once(_p|P)er 0.*: want .+"}},
	{Name: "work of a period that is done says when it may be done again", Options: "WAIT=60", Args: []string{"period", "k"}, Stop: true, Prints: []string{`held [1-9]\d*`, "done"}, Next: []string{`already .+ ago.*, retry after [1-9]\d*`}, Times: 2},
}

// ownCases are the cases of single languages, by their folders.
var ownCases = map[string][]conformance.Case{
	"node":   objects,
	"python": objects,
	"ruby":   objects,
	"php":    append(slices.Clone(objects), conformance.Case{Name: "work that seldom looks at its lock", Args: []string{"seldom", "k"}, Prints: []string{"done"}}),
	"shell": {
		{Name: "a wait with a unit", Options: "WAIT=1m", Args: []string{"hold", "k"}, Prints: []string{"error 64 redlock.sh: -w 1m: want a number of seconds.*"}},
		{Name: "a ttl with a unit", Options: "WAIT=1 TTL=5s", Args: []string{"hold", "k"}, Prints: []string{"error 64 redlock.sh: -t 5s: want a number of seconds.*"}},
		{Name: "a hold with a unit", Options: "WAIT=1 MAX_HOLD=1m", Args: []string{"hold", "k"}, Prints: []string{"error 64 redlock.sh: -m 1m: want a number of seconds.*"}},
		{Name: "a patience with two points", Options: "WAIT=1 PATIENCE=1.5.", Args: []string{"hold", "k"}, Prints: []string{`error 64 redlock.sh: -p 1\.5\.: want a number of seconds.*`}},
		{Name: "a number in words", Options: "WAIT=1 CONCURRENCY=two", Args: []string{"hold", "k"}, Prints: []string{"error 64 redlock.sh: -c two: want a whole number.*"}},
		{Name: "an agent that hangs for half a second", Agent: "hangs from the start", Options: "WAIT=0 PATIENCE=0.5", Args: []string{"hold", "k"}, Prints: []string{"error 69 .*in time.*"}},
	},
}

// lock takes the lock on a key, which is to be free soon.
func (a *realAgent) lock(t *testing.T, key string) *redlock.Lock {
	t.Helper()
	lock, err := a.locker.Lock(t.Context(), key, redlock.WithWait(time.Minute))
	if err != nil {
		t.Fatalf("the key %s is not free: %v", key, err)
	}
	return lock
}

// answering serves connections with one response each.
func answering(response string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = fmt.Fprint(c, response)
		_ = c.Close()
	}
}

func serveSocket(t *testing.T, serve func(net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return path
}

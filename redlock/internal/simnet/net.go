// Package simnet is a network of servers in memory, in the virtual time of a bubble of testing/synctest. Package redlock/simnet, through which all
// tests except for redlock's own use it, explains it. The worlds of TestSimulation use it as well, with Traffic that is drawn from a seed.
//
// TestConformance checks against real servers that these servers do as Redis does.
package simnet

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// bound is the longest virtual time for something that should happen at once.
const bound = 2 * time.Minute

// Net is a number of servers behind addresses.
type Net struct {
	Servers   []*Server
	Addresses []*Address // at first one for each server
}

// New returns n servers, at sim://0 and so on, that have been up for a day. They end with the test, which runs in a bubble, after the Lockers
// that are closed by a Cleanup of the test.
func New(t testing.TB, n int) *Net {
	t.Helper()
	net := new(Net)
	for i := range n {
		s := newServer(i)
		s.start(time.Now().Add(-24 * time.Hour))
		net.Servers = append(net.Servers, s)
		net.Addresses = append(net.Addresses, NewAddress(fmt.Sprintf("sim://%d", i), s))
	}
	t.Cleanup(net.end)
	return net
}

// end waits until everything under way has arrived, and ends all waits.
func (net *Net) end() {
	for _, s := range net.Servers {
		s.Kill()
		s.addresses.Range(func(a, _ any) bool { a.(*Address).open(); return true })
	}
	synctest.Wait()
	time.Sleep(time.Minute) // longer than any batch is under way
}

// RequireNoKeys fails the test, naming the keys, unless all servers soon have no key that is held or waited for.
func (net *Net) RequireNoKeys(t testing.TB) {
	t.Helper()
	var keys []string
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		keys = nil
		for _, s := range net.Servers {
			for _, key := range s.Keys() {
				keys = append(keys, fmt.Sprintf("%s on %s", key, s))
			}
		}
		if len(keys) == 0 {
			return
		}
	}
	t.Errorf("there still are %d keys: %q", len(keys), keys)
}

type batch struct {
	cmds    []protocol.Command // copies, because a late execution must not change the caller's commands
	arrives time.Time          // when it arrives at the server
	back    time.Time          // when its reply arrives at the client, at the earliest
	fate    Fate
}

// valve lets callers of pass through while it is open.
type valve struct {
	mu   sync.Mutex
	ways chan struct{} // closed when it opens; nil while it is open
}

func (v *valve) set(open bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case open && v.ways != nil:
		close(v.ways)
		v.ways = nil
	case !open && v.ways == nil:
		v.ways = make(chan struct{})
	}
}

// pass waits until the valve is open, unless one of two channels is closed before.
func (v *valve) pass(done, also <-chan struct{}) bool {
	for {
		v.mu.Lock()
		ways := v.ways
		v.mu.Unlock()
		if ways == nil {
			return true
		}
		select {
		case <-ways:
		case <-done:
			return false
		case <-also:
			return false
		}
	}
}

// sleepUntil sleeps until a time, unless one of the two channels is closed before.
//
// It makes no timer that is already due, because with the race detector Go 1.26 crashes in a bubble when a select meets one.
func sleepUntil(at time.Time, done, also <-chan struct{}) bool {
	d := time.Until(at)
	if d <= 0 {
		select {
		case <-done:
			return false
		case <-also:
			return false
		default:
			return true
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	case <-also:
		return false
	}
}

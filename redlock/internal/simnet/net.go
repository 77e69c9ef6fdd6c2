// Package simnet is a network of servers in memory, in the virtual time of a bubble of testing/synctest. The package redlock/simnet explains it; all
// tests outside package redlock use that package. The worlds of TestSimulation use this one, with Traffic that is drawn from a seed.
//
// TestConformance checks that these servers behave like real Redis servers.
package simnet

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// bound is the longest virtual time that RequireNoKeys waits.
const bound = 2 * time.Minute

// Net is a number of servers behind addresses.
type Net struct {
	Servers   []*Server
	Addresses []*Address // at first, one for each server
}

// New returns n servers, at sim://0 and so on, that have been up for a day. They end with the test, which runs in a bubble, after the Lockers that a
// Cleanup of the test closes.
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

// end kills the servers, delivers all batches that are under way, and ends all waits.
func (net *Net) end() {
	for _, s := range net.Servers {
		s.Kill()
		s.addresses.Range(func(a, _ any) bool { a.(*Address).open(); return true })
	}
	synctest.Wait()
	time.Sleep(time.Minute) // longer than any batch is under way
}

// RequireNoKeys waits until no server has a key that is held or waited for. If that takes too long, it fails the test and names the keys.
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
	cmds    []protocol.Command // copies, because a late execution must not change the commands of the caller
	arrives time.Time          // when the batch arrives at the server
	back    time.Time          // when its reply arrives at the client, at the earliest
	fate    Fate
}

// valve blocks callers of pass while it is closed.
type valve struct {
	mu   sync.Mutex
	ways chan struct{} // closed when the valve opens; nil while the valve is open
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

// pass waits until the valve is open. It returns false if one of the two channels is closed first.
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

// sleepUntil sleeps until a time. It returns false if one of the two channels is closed first.
//
// It makes no timer that is already due. Go 1.26 with the race detector crashes if a select in a bubble has one.
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

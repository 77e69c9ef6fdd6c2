// Package simnet runs tests of this module against servers in memory, in the virtual time of a bubble (testing/synctest): an hour of waiting
// takes milliseconds, and no busy machine makes it late. It is for this module alone: it may change at any time.
//
//	func TestLeaseOutlivesAServer(t *testing.T) {
//		simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) { // three servers, which have been up for a day
//			l := lockerOn(t, net.Masters()) // closes it by t.Cleanup
//			lock := mustLock(t, l, "key")
//			net.Servers[0].Kill()
//			net.Servers[1].Hang()
//			time.Sleep(5 * time.Second)
//			net.Servers[1].Resume()
//			net.Addresses[2].Set(simnet.Weather{Delay: 20 * time.Millisecond})
//			time.Sleep(time.Hour)
//			if err := lock.Err(); err != nil {
//				t.Error(err)
//			}
//			mustUnlock(t, lock)
//			net.RequireNoKeys(t)
//		})
//	}
//
// [Server] and [Address] have methods with the same names and effects as redistest's Server and Forwarder. A Server can die, hang, forget, refuse
// ([Server.Refuse]: with the texts of Redis) and lie ([Server.Forge]). An Address is the network of all Lockers that use it. A Locker with a separate
// network has separate addresses: net.Masters(simnet.NewAddress("sim://0", net.Servers[0]), …). A Locker with other masters, even under the same
// names, is made in the same way.
//
// In a bubble:
//
//   - Run calls t.Parallel. Call it from a test or within t.Run, and call neither t.Parallel nor t.Run within it.
//   - Time stands still while anything runs, and jumps when all goroutines sleep or wait. The times that a test sees are exact except for 50 µs of
//     each way over the network, so limits may be tight, but not 0. If two things happen at the same time, chance decides which comes first, so let
//     time pass between them. Tokens and IDs are chance, too.
//   - A goroutine that waits for a mutex, for a real connection or for a process doesn't let time pass: the test hangs. Channels,
//     sync.WaitGroup, sync.Cond and net.Pipe do. So don't hold a mutex while a goroutine waits that needs time.
//   - Don't resolve names, because the resolver of package net belongs to the first bubble that has asked it. Write IP addresses.
//   - Package variables keep no channel, timer or time of a bubble, nor one from before it: its time begins in 2000.
//   - A timer or context that is due when it is made crashes Go 1.26 with the race detector.
//   - All goroutines must end with the test: use t.Cleanup or defer to close Lockers, and to unlock locks for which goroutines wait. The network
//     itself is repaired at the end.
//
// Before a test lands it is green in 100 runs (go test -count 100), ten of them beside busy loops, and with -race. And it fails if the tested code
// is broken on purpose, because in virtual time a wait for something that never happens is fast, too.
package simnet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

// The parts of a network.
type (
	Server  = simnet.Server
	Address = simnet.Address
	Weather = simnet.Weather
	Info    = simnet.Info
	Command = simnet.Command
	Op      = simnet.Op
)

// The kinds of commands.
const (
	Ping    = simnet.Ping
	Acquire = simnet.Acquire
	Extend  = simnet.Extend
	Release = simnet.Release
	Beat    = simnet.Beat
	Inspect = simnet.Inspect
	Force   = simnet.Force
	Trial   = simnet.Trial
	Names   = simnet.Names
	Recall  = simnet.Recall
	Store   = simnet.Store
	Memory  = simnet.Memory
)

// NewAddress returns one more address of a server, with a separate network. If server is nil, nothing listens there.
func NewAddress(name string, server *Server) *Address { return simnet.NewAddress(name, server) }

// Net is a network: its Servers, and its Addresses. At first there is one address for each server.
type Net struct{ *simnet.Net }

// Run runs a test in a bubble, in parallel to others, with n servers at sim://0 and so on that have been up for a day.
func Run(t *testing.T, n int, test func(t *testing.T, net *Net)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, New(t, n)) })
}

// New returns a network like that of Run, for a test that already runs in a bubble.
func New(t testing.TB, n int) *Net { return &Net{simnet.New(t, n)} }

// Masters returns masters at these addresses or, if none are given, at all addresses of the network. It takes a millisecond, so that two Lockers
// never begin at the same time. Otherwise chance would decide which of them has locked for longer.
func (net *Net) Masters(at ...*Address) (masters []redlock.Master) {
	time.Sleep(time.Millisecond)
	if len(at) == 0 {
		at = net.Addresses
	}
	for _, a := range at {
		masters = append(masters, hook.MasterOf(a).(redlock.Master))
	}
	return masters
}

// Locker returns a Locker on all addresses of the network. It is closed at the end of the test.
func (net *Net) Locker(t testing.TB, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.New(net.Masters(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Pick returns masters at the first addresses of these servers.
func (net *Net) Pick(servers ...int) []redlock.Master {
	at := make([]*Address, len(servers))
	for i, server := range servers {
		at[i] = net.Addresses[server]
	}
	return net.Masters(at...)
}

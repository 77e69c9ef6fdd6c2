package redlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// simTTL is the TTL of locks in virtual time, and the longest.
const simTTL = 10 * time.Second

var simLife = []redlock.Option{redlock.WithTTL(simTTL), redlock.WithMaxTTL(simTTL), redlock.WithTimeout(50 * time.Millisecond)}

// simLocker gives a Locker on masters of a simnet, with the timeout of a product: no machine is busy there.
func simLocker(t testing.TB, masters []redlock.Master, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return lockerOn(t, masters, append(slices.Clone(simLife), opts...)...)
}

// stays requires that something holds for a time, at each hundredth of it.
func stays(t testing.TB, d time.Duration, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(d / 100) {
		if !condition() {
			t.Fatalf("not any more, %v before the end of %v: %s", time.Until(end), d, what)
		}
	}
}

// ownNetwork returns addresses of the servers, by the same names, for one process alone.
func ownNetwork(net *simnet.Net) (own []*simnet.Address) {
	for i, s := range net.Servers {
		own = append(own, simnet.NewAddress(net.Addresses[i].String(), s))
	}
	return own
}

// onDeployments runs a test on servers, and with masters in memory. Process makes a process, by a name; those in memory have one.
func onDeployments(t *testing.T, test func(t *testing.T, process func(name string) *redlock.Locker)) {
	t.Run("servers", func(t *testing.T) {
		simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
			test(t, func(name string) *redlock.Locker { return simLocker(t, net.Masters(), redlock.WithInstance(name)) })
		})
	})
	t.Run("memory", func(t *testing.T) {
		simnet.Run(t, 0, func(t *testing.T, _ *simnet.Net) {
			masters, err := dial("memory://1", "memory://2", "memory://3")
			if err != nil {
				t.Fatal(err)
			}
			l := simLocker(t, masters, redlock.WithInstance("a"))
			test(t, func(string) *redlock.Locker { return l })
		})
	})
}

// oddKeys are names that a protocol might get wrong.
var oddKeys = []string{"order:42", "}", "{}", "a b", "a\nb\r\n", "\x00\xff", "+", "ä", strings.Repeat("k", 300)}
